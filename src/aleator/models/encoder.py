"""An encoder: the hidden states of whole texts, computed together in native code; nothing is kept of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import aleator._native as _native
from aleator.cache.kv_cache import Layers
from aleator.cache.pools.pool import Pool
from aleator.core.arrays import Floats, Int64s
from aleator.core.cancellation import check_cancelled
from aleator.core.errors import UnsupportedModel
from aleator.core.threads import pool as thread_pool
from aleator.models.adapted import EMBEDDING
from aleator.models.adapters import Adapters, held_at
from aleator.models.decoder import Progress
from aleator.models.native_decoder import NativeDecoder, inherited
from aleator.models.step import Step
from aleator.models.weights import Weights

TOKENS = 2048
"""Tokens of texts that are computed together; a longer text is computed alone."""


def no_texts(what: str) -> UnsupportedModel:
    """The error for an encoder that is asked for ``what``, which takes a decoder."""
    return UnsupportedModel(
        f"{what}: the model is an encoder, which gives vectors and scores of texts: use embed() or rerank(), "
        "on a server /v1/embeddings or /v1/rerank"
    )


class Encoder(NativeDecoder):
    """An encoder on the CPU in float32; its hidden states have the bits that docs/numerics.md says."""

    def __init__(self, weights: Weights, progress: Progress | None = None) -> None:
        super().__init__(weights, progress)
        self.drop_head()
        config = weights.config
        self.token_types: Floats | None = None
        if "token_types.weight" in weights:
            n = weights.stored("token_types.weight").shape[0]
            weights.expect("token_types.weight", (n, config.n_embd))
            self.token_types = weights.floats("token_types.weight")
        # Native code takes embeddings with the vectors of positions and segments already in them.
        self._table, self.positions = self.positions, None
        self._made: tuple[int, int, _native.DecoderStep] | None = None

    def take(self, adapters: Adapters) -> None:
        for each in adapters.loaded:
            if EMBEDDING in each.matrices:
                raise UnsupportedModel(
                    f"{each.path}: the adapter changes {EMBEDDING!r}, and an encoder's embeddings stay as they "
                    "are: merge it into its model (PEFT: merge_and_unload), and load that"
                )
            if each.invocation:
                raise UnsupportedModel(
                    f"{each.path}: the adapter begins at its invocation tokens (aLoRA), and an encoder's "
                    "tokens see those behind them: remove alora_invocation_tokens to apply it to whole texts"
                )
        super().take(adapters)

    @property
    def cache_layers(self) -> Layers:
        """Nothing is kept."""
        nothing: dict[str, Any] = dict.fromkeys(
            ("shapes", "devices", "window_shapes", "window_devices"), ()
        )
        return replace(super().cache_layers, window=None, **nothing)

    def over(self, pool: Pool, fused: bool = True) -> Step:
        return _NoStep()

    @property
    def most_positions(self) -> int:
        """The tokens that a text may have."""
        return self.config.context_length if self.n_positions is None else self.n_positions

    def states(
        self, texts: Sequence[Sequence[int]], segments: Sequence[int | None] | None = None
    ) -> Iterator[Floats]:
        """The last layer's output for every text, float32 [n, n_embd], in order.

        Args:
            texts: token ids, at least one for each text and at most :attr:`most_positions`.
            segments: for each text, the token that begins its second segment; None: it has one segment.
        """
        marks = segments or [None] * len(texts)
        start, total = 0, 0
        for i, text in enumerate(texts):
            if i > start and total + len(text) > TOKENS:
                yield from self._together(texts[start:i], marks[start:i])
                start, total = i, 0
            total += len(text)
        if len(texts) > start:
            yield from self._together(texts[start:], marks[start:])

    def _together(
        self, texts: Sequence[Sequence[int]], marks: Sequence[int | None]
    ) -> Iterator[Floats]:
        check_cancelled()
        lengths = np.array([len(text) for text in texts])
        ends = np.concatenate(([0], np.cumsum(lengths)))
        n = int(ends[-1])
        which = np.repeat(np.arange(len(texts)), lengths)
        at = np.arange(n) - ends[which]
        ids = np.fromiter((token for text in texts for token in text), np.int64, n)
        inputs = self._inputs(
            ids, at, [lengths[i] if m is None else m for i, m in enumerate(marks)], which
        )
        sees: dict[str, Any] = {}
        window = self.config.window
        seen = np.arange(n, dtype=np.int32)
        lists = ends.astype(np.int64), which.astype(np.int32)
        if window is not None:
            half = window.size // 2
            first = np.maximum(at - half, 0)
            count = np.minimum(at + half + 1, lengths[which])
            sees["window"] = (seen.astype(np.int64), seen, *lists, count, None, first, None)
        if self.slopes is not None:
            sees["seen_positions"] = at.astype(np.int32)
        chosen = held_at(self.adapters.chosen(None), 0)
        made = np.empty((n, self.config.n_embd), np.float32)
        self._step(n).run(
            thread_pool(None),
            None,
            inputs,
            at.astype(np.int32),
            seen.astype(np.int64),
            seen,
            *lists,
            lengths[which].astype(np.int64),
            None,
            np.arange(n, dtype=np.int64),
            made,
            adapted=self.adapters.rows([chosen] * n),
            **sees,
        )
        self.weights.mapped.check()
        self.weights.check.raise_found(made)
        return (made[i:j] for i, j in pairwise(ends.tolist()))

    def _inputs(
        self,
        ids: Int64s,
        at: Int64s,
        second: Sequence[int],
        which: Int64s,
    ) -> Floats:
        """Embeddings of tokens, with the vectors of their positions and segments added, float32 [n, n_embd]."""
        made = _rows(self.embedding.matrix, ids) * np.float32(self.embedding_scale)
        if self.token_types is not None:
            segment = (at >= np.array(second)[which]) & (len(self.token_types) > 1)
            made += self.token_types[segment.astype(np.int64)]
        if self._table is not None:
            made += _rows(self._table.matrix, at)
        return made

    def _step(self, n: int) -> _native.DecoderStep:
        """The native step with room for the keys and values of ``n`` tokens, which all layers use in turn."""
        made = self._made
        if made is not None and made[1] != os.getpid():
            inherited.append(made)
            made = None
        if made is None or made[0] < n:
            cells = 1 << (max(n, 64) - 1).bit_length()
            step = self.step()
            sides: dict[tuple[int, int], _native.CacheMemory] = {}
            for block in self.blocks:
                pair = []
                for side, dim in enumerate((block.head_dim, block.head_dim_v)):
                    heads = block.n_kv_heads
                    if (side, heads * dim) not in sides:
                        memory = np.zeros(cells * heads * dim * 4, np.uint8)
                        sides[side, heads * dim] = _native.CacheMemory(
                            memory, "F32", cells, heads, dim, False, 0
                        )
                    pair.append(sides[side, heads * dim])
                step.add_attention(block, *pair)
            self.adapt(step)
            self._made = made = cells, os.getpid(), step
        return made[2]


def _rows(matrix: _native.StoredMatrix, rows: Int64s) -> Floats:
    made = np.empty((len(rows), matrix.shape[1]), np.float32)
    _native.read_rows(thread_pool(None), matrix, rows, made)
    return made


class _NoStep(Step):
    """The step of an encoder over a cache: there is none."""

    def run(self, *given: Any, **named: Any) -> Any:
        raise no_texts("decode")

    def joined(self, *given: Any, **named: Any) -> Any:
        raise no_texts("decode")
