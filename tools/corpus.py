"""Draws of many chains, compared with those of a recorded file: the same tokens on every machine.

    python tools/corpus.py [--isa NAME] [--record]

Every chain of tools/equality_rows.py draws from rows of 16 to 151,936 logits. tests/golden/machines/corpus.json
has, for each block, a digest of the logits and the drawn tokens, recorded on an x86-64 machine with --record. A
different digest means that NumPy made other logits, so that nothing was compared. --isa asks for an instruction
set, and fails if the native module runs another one. It needs only NumPy and the package: wheels and emulated
machines run it too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equality_rows import Rows

    from aleator.samplers import SamplerChain

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "machines" / "corpus.json"
STEPS = 4
SIZES = {16: 24, 64: 20, 300: 20, 1024: 12, 4096: 6, 32_000: 3, 151_936: 2}
"""Vocabularies, and chains of each kind."""


def blocks() -> list[tuple[str, int]]:
    """Kind of chain and vocabulary of each block."""
    from equality_rows import CHAINS

    return [(name, n) for n in SIZES for name in CHAINS]


def block(name: str, n: int) -> tuple[list[SamplerChain], list[Rows]]:
    """The chains of a block, and the logits of each step, float32 or float16 ``[chains, n]``."""
    import numpy as np
    from equality_rows import CHAINS, OPTIONAL, rows_of

    from aleator.samplers import SamplerChain

    r = random.Random(f"corpus {name} {n}")
    chains = []
    for _ in range(SIZES[n]):
        samplers = CHAINS[name][0](r, n)
        if name in OPTIONAL:
            samplers = [s for s in samplers[:-1] if r.random() < 0.7] + samplers[-1:]
        chain = SamplerChain(samplers, seed=r.randrange(2**64), completion=r.randrange(5))
        for token in r.choices(range(min(n, 40)), k=r.randrange(7)):
            chain.accept(token)
        chains.append(chain)
    rng = np.random.default_rng(r.randrange(2**63))
    dtype = np.float16 if r.random() < 0.2 else np.float32
    with np.errstate(over="ignore"):  # beyond float16's range
        return chains, [rows_of(rng, len(chains), n).astype(dtype) for _ in range(STEPS)]


def drawn(name: str, n: int) -> dict[str, Any]:
    """Digest of a block's logits, and its tokens; -1 if no token can be chosen."""
    from aleator.core.errors import LogitsError

    chains, steps = block(name, n)
    digest, tokens = hashlib.sha256(), []
    for rows in steps:
        digest.update(rows.astype(rows.dtype.newbyteorder("<"), copy=False).tobytes())
        for chain, row in zip(chains, rows, strict=True):
            try:
                tokens.append(chain.sample(row))
            except LogitsError:
                tokens.append(-1)
    return {"chain": name, "n": n, "logits": digest.hexdigest()[:16], "tokens": tokens}


def differences(made: Sequence[dict[str, Any]], golden: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with each block that differs from the record."""
    found = [] if len(made) == len(golden) else [f"{len(made)} blocks, not {len(golden)}"]
    for mine, right in zip(made, golden, strict=False):
        where = f"{right['chain']}, V = {right['n']}"
        if (mine["chain"], mine["n"]) != (right["chain"], right["n"]):
            found.append(f"{where}: is {mine['chain']}, V = {mine['n']}")
        elif mine["logits"] != right["logits"]:
            found.append(f"{where}: NumPy made other logits")
        elif mine["tokens"] != right["tokens"]:
            pairs = zip(mine["tokens"], right["tokens"], strict=True)
            wrong = [f"{i}: {a}, not {b}" for i, (a, b) in enumerate(pairs) if a != b]
            found.append(f"{where}: {len(wrong)} draws differ; {wrong[0]}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", help="instruction set to ask for: base, v3, v4, dotprod")
    parser.add_argument("--record", action="store_true", help="write the golden file")
    options = parser.parse_args(arguments)
    if options.isa:
        os.environ["ALEATOR_ISA"] = options.isa  # before the native module looks at it
    from aleator.core import host

    if options.isa and host.isa() != options.isa:
        print(f"asked for {options.isa}, and the native module runs {host.isa()}")
        return 1
    made = [drawn(name, n) for name, n in blocks()]
    if options.record:
        lines = ",\n".join(json.dumps(each) for each in made)
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(f"[\n{lines}\n]\n")
    wrong = differences(made, json.loads(GOLDEN.read_text()))
    draws = sum(len(each["tokens"]) for each in made)
    print("\n".join([*wrong[:20], f"{host.isa()}: {draws} draws, {len(wrong)} blocks differ"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
