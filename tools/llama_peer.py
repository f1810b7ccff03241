"""llama.cpp by its C interface in llama-cpp-python (the extra ``bench``), for tools that compare with it."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
"""ggml's numbers of cache types."""
VERSION = f"llama-cpp-python {llama_cpp.__version__}"
Row = tuple[int, int, Sequence[int]]
"""A token, its position and its sequences."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


def load(path: Path, vocab_only: bool = False) -> Any:
    """A model; nothing is logged from now on."""
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    return model


def vocabulary(path: Path) -> Any:
    """The vocabulary of a file, which is kept until the process ends."""
    return llama_cpp.llama_model_get_vocab(load(path, vocab_only=True))


def token_ids(vocab: Any, text: str, special: bool = False) -> list[int]:
    """The tokens of a text, without BOS and EOS."""
    data = text.encode()
    out = (llama_cpp.llama_token * (len(data) + 8))()
    n = llama_cpp.llama_tokenize(vocab, data, len(data), out, len(out), False, special)
    return list(out[:n])


class Context:
    """A model and a context of llama.cpp, on one thread.

    Args:
        path: the model's path.
        n_ctx: cells of each sequence, or of all if they share them.
        type_k: type of keys, one of :data:`TYPES`.
        type_v: type of values.
        flash: whether attention is "flash attention", which stores values by token.
        unified: whether the sequences share the cells.
        n_ubatch: tokens computed together.
        n_batch: tokens of a batch.
        n_seq_max: sequences.
        swa_full: whether layers with windows keep all positions; otherwise positions cannot be shifted.
    """

    def __init__(
        self,
        path: Path,
        n_ctx: int = 256,
        type_k: str = "f32",
        type_v: str = "f32",
        flash: bool = False,
        unified: bool = True,
        n_ubatch: int = 64,
        n_batch: int = 256,
        n_seq_max: int = 4,
        swa_full: bool = True,
    ) -> None:
        self.model = load(path)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_ubatch
        params.n_seq_max, params.kv_unified, params.swa_full = n_seq_max, unified, swa_full
        params.type_k, params.type_v = TYPES[type_k], TYPES[type_v]
        params.flash_attn_type = int(flash)
        params.n_threads = params.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self._batch = llama_cpp.llama_batch_init(n_batch, 0, n_seq_max)

    def decode(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Logits of every row."""
        code, logits = self.try_decode(rows)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        return logits

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> npt.NDArray[np.float32]:
        """Logits of every token of a text from its beginning."""
        return self.decode([(token, i, [seq]) for i, token in enumerate(tokens)])

    def try_decode(
        self, rows: Sequence[Row], logits: bool = True
    ) -> tuple[int, npt.NDArray[np.float32]]:
        """The return code, and the logits of every row if it is 0 and they are wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, pos, seqs) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, pos, int(logits)
            batch.n_seq_id[i] = len(seqs)
            for j, s in enumerate(seqs):
                batch.seq_id[i][j] = s
        code = int(llama_cpp.llama_decode(self.context, batch))
        if code or not logits:
            return code, np.empty((0, self.n_vocab), np.float32)
        found = llama_cpp.llama_get_logits(self.context)
        return 0, np.ctypeslib.as_array(found, (len(rows), self.n_vocab)).copy()

    def whole(self) -> bytes:
        """The result of llama_state_get_data."""
        size = llama_cpp.llama_state_get_size(self.context)
        out = (ctypes.c_uint8 * size)()
        return bytes(out[: llama_cpp.llama_state_get_data(self.context, out, size)])

    def sequence(self, seq: int) -> bytes:
        """The result of llama_state_seq_get_data."""
        size = llama_cpp.llama_state_seq_get_size(self.context, seq)
        out = (ctypes.c_uint8 * size)()
        return bytes(out[: llama_cpp.llama_state_seq_get_data(self.context, out, size, seq)])

    def restore(self, blob: bytes, seq: int = -1) -> bool:
        """Whether llama.cpp takes the state."""
        data = (ctypes.c_uint8 * len(blob)).from_buffer_copy(blob)
        if seq < 0:
            read = llama_cpp.llama_state_set_data(self.context, data, len(blob))
        else:
            read = llama_cpp.llama_state_seq_set_data(self.context, data, len(blob), seq)
        return int(read) == len(blob)

    def file(self, tokens: Sequence[int], seq: int = -1) -> bytes:
        """The file of llama_state_save_file or llama_state_seq_save_file."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            given = str(path).encode(), *(() if seq < 0 else (seq,)), ids, len(tokens)
            verb = "llama_state_save_file" if seq < 0 else "llama_state_seq_save_file"
            getattr(llama_cpp, verb)(self.context, *given)
            return path.read_bytes()

    def ranges(self) -> list[list[int]]:
        """Lowest and highest position of each of four sequences."""
        low, high = llama_cpp.llama_memory_seq_pos_min, llama_cpp.llama_memory_seq_pos_max
        return [[int(low(self.memory, s)), int(high(self.memory, s))] for s in range(4)]

    def tops(self) -> list[int]:
        """Highest position of each of four sequences; -1: it is empty."""
        return [high for _, high in self.ranges()]

    def verb(self, name: str, *arguments: int) -> Any:
        """An operation on the memory: "rm", "cp", "keep", "add", "div" or "clear"."""
        if name == "clear":
            return llama_cpp.llama_memory_clear(self.memory, True)
        return getattr(llama_cpp, f"llama_memory_seq_{name}")(self.memory, *arguments)

    def close(self) -> None:
        """Free everything."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def prompt(n_vocab: int, n: int = 20, seed: int = 7) -> list[int]:
    """Tokens that every model is run on."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]


def save(out: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write a file of arrays and say how large it is."""
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, allow_pickle=False, **arrays)
    print(f"{out}: {out.stat().st_size / 1024:.1f} KiB, {len(arrays)} arrays")
