"""Logits and states of llama.cpp for the models of delta_models.py: tests/data/logits/ARCHITECTURE.npz.

    python tools/golden_delta.py [ARCHITECTURE ...]
    python tools/golden_delta.py --compare [--seed N] [ARCHITECTURE ...]

Needs llama-cpp-python (the extra ``bench``).  Everything in float32 (cache too), no flash attention, one
thread.  Per model: logits of a prefill, a greedy continuation, a script of forked sequences, the state of a
sequence, and logits after it has been restored in another.  ``--compare`` computes the same prefill with
aleator, whose package must be importable here, with weights from other seeds.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from delta_models import DELTAS, Delta, write_delta
from golden_files import arguments, difference, edits, save
from golden_logits import LlamaCpp, greedy, hybrid_script, prompt

FOLDER = Path("tests/data/logits")


def computed(spec: Delta, path: Path) -> dict[str, npt.NDArray[Any]]:
    """What llama.cpp computes."""
    llama = LlamaCpp(path)
    tokens = prompt(spec.n_vocab)
    logits = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    arrays: dict[str, npt.NDArray[Any]] = {"prefill": logits}
    arrays["greedy"] = np.array(greedy(llama, tokens, logits), np.int32)
    arrays["script"] = hybrid_script(llama, tokens)
    shifts = int(llama_cpp.llama_memory_can_shift(llama.memory))
    answers, edited = edits(llama, tokens, ((3, -1), (9, 12)))
    arrays |= edited | {"answers": np.array([shifts, *answers], np.int32)}
    llama.close()
    return arrays


def compare(spec: Delta, path: Path) -> float:
    """The largest difference of a prefill over the range of logits, against aleator."""
    return difference(path, spec, 150, type_k="f32", type_v="f32")


def main() -> None:
    args = arguments(__doc__)
    for architecture in args.names or sorted({spec.arch for spec in DELTAS.values()}):
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, spec in DELTAS.items():
            if spec.arch != architecture:
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.gguf"
                if args.compare:
                    other = replace(spec, seed=spec.seed + args.seed)
                    print(f"{name:24} {compare(other, write_delta(path, other)):.1e}")
                    continue
                made = computed(spec, write_delta(path, spec))
            arrays |= {f"{name}/{key}": value for key, value in made.items()}
        if not args.compare:
            save(FOLDER / f"{architecture}.npz", "golden_delta.py", arrays)


if __name__ == "__main__":
    main()
