"""Logits, return codes and states of llama.cpp for the models of hybrid_models.py, one file for each.

    python tools/golden_hybrid.py [NAME ...]            writes tests/data/golden_hybrid/NAME.npz
    python tools/golden_hybrid.py --compare [NAME ...]  makes other weights, and compares them live

Needs llama-cpp-python (the extra ``bench``).  Everything in float32 (cache too), no flash attention, one
thread.  Per model: logits of a prefill at every fourth position; a greedy continuation; a script of forked
sequences side by side; what removals answer; the state of a sequence, and logits after it has been restored in
another.  ``--compare`` computes prefills with aleator, whose package must be importable here, from other seeds.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from golden_dense import N_STATE, sequence_state
from golden_logits import LlamaCpp, greedy, hybrid_script, prompt, recurrent_script
from hybrid_models import HYBRID, Hybrid, write_hybrid

FOLDER = Path("tests/data/golden_hybrid")


def edits(llama: LlamaCpp, tokens: list[int]) -> dict[str, npt.NDArray[Any]]:
    """What removals answer, and a sequence saved and restored as another."""
    m, memory = llama_cpp, llama.memory
    m.llama_memory_clear(memory, True)
    llama.decode([(t, i, [0]) for i, t in enumerate(tokens[:N_STATE])])
    state = sequence_state(llama, 0)
    answers = [
        int(m.llama_memory_seq_rm(memory, 0, p0, p1)) for p0, p1 in ((3, -1), (2, 4), (9, 12))
    ]
    data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
    read = int(m.llama_state_seq_set_data(llama.context, data, len(state), 1))
    answers.append(int(read == len(state)))
    return {
        "answers": np.array(answers, np.int32),
        "restored": llama.decode([(tokens[N_STATE], N_STATE, [1])]),
        "state": np.frombuffer(state, np.uint8),
    }


def computed(spec: Hybrid, path: Path) -> dict[str, npt.NDArray[Any]]:
    """All that is kept of a model."""
    llama = LlamaCpp(path)
    tokens = prompt(spec.n_vocab)
    logits = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    arrays: dict[str, npt.NDArray[Any]] = {"prefill": logits[3::4]}
    arrays["greedy"] = np.array(greedy(llama, tokens, logits), np.int32)
    arrays["script"] = (hybrid_script if spec.has_attention else recurrent_script)(llama, tokens)
    arrays |= edits(llama, tokens)
    llama.close()
    return arrays


def compare(spec: Hybrid, path: Path) -> float:
    """The largest difference of a prefill over the range of logits, against aleator."""
    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    tokens = prompt(spec.n_vocab, 48, spec.seed)
    llama = LlamaCpp(path)
    theirs = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    llama.close()
    options: dict[str, Any] = {"type_k": "f32", "type_v": "f32"} if spec.has_attention else {}
    context = Context(build_decoder(open_weights(path)), n_ctx=256, n_threads=1, **options)
    ours = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of models; all if none is given")
    parser.add_argument("--compare", action="store_true", help="compare models with other weights")
    parser.add_argument("--seed", type=int, default=1000, help="added to the models' own")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    worst = 0.0
    for name in args.names or HYBRID:
        spec = HYBRID[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            if args.compare:
                spec = replace(spec, seed=spec.seed + args.seed)
                difference = compare(spec, write_hybrid(path, spec))
                worst = max(worst, difference)
                print(f"{name:24} {difference:.1e}")
                continue
            arrays = computed(spec, write_hybrid(path, spec))
        arrays["generator"] = np.array(
            f"tools/golden_hybrid.py, llama-cpp-python {llama_cpp.__version__}"
        )
        out = FOLDER / f"{name}.npz"
        np.savez_compressed(out, allow_pickle=False, **arrays)
        print(f"{out}: {out.stat().st_size / 1024:.1f} KiB")
    if args.compare:
        print(f"largest difference over the range of logits: {worst:.1e}")


if __name__ == "__main__":
    main()
