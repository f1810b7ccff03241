"""llama.cpp's window and recurrent caches: states, positions and what it answers, for tests without it.

    python tools/golden_pools.py tests/data/golden_pools.npz

Needs llama-cpp-python (the extra ``bench``).  A model with window layers is fed past its window pool, a
recurrent one through llama.cpp's truth table of removals, copies and shifts.
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
from golden_logits import _quiet, prompt
from golden_state import Llama
from make_models import SPECS, write_model

GEMMA3 = replace(
    SPECS["gemma3"], n_layers=2, pattern=2, n_heads=2, n_kv_heads=1, head_dim=8, context=1024
)
MAMBA = replace(SPECS["mamba"], n_embd=16, d_state=4, d_conv=3, dt_rank=2)
ENDS = (16, 240, 256, 257, 260, 300)


class Pools(Llama):
    """llama.cpp with a window pool of its usual size, 256 cells, and micro-batches of 16."""

    def __init__(self, path: Path) -> None:
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 1024, 256, 16
        params.n_seq_max, params.kv_unified, params.swa_full = 4, True, False
        params.type_k = params.type_v = params.flash_attn_type = 0
        params.n_threads = params.n_threads_batch = 1
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self._batch = llama_cpp.llama_batch_init(256, 0, 4)

    def ranges(self) -> list[list[int]]:
        """Lowest and highest position of each sequence."""
        low, high = llama_cpp.llama_memory_seq_pos_min, llama_cpp.llama_memory_seq_pos_max
        return [[low(self.memory, s), high(self.memory, s)] for s in range(4)]


def empty(llama: Pools) -> dict[str, npt.NDArray[Any]]:
    """States of an empty cache and sequence, and the ranges after they were put in place of others."""
    arrays = {
        "empty whole": np.frombuffer(llama.whole(), np.uint8),
        "empty sequence": np.frombuffer(llama.sequence(1), np.uint8),
    }
    llama.decode([(1, i, [s]) for i in range(4) for s in (0, 1)])
    ranges = []
    for name, seq in (("empty sequence", 1), ("empty whole", -1)):
        llama.restore(arrays[name].tobytes(), seq)
        ranges.append(llama.ranges())
    return arrays | {"empty ranges": np.array(ranges)}


def windows(folder: Path) -> dict[str, npt.NDArray[Any]]:
    llama = Pools(write_model(folder / "gemma3.gguf", GEMMA3))
    arrays = empty(llama)
    text, at, ranges = prompt(llama.n_vocab, 304), 0, []
    for end in ENDS:
        while at < end:
            n = min(16, end - at)
            logits = llama.decode([(text[at + i], at + i, [0]) for i in range(n)])[-1:]
            at += n
        ranges.append(llama.ranges()[0])
    arrays |= {"ranges": np.array(ranges), "logits": logits}
    arrays["sequence"] = np.frombuffer(llama.sequence(0), np.uint8)
    arrays["whole"] = np.frombuffer(llama.whole(), np.uint8)
    llama_cpp.llama_memory_seq_rm(llama.memory, 0, 290, -1)
    arrays["rewound"] = llama.decode([(text[300], 290, [0])])
    llama.close()
    return {f"gemma3/{name}": values for name, values in arrays.items()}


def states(folder: Path) -> dict[str, npt.NDArray[Any]]:
    llama = Pools(write_model(folder / "mamba.gguf", MAMBA))
    arrays = empty(llama)
    m, memory, text = llama_cpp, llama.memory, prompt(llama.n_vocab, 40)
    llama.decode([(t, i, [0]) for i, t in enumerate(text[:10])])
    llama.decode([(t, i, [1]) for i, t in enumerate(text[10:14])])
    arrays["whole"] = np.frombuffer(llama.whole(), np.uint8)
    arrays["sequence"] = np.frombuffer(llama.sequence(0), np.uint8)
    answers, ranges = [], []
    for p0, p1 in ((0, 5), (3, 6), (5, -1), (9, -1), (10, -1)):
        answers.append(m.llama_memory_seq_rm(memory, 0, p0, p1))
        ranges.append(llama.ranges())
    m.llama_memory_seq_cp(memory, 0, 2, -1, -1)
    m.llama_memory_seq_cp(memory, 0, 3, -1, -1)
    ranges.append(llama.ranges())
    m.llama_memory_seq_add(memory, 0, 0, -1, -4)
    ranges.append(llama.ranges())
    arrays["diverged"] = llama.decode([(text[20], 6, [2])])
    ranges.append(llama.ranges())
    m.llama_memory_seq_keep(memory, 2)
    ranges.append(llama.ranges())
    arrays |= {"answers": np.array(answers), "ranges": np.array(ranges)}
    llama.close()
    return {f"mamba/{name}": values for name, values in arrays.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("tests/data/golden_pools.npz"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arrays = windows(Path(folder)) | states(Path(folder))
    arrays["generator"] = np.array(
        f"tools/golden_pools.py, llama-cpp-python {llama_cpp.__version__}"
    )
    np.savez_compressed(args.out, allow_pickle=False, **arrays)
    print(f"{args.out}: {args.out.stat().st_size / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
