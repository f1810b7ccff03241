"""Vectors of texts: hidden states, pooled; and what a score is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aleator.core.arrays import Floats
from aleator.generate.context import Context
from aleator.generate.scores import ScoredText, rows_of

POOLING = ("mean", "cls", "last")
"""How the hidden states of a text become its vector: their mean, the first or the last one."""


def pooled(states: Floats, pooling: str) -> Floats:
    """Pool the hidden states of a text [n, n_embd]: float64 [n_embd]; with "none" all of them, as they are."""
    if pooling == "none":
        return states
    if pooling == "mean":
        mean: Floats = states.sum(axis=0, dtype=np.float64) / len(states)
        return mean
    one: Floats = states[0 if pooling == "cls" else -1].astype(np.float64)
    return one


def pooled_of_decoder(
    context: Context, texts: Sequence[tuple[int, ...]], pooling: str
) -> Iterator[Floats]:
    """Pool the hidden states of texts that a decoder computes, in order.

    The context is as for :func:`~aleator.generate.scores.rows_of`, with ``embeddings=True``.
    """
    last = pooling == "last"
    cut = [text[:1] if pooling == "cls" else text for text in texts]
    wanted = [ScoredText(text, len(text) - 1 if last else 0) for text in cut]
    sums = np.zeros((len(texts), context.decoder.config.n_embd), np.float64)
    kept: list[list[Floats]] = [[] for _ in texts]
    for i, _, row in rows_of(context, wanted):
        if pooling == "none":
            kept[i].append(row.copy())
        else:
            sums[i] += row
    if pooling == "none":
        yield from map(np.stack, kept)
    else:
        yield from sums / np.array([len(w.tokens) - w.first for w in wanted], np.float64)[:, None]


def normalised(vectors: Floats) -> Floats:
    """Vectors [..., n_embd] of length 1, float32; a zero vector stays as it is."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
    return (wide / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
