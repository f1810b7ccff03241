"""Logits, return codes and states of llama.cpp for the models of dense_models.py, one file for each.

    python tools/golden_dense.py [NAME ...]            writes tests/data/golden_dense/NAME.npz
    python tools/golden_dense.py --compare [NAME ...]  makes other weights, and compares them live

Needs llama-cpp-python (the extra ``bench``).  Everything in float32 (cache too), no flash attention, one
thread. Per model: logits of a prefill at every fourth position; a greedy continuation; a script of shared,
removed and shifted sequences; what edits answer; the state of a sequence, and logits after it has been
restored in another. ``--compare`` computes the same with aleator, whose package must be importable here, from
other seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from dense_models import DENSE, Dense, write_dense
from golden_files import Recorder, arguments, difference, edits
from golden_logits import LlamaCpp, greedy, prompt, script

FOLDER = Path("tests/data/golden_dense")
CANNOT_SHIFT = ("qwen2vl",)
"""Architectures that llama.cpp ends the process for when their positions are shifted: M-RoPE."""
LATE = {"llama4": 8180}
"""Architectures whose logits are kept at later positions too -> the first: the text crosses a chunk's end."""


def all_edits(llama: LlamaCpp, tokens: list[int]) -> dict[str, npt.NDArray[Any]]:
    """What removals answer, a sequence saved, changed and restored, and a batch that does not fit."""
    answers, arrays = edits(llama, tokens, ((4, 5), (3, -1), (9, 12)))
    llama_cpp.llama_memory_clear(llama.memory, True)
    llama.decode([(t % llama.n_vocab, t, [0]) for t in range(250)])
    answers.append(llama.try_decode([(t % llama.n_vocab, 250 + t, [0]) for t in range(10)])[0])
    return arrays | {"answers": np.array(answers, np.int32)}


def computed(spec: Dense, path: Path) -> dict[str, npt.NDArray[Any]]:
    llama = LlamaCpp(path)
    tokens = prompt(spec.n_vocab)
    logits = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    arrays: dict[str, npt.NDArray[Any]] = {"prefill": logits[3::4]}
    long = greedy(llama, tokens, logits)
    arrays["greedy"] = np.array(long, np.int32)
    if spec.arch not in CANNOT_SHIFT:
        arrays["script"] = script(llama, tokens)
    if spec.arch in LATE:
        llama_cpp.llama_memory_clear(llama.memory, True)
        arrays["late"] = llama.decode([(t, LATE[spec.arch] + i, [0]) for i, t in enumerate(tokens)])
    if spec.context >= 256:
        arrays |= all_edits(llama, tokens)
    llama.close()
    return arrays


def compare(spec: Dense, path: Path) -> float:
    """The largest difference of a prefill over the range of logits, against aleator."""
    return difference(path, spec, type_k="f32", type_v="f32")


if __name__ == "__main__":
    Recorder("golden_dense.py", FOLDER, DENSE, write_dense, computed, compare).run(
        arguments(__doc__)
    )
