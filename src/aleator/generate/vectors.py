"""Vectors of texts: hidden states, pooled; and what a score is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from aleator.core.arrays import Floats
from aleator.generate.context import Context
from aleator.generate.scores import ScoredText, rows_of

POOLING = ("mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len")
"""How the hidden states of a text become its vector: their mean, the first, the last, the largest numbers,
the mean in which the nth one counts n times, or their sum divided by the square root of their number."""
_ONE = {"cls": 0, "last": -1}


def pooled(states: Floats, pooling: str) -> Floats:
    """Pool the hidden states of a text [n, n_embd]: float64 [n_embd]; with "none" all of them, as they are."""
    if pooling == "none":
        return states
    n = len(states)
    if pooling in _ONE:
        made: Floats = states[_ONE[pooling]].astype(np.float64)
    elif pooling == "max":
        made = states.max(axis=0).astype(np.float64)
    elif pooling == "weightedmean":
        made = (states * np.arange(1.0, n + 1)[:, None]).sum(axis=0) / _divisor(pooling, n)
    else:
        made = states.sum(axis=0, dtype=np.float64) / _divisor(pooling, n)
    return made


def _divisor(pooling: str, n: int) -> float:
    """What the sum of a text's ``n`` hidden states is divided by."""
    return {"mean": n, "weightedmean": n * (n + 1) / 2, "mean_sqrt_len": math.sqrt(n)}.get(
        pooling, 1.0
    )


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
    if pooling == "max":
        sums -= np.inf
    kept: list[list[Floats]] = [[] for _ in texts]
    for i, at, row in rows_of(context, wanted):
        if pooling == "none":
            kept[i].append(row.copy())
        elif pooling == "max":
            np.maximum(sums[i], row, out=sums[i])
        else:
            by = at + 1.0 if pooling == "weightedmean" else 1.0
            sums[i] += row.astype(np.float64) * by
    if pooling == "none":
        yield from map(np.stack, kept)
    else:
        yield from sums / np.array([[_divisor(pooling, len(each))] for each in cut])


def normalised(vectors: Floats) -> Floats:
    """Vectors [..., n_embd] of length 1, float32; a zero vector stays as it is."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
    return (wide / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
