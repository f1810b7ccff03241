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

import argparse
import ctypes
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from dense_models import DENSE, Dense, write_dense
from golden_logits import LlamaCpp, greedy, prompt, script

FOLDER = Path("tests/data/golden_dense")
CANNOT_SHIFT = ("qwen2vl",)
"""Architectures that llama.cpp ends the process for when their positions are shifted: M-RoPE."""
N_STATE = 6
LATE = {"llama4": 8180}
"""Architectures whose logits are kept at later positions too -> the first: the text crosses a chunk's end."""


def sequence_state(llama: LlamaCpp, seq: int) -> bytes:
    """What llama_state_seq_get_data gives."""
    size = llama_cpp.llama_state_seq_get_size(llama.context, seq)
    out = (ctypes.c_uint8 * size)()
    return bytes(out[: llama_cpp.llama_state_seq_get_data(llama.context, out, size, seq)])


def edits(llama: LlamaCpp, tokens: list[int]) -> dict[str, npt.NDArray[Any]]:
    """What removals answer, a batch that does not fit, and a sequence saved, changed and restored."""
    m, memory = llama_cpp, llama.memory
    m.llama_memory_clear(memory, True)
    llama.decode([(t, i, [0]) for i, t in enumerate(tokens[:N_STATE])])
    state = sequence_state(llama, 0)
    answers = [
        int(m.llama_memory_seq_rm(memory, 0, p0, p1)) for p0, p1 in ((4, 5), (3, -1), (9, 12))
    ]
    data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
    answers.append(
        int(m.llama_state_seq_set_data(llama.context, data, len(state), 1)) == len(state)
    )
    restored = llama.decode([(tokens[N_STATE], N_STATE, [1])])
    m.llama_memory_clear(memory, True)
    llama.decode([(t % llama.n_vocab, t, [0]) for t in range(250)])
    answers.append(llama.try_decode([(t % llama.n_vocab, 250 + t, [0]) for t in range(10)])[0])
    return {
        "answers": np.array(answers, np.int32),
        "restored": restored,
        "state": np.frombuffer(state, np.uint8),
    }


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
        arrays |= edits(llama, tokens)
    llama.close()
    return arrays


def compare(name: str, spec: Dense, path: Path) -> float:
    """The largest difference of a prefill over the range of logits, against aleator."""
    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    tokens = prompt(spec.n_vocab, 48, spec.seed)
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="of models; all if none is given")
    parser.add_argument("--compare", action="store_true", help="compare models with other weights")
    parser.add_argument("--seed", type=int, default=1000, help="added to the models' own")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    worst = 0.0
    for name in args.names or DENSE:
        spec = DENSE[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            if args.compare:
                spec = replace(spec, seed=spec.seed + args.seed)
                difference = compare(name, spec, write_dense(path, spec))
                worst = max(worst, difference)
                print(f"{name:24} {difference:.1e}")
                continue
            arrays = computed(spec, write_dense(path, spec))
        arrays["generator"] = np.array(
            f"tools/golden_dense.py, llama-cpp-python {llama_cpp.__version__}"
        )
        out = FOLDER / f"{name}.npz"
        np.savez_compressed(out, allow_pickle=False, **arrays)
        print(f"{out}: {out.stat().st_size / 1024:.1f} KiB")
    if args.compare:
        print(f"largest difference over the range of logits: {worst:.1e}")


if __name__ == "__main__":
    main()
