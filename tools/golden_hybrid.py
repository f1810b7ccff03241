"""Logits, return codes and states of llama.cpp for the models of hybrid_models.py, one file for each.

    python tools/golden_hybrid.py [NAME ...]            writes tests/data/golden_hybrid/NAME.npz
    python tools/golden_hybrid.py --compare [NAME ...]  makes other weights, and compares them live

Needs llama-cpp-python (the extra ``bench``).  Everything in float32 (cache too), no flash attention, one
thread.  Per model: logits of a prefill at every fourth position; a greedy continuation; a script of forked
sequences side by side; what removals answer; the state of a sequence, and logits after it has been restored in
another.  ``--compare`` computes prefills with aleator, whose package must be importable here, from other seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from golden_files import Recorder, arguments, difference, edits
from golden_logits import LlamaCpp, greedy, hybrid_script, prompt, recurrent_script
from hybrid_models import HYBRID, Hybrid, write_hybrid

FOLDER = Path("tests/data/golden_hybrid")


def computed(spec: Hybrid, path: Path) -> dict[str, npt.NDArray[Any]]:
    """All that is kept of a model."""
    llama = LlamaCpp(path)
    tokens = prompt(spec.n_vocab)
    logits = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    arrays: dict[str, npt.NDArray[Any]] = {"prefill": logits[3::4]}
    arrays["greedy"] = np.array(greedy(llama, tokens, logits), np.int32)
    arrays["script"] = (hybrid_script if spec.has_attention else recurrent_script)(llama, tokens)
    answers, edited = edits(llama, tokens, ((3, -1), (2, 4), (9, 12)))
    arrays |= edited | {"answers": np.array(answers, np.int32)}
    llama.close()
    return arrays


def compare(spec: Hybrid, path: Path) -> float:
    """The largest difference of a prefill over the range of logits, against aleator."""
    types: dict[str, Any] = {"type_k": "f32", "type_v": "f32"} if spec.has_attention else {}
    return difference(path, spec, **types)


if __name__ == "__main__":
    Recorder("golden_hybrid.py", FOLDER, HYBRID, write_hybrid, computed, compare).run(
        arguments(__doc__)
    )
