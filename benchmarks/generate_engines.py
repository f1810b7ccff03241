"""Engines for bench_generate.py, each in a process of its own that answers orders with seconds.

    python benchmarks/generate_engines.py KIND MODEL THREADS

Both engines do the same work with the same tokens and read the same logits; nothing is sampled.  llama.cpp has
two variants, with and without flash attention; everything else is its default, which is its best here.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

VARIANTS = {"aleator": ("",), "llama.cpp": ("flash", "plain")}
"""Settings of each engine that are measured; the best one counts."""
PROMPT = 16
"""Tokens that each sequence of a batch begins with."""

Step = Sequence[tuple[int, int, int]]
"""Tokens to compute together: token, position, sequence."""


class Engine(Protocol):
    """A model that is loaded."""

    n_vocab: int

    def open(self, n_ctx: int, n_seq: int, variant: str) -> None:
        """Use an empty context of so many cells and sequences from now on."""

    def clear(self) -> None:
        """Forget everything."""

    def compute(self, step: Step, n_logits: int) -> None:
        """Compute tokens and read the logits of the last ones."""


class Aleator:
    def __init__(self, path: Path, threads: int) -> None:
        import numpy as np

        from aleator.generate import Batch, Context
        from aleator.models import build_decoder, open_weights

        self._np, self._batch, self._make, self._threads = np, Batch, Context, threads
        self._decoder = build_decoder(open_weights(path))
        self.n_vocab: int = self._decoder.config.n_vocab
        self._context: Any = None

    def open(self, n_ctx: int, n_seq: int, variant: str) -> None:
        self._context = None
        self._context = self._make(
            self._decoder, n_ctx=n_ctx, n_seq_max=n_seq, n_threads=self._threads
        )

    def clear(self) -> None:
        self._context.cache.clear(data=False)

    def compute(self, step: Step, n_logits: int) -> None:
        if n_logits == 1 and len({seq for _, _, seq in step}) == 1:
            batch = self._batch.one([token for token, _, _ in step], step[0][1], step[0][2])
        else:
            batch = self._batch()
            for i, (token, pos, seq) in enumerate(step):
                batch.add(token, pos, (seq,), logits=i >= len(step) - n_logits)
        rows = self._np.asarray(self._context.decode(batch))
        float(rows[-1, 0])


class LlamaCpp:
    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self._lib, self._threads = llama_cpp, threads
        # Kept: the library calls it for as long as the process lives.
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self._context: Any = None
        self._batch: Any = None

    def open(self, n_ctx: int, n_seq: int, variant: str) -> None:
        lib = self._lib
        if self._context:
            lib.llama_free(self._context)
            lib.llama_batch_free(self._batch)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, n_seq
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = int(variant == "flash")
        self._context = lib.llama_init_from_model(self._model, params)
        self._batch = lib.llama_batch_init(n_ctx, 0, 1)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def compute(self, step: Step, n_logits: int) -> None:
        batch = self._batch
        # Like Aleator, in pieces of the largest batch; a prompt wants its last logits only.
        for start in range(0, len(step), 2048):
            part = step[start : start + 2048]
            batch.n_tokens = len(part)
            for i, (token, pos, seq) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, pos, 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = start + i >= len(step) - n_logits
            if self._lib.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
        float(self._lib.llama_get_logits_ith(self._context, -1)[0])


KINDS: dict[str, Any] = {"aleator": Aleator, "llama.cpp": LlamaCpp}


class Measured:
    """An engine with its orders: each gives the seconds of what is measured."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._open = engine, (0, 0, "")
        r = random.Random(1)
        self._tokens = [r.randrange(engine.n_vocab) for _ in range(2**14)]

    def _begin(self, n_ctx: int, n_seq: int, variant: str) -> None:
        wanted = (-(-n_ctx // 256) * 256, n_seq, variant)
        if wanted != self._open:
            self._engine.open(*wanted)
            self._open = wanted
        self._engine.clear()

    def prefill(self, variant: str, n: int) -> float:
        """A prompt of ``n`` tokens into an empty cache."""
        self._begin(n, 1, variant)
        return self._timed([(token, i, 0) for i, token in enumerate(self._tokens[:n])], 1)

    def decode(self, variant: str, n: int, depth: int) -> float:
        """``n`` tokens one by one, after ``depth`` others."""
        self._begin(depth + n, 1, variant)
        if depth:
            self._timed([(token, i, 0) for i, token in enumerate(self._tokens[:depth])], 1)
        start = time.perf_counter()
        for i in range(depth, depth + n):
            self._engine.compute([(self._tokens[i], i, 0)], 1)
        return time.perf_counter() - start

    def batch(self, variant: str, n: int, size: int) -> float:
        """``n`` tokens of each of ``size`` sequences, a step for all of them at a time."""
        self._begin(size * 256, size, variant)
        for seq in range(size):
            self._timed([(self._tokens[seq + i], i, seq) for i in range(PROMPT)], 1)
        start = time.perf_counter()
        for i in range(PROMPT, PROMPT + n):
            step = [(self._tokens[seq * 7 + i], i, seq) for seq in range(size)]
            self._engine.compute(step, size)
        return time.perf_counter() - start

    def _timed(self, step: Step, n_logits: int) -> float:
        start = time.perf_counter()
        self._engine.compute(step, n_logits)
        return time.perf_counter() - start


def main() -> None:
    kind, path, threads = sys.argv[1:]
    engine = Measured(KINDS[kind](Path(path), int(threads)))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order, *words = json.loads(line)
        print(json.dumps(getattr(engine, order)(*words)), flush=True)


if __name__ == "__main__":
    main()
