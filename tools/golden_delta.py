"""Logits and states of llama.cpp for the models of delta_models.py: tests/data/logits/ARCHITECTURE.npz.

    python tools/golden_delta.py [ARCHITECTURE ...]
    python tools/golden_delta.py --compare [--seed N] [ARCHITECTURE ...]

Needs llama-cpp-python (the extra ``bench``).  Everything in float32 (cache too), no flash attention, one
thread.  Per model: logits of a prefill, a greedy continuation, a script of forked sequences, the state of a
sequence, and logits after it has been restored in another.  ``--compare`` computes the same prefill with
aleator, whose package must be importable here, with weights from other seeds.
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
from delta_models import DELTAS, Delta, write_delta
from golden_dense import sequence_state
from golden_logits import LlamaCpp, greedy, hybrid_script, prompt

N_STATE = 6
FOLDER = Path("tests/data/logits")


def computed(spec: Delta, path: Path) -> dict[str, npt.NDArray[Any]]:
    """What llama.cpp computes."""
    m, llama = llama_cpp, LlamaCpp(path)
    tokens = prompt(spec.n_vocab)
    logits = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    arrays: dict[str, npt.NDArray[Any]] = {"prefill": logits}
    arrays["greedy"] = np.array(greedy(llama, tokens, logits), np.int32)
    arrays["script"] = hybrid_script(llama, tokens)
    m.llama_memory_clear(llama.memory, True)
    llama.decode([(t, i, [0]) for i, t in enumerate(tokens[:N_STATE])])
    state = sequence_state(llama, 0)
    answers = [int(m.llama_memory_can_shift(llama.memory))]
    answers += [
        int(m.llama_memory_seq_rm(llama.memory, 0, p0, p1)) for p0, p1 in ((3, -1), (9, 12))
    ]
    data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
    read = m.llama_state_seq_set_data(llama.context, data, len(state), 1)
    answers.append(int(read == len(state)))
    arrays["restored"] = llama.decode([(tokens[N_STATE], N_STATE, [1])])
    arrays["answers"] = np.array(answers, np.int32)
    arrays["state"] = np.frombuffer(state, np.uint8)
    llama.close()
    return arrays


def compare(spec: Delta, path: Path) -> float:
    """The largest difference of a prefill over the range of logits, against aleator."""
    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    tokens = prompt(spec.n_vocab, 150, spec.seed)
    llama = LlamaCpp(path)
    theirs = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    llama.close()
    context = Context(
        build_decoder(open_weights(path)), n_ctx=256, type_k="f32", type_v="f32", n_threads=1
    )
    ours = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architectures", nargs="*", help="all, where none is named")
    parser.add_argument("--compare", action="store_true", help="compare models with other weights")
    parser.add_argument("--seed", type=int, default=1000, help="added to the models' own")
    args = parser.parse_args()
    for architecture in args.architectures or sorted({spec.arch for spec in DELTAS.values()}):
        arrays: dict[str, npt.NDArray[Any]] = {
            "generator": np.array(
                f"tools/golden_delta.py, llama-cpp-python {llama_cpp.__version__}"
            )
        }
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
            out = FOLDER / f"{architecture}.npz"
            np.savez_compressed(out, allow_pickle=False, **arrays)
            print(f"{out}: {out.stat().st_size / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
