"""Rows of a context for whole texts: several texts in one batch, equal beginnings computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass
from aleator.generate.batch import Batch
from aleator.generate.context import Context

ROWS_BYTES = 2**26
"""Rows that are held at once, in bytes."""


@dataclass(frozen=True)
class Wanted:
    """A text, and which of its tokens' rows are wanted.

    Attributes:
        tokens: The text, at least one token.
        first: Rows of the tokens from this one on are wanted; 0 for all.
    """

    tokens: tuple[int, ...]
    first: int = 0


def rows_at_once(width: int) -> int:
    """How many rows of so many numbers may be held at once; 8 at least."""
    return max(8, ROWS_BYTES // (4 * width))


def groups(texts: Sequence[Wanted], n_seq_max: int, n_cells: int) -> Iterator[range]:
    """Texts to compute together: at most so many, which fit into so many cells, or one alone."""
    start, cells = 0, 0
    for i, text in enumerate(texts):
        full = i - start == n_seq_max or cells + len(text.tokens) > n_cells
        if i > start and full:
            yield range(start, i)
            start, cells = i, 0
        cells += len(text.tokens)
    if len(texts) > start:
        yield range(start, len(texts))


def rows_of(
    context: Context, texts: Sequence[Wanted]
) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
    """Compute texts, each as a sequence of an empty context, which is empty again afterwards.

    Args:
        context: Has a sequence for each text, and a cell for each of their tokens.
        texts: What to compute.

    Yields:
        Text, token and its row [n]: of each text in order.
    """
    width = max(context.n_vocab, context.decoder.config.n_embd)
    step = max(8, min(context.n_ubatch, rows_at_once(width)))
    leaders: dict[tuple[int, ...], int] = {}
    work: list[tuple[int, int]] = []
    copies: list[tuple[int, int, int]] = []
    for i, text in enumerate(texts):
        beginning = text.tokens[: text.first]
        leader = leaders.setdefault(beginning, i)
        if leader != i:
            copies.append((leader, i, len(beginning)))
    beginnings = [(i, at) for i in leaders.values() for at in range(texts[i].first)]
    work = [(i, at) for i, text in enumerate(texts) for at in range(text.first, len(text.tokens))]
    try:
        for part in _parts(beginnings, step):
            context.decode(_batch(texts, part, False))
        for leader, i, n in copies:
            if n:
                context.cache.seq_cp(leader, i, 0, n)
        for part in _parts(work, step):
            rows = np.asarray(context.decode(_batch(texts, part, True)))
            for (i, at), row in zip(part, rows, strict=True):
                yield i, at, row
    finally:
        for i in range(len(texts)):
            context.cache.seq_rm(i, -1, -1)


def _parts(work: list[tuple[int, int]], step: int) -> Iterator[list[tuple[int, int]]]:
    items = iter(work)
    while part := list(islice(items, step)):
        yield part


def _batch(texts: Sequence[Wanted], part: list[tuple[int, int]], wanted: bool) -> Batch:
    batch = Batch()
    for i, at in part:
        batch.add(texts[i].tokens[at], at, [i], logits=wanted)
    return batch
