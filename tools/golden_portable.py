"""Golden files of the portable contract, tests/golden/portable: one per sampler, from its reference.

    python tools/golden_portable.py [--check] [stem ...]

A case is written by hand up to its ``steps``: a chain (our names and parameters), the seed and completion,
the tokens accepted before, a row of logits (golden_rows.py) and how many steps.  The tool fills in the
steps, each with the number of candidates, the first ids and the bits of their logits, the token, and a
digest over all ids and logits.  Nothing here comes from the native code.  A change of these files
changes tokens: the contract then gets a new version (docs/numerics.md).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from golden_rows import row
from numpy.typing import NDArray

from aleator import samplers as S
from aleator.core.numerics import NUMERICS_VERSION

FOLDER = Path(__file__).parent.parent / "tests" / "golden" / "portable"
SHOWN = 6
BY_NAME = {cls.name: cls for cls in S.SAMPLERS}


class FormulaVocabulary:
    """A vocabulary in which many texts are prefixes of others, for infill's cases."""

    eog = frozenset({1, 4})
    eot = 4

    def __len__(self) -> int:
        return 300

    def token_bytes(self, token: int) -> bytes:
        """``abcab`` and ``xyz``, each cut short."""
        return b"abcab"[: token % 5] + b"xyz"[: token % 3]


def chain_of(case: dict[str, Any]) -> S.SamplerChain:
    """The chain of a case."""
    samplers: list[S.Sampler] = []
    for name, values in case["chain"]:
        if name == "infill":
            samplers.append(S.Infill(FormulaVocabulary()))
        else:
            samplers.append(BY_NAME[name](**values))
    return S.SamplerChain(samplers, seed=case["seed"], completion=case["completion"])


def row_of(case: dict[str, Any], step: int) -> NDArray[np.float32]:
    """The logits of one step."""
    family, n, q = case["row"]
    return row(family, n, q, step)


def described(ids: NDArray[np.int32], logits: NDArray[np.float32], token: int) -> dict[str, Any]:
    """One step as the files have it."""
    digest = hashlib.sha256(ids.astype("<i4").tobytes() + logits.astype("<f4").tobytes())
    return {
        "size": len(ids),
        "ids": ids[:SHOWN].tolist(),
        "bits": [f"{bits:08x}" for bits in logits[:SHOWN].view(np.uint32).tolist()],
        "token": token,
        "digest": digest.hexdigest()[:16],
    }


def steps_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a case by the references."""
    reference = S.ReferenceChain(chain_of(case))
    for token in case["accepted"]:
        reference.accept(token)
    steps = []
    for step in range(case["n"]):
        left = reference.apply(row_of(case, step))
        token = left.selected
        if token is None:
            raise ValueError(f"the chain of {case['chain']} selects no token")
        left.materialise()
        steps.append(described(left.ids, left.logits, token))
        reference.accept(token, generated=True)
    return steps


def text_of(cases: list[dict[str, Any]]) -> str:
    """A golden file: one line per case."""
    head = {"generator": "tools/golden_portable.py", "numerics": NUMERICS_VERSION}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    return f'{json.dumps(head)[:-1]}, "cases": [\n{lines}\n]}}\n'


def main() -> int:
    """Fill in or check the files."""
    check = "--check" in sys.argv[1:]
    stems = [a for a in sys.argv[1:] if a != "--check"]
    stale = []
    for path in sorted(FOLDER.glob("*.json")):
        if stems and path.stem not in stems:
            continue
        cases = json.loads(path.read_text())["cases"]
        text = text_of([{**case, "steps": steps_of(case)} for case in cases])
        if text != path.read_text():
            stale.append(path.name)
            if not check:
                path.write_text(text)
    if stale:
        print(f"{'stale' if check else 'written'}: {', '.join(stale)}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
