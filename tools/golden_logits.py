"""Logits of llama.cpp for the models of make_models.py, kept so that tests need no llama.cpp.

    python tools/golden_logits.py [qwen3moe gemma3 ...]

writes tests/data/logits/ARCHITECTURE.npz for the architectures that are named, or for all of them.

Needs llama-cpp-python (the extra ``bench``).  Everything in float32 (cache too), no flash
attention, one thread.  Per model: logits of a prefill at every position, a greedy continuation,
and the logits of a script of shared, removed and shifted sequences.  The file says which version
made it.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from make_models import SPECS, Spec, write_model

N_PREFILL, N_GREEDY = 20, 64
Row = tuple[int, int, Sequence[int]]  # token, position, sequences


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


class LlamaCpp:
    """A model and context of llama.cpp, by its C interface."""

    def __init__(
        self,
        path: Path,
        n_ctx: int = 256,
        type_k: int = 0,
        type_v: int = 0,
        flash: bool = False,
        unified: bool = True,
        n_ubatch: int = 64,
    ) -> None:
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_quiet, None)
        params = self.parameters()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 256, n_ubatch
        params.n_seq_max, params.kv_unified = 4, unified
        params.swa_full = True  # otherwise positions of models with windows cannot be shifted
        params.type_k, params.type_v = type_k, type_v
        params.flash_attn_type = int(flash)
        params.n_threads = params.n_threads_batch = 1
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self._batch = llama_cpp.llama_batch_init(256, 0, 4)

    def parameters(self) -> Any:
        """The context's parameters that a subclass begins with."""
        return llama_cpp.llama_context_default_params()

    def decode(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Logits of every row."""
        code, logits = self.try_decode(rows)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        return logits

    def try_decode(self, rows: Sequence[Row]) -> tuple[int, npt.NDArray[np.float32]]:
        """The return code, and if it is 0 the logits of every row."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, pos, seqs) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, pos, 1
            batch.n_seq_id[i] = len(seqs)
            for j, s in enumerate(seqs):
                batch.seq_id[i][j] = s
        code = int(llama_cpp.llama_decode(self.context, batch))
        if code:
            return code, np.empty((0, self.n_vocab), np.float32)
        logits = llama_cpp.llama_get_logits(self.context)
        return 0, np.ctypeslib.as_array(logits, (len(rows), self.n_vocab)).copy()

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def prompt(n_vocab: int, n: int = N_PREFILL, seed: int = 7) -> list[int]:
    """Tokens that every model is run on."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]


def greedy(llama: LlamaCpp, tokens: list[int], logits: npt.NDArray[np.float32]) -> list[int]:
    """The tokens llama.cpp continues with, from the prompt's logits."""
    out: list[int] = []
    while len(out) < N_GREEDY:
        out.append(int(logits[-1].argmax()))
        logits = llama.decode([(out[-1], len(tokens) + len(out) - 1, [0])])
    return out


def script(llama: LlamaCpp, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Two sequences share a beginning, part, and one is cut and shifted."""
    m, memory = llama_cpp, llama.memory
    m.llama_memory_clear(memory, True)
    rows = [llama.decode([(t, i, [0, 1]) for i, t in enumerate(tokens[:6])])[-1:]]
    rows.append(llama.decode([(tokens[6], 6, [0]), (tokens[7], 6, [1]), (tokens[8], 7, [1])]))
    m.llama_memory_seq_rm(memory, 1, 2, 4)
    m.llama_memory_seq_add(memory, 1, 4, -1, -2)
    m.llama_memory_seq_cp(memory, 1, 2, -1, -1)
    rows.append(llama.decode([(tokens[9], 6, [1]), (tokens[10], 6, [2])]))
    m.llama_memory_seq_rm(memory, 0, -1, -1)
    rows.append(llama.decode([(tokens[11 + i], 7, [1 + i]) for i in range(2)]))
    return np.concatenate(rows)


def hybrid_script(llama: LlamaCpp, tokens: list[int]) -> npt.NDArray[np.float32]:
    """A sequence with keys and a state is forked, its copies go their own ways, side by side in a batch."""
    m, memory = llama_cpp, llama.memory
    m.llama_memory_clear(memory, True)
    rows = [llama.decode([(t, i, [0]) for i, t in enumerate(tokens[:6])])[-1:]]
    m.llama_memory_seq_cp(memory, 0, 1, -1, -1)
    rows.append(llama.decode([(tokens[6], 6, [0]), (tokens[7], 6, [1])]))
    m.llama_memory_seq_rm(memory, 0, -1, -1)
    fresh = [(tokens[10 + i], i, [0]) for i in range(3)]
    rows.append(llama.decode([(tokens[13 + i], 7 + i, [1]) for i in range(3)] + fresh))
    return np.concatenate(rows)


def recurrent_script(llama: LlamaCpp, tokens: list[int]) -> npt.NDArray[np.float32]:
    """A sequence is forked and relabelled, its copies go their own ways, side by side in a batch."""
    m, memory = llama_cpp, llama.memory
    m.llama_memory_clear(memory, True)
    rows = [llama.decode([(t, i, [0]) for i, t in enumerate(tokens[:6])])[-1:]]
    m.llama_memory_seq_cp(memory, 0, 1, -1, -1)
    rows.append(llama.decode([(tokens[6], 6, [0]), (tokens[7], 6, [1])]))
    m.llama_memory_seq_cp(memory, 1, 2, -1, -1)
    m.llama_memory_seq_add(memory, 2, 0, -1, -2)
    rows.append(llama.decode([(tokens[8], 5, [1]), (tokens[9], 5, [2])]))
    m.llama_memory_seq_rm(memory, 0, -1, -1)
    fresh = [(tokens[10 + i], i, [0]) for i in range(3)]
    rows.append(llama.decode([(tokens[13 + i], 6 + i, [1]) for i in range(3)] + fresh))
    return np.concatenate(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architectures", nargs="*", help="all, where none is named")
    parser.add_argument("--out", type=Path, default=Path("tests/data/logits"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for architecture in args.architectures or sorted({spec.arch for spec in SPECS.values()}):
        small = {
            name: spec
            for name, spec in SPECS.items()
            if spec.arch == architecture and spec.n_vocab < 1000
        }
        if not small:
            parser.error(f"tools/make_models.py makes no small model of {architecture}")
        out = args.out / f"{architecture}.npz"
        np.savez_compressed(out, allow_pickle=False, **golden(small))
        print(f"{out}: {out.stat().st_size / 1024:.1f} KiB, {len(small)} models")


def golden(specs: dict[str, Spec]) -> dict[str, npt.NDArray[np.generic]]:
    """What llama.cpp computes for these models."""
    made = f"tools/golden_logits.py, llama-cpp-python {llama_cpp.__version__}"
    arrays: dict[str, npt.NDArray[np.generic]] = {"generator": np.array(made)}
    for name, spec in specs.items():
        with tempfile.TemporaryDirectory() as folder:
            llama = LlamaCpp(write_model(Path(folder) / "model.gguf", spec))
            tokens = prompt(spec.n_vocab)
            logits = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
            arrays[f"{name}/prefill"] = logits
            arrays[f"{name}/greedy"] = np.array(greedy(llama, tokens, logits), dtype=np.int32)
            run = {"mamba": recurrent_script, "jamba": hybrid_script}.get(spec.arch, script)
            arrays[f"{name}/script"] = run(llama, tokens)
            llama.close()
    return arrays


if __name__ == "__main__":
    main()
