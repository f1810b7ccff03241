"""What the kernels of device chains and of the operator are given, by name.

Each group is declared here once.  A launch passes whole groups, a kernel names the field it means, and the
tests compile the kernels for the types that the groups of a real chain have.  Fields must not be called
``values``, ``type``, ``count`` or ``index``: Triton's tuples and Python's have attributes of these names.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from torch import Tensor


class Logits(NamedTuple):
    """The rows that tokens are drawn from.

    Attributes:
        data: [B, V], columns side by side.
        stride: elements from row to row.

    """

    data: Tensor
    stride: int


class Sizes(NamedTuple):
    """Numbers that are the same in every step."""

    n_vocab: int
    n_tiles: int
    n_words: int
    n_groups: int
    max_batch: int
    max_tokens: int


class Widths(NamedTuple):
    """How long the operator's rows are."""

    n_vocab: int
    n_tiles: int
    n_groups: int


class Wanted(NamedTuple):
    """What each row's chain asks for, written when the chain is set.

    Attributes:
        start: int32 [B], the first place that works on the list.
        size: int32 [B], candidates of the list.
        path: int32 [B], an index of ``rows.PATHS``.
        scale: float32 [B], log2(e) over the temperature at which the row's mass is needed; 0: it is not.

    """

    start: Tensor
    size: Tensor
    path: Tensor
    scale: Tensor


class Work(NamedTuple):
    """What the kernels leave for each other.

    Attributes:
        maxima: float32 [B, tiles], delegates.
        tiles: int32 [B, tiles], numbers of the tiles that are looked at.
        masses: int64 [B, groups], mass of each group of tiles.
        buffers: int64 [B, CAPACITY], keys of candidates before they are a list.
        firsts: int64 [B], the key of the first candidate.
        tops: float32 [B], the largest logit.
        flags: int32 [B], see ``sparse``.
        words: int32 [B, words], bits of the tokens outside the table that may be chosen.
        table_ids: int32 [B, slots], tokens of the table, see ``sparse``.
        table_logits: float32 [B, slots], their logits.
        table_data: int32 [writers, B, slots, 2], what each writer of the chain does to them.
        sums: float64 [B, groups], sums of exponentials for log-probabilities.
        listed: int64 [B, 2, columns], keys and weights of what is left of a row.
        paths: int64, how many rows took which of ``rows.PATHS``.

    """

    maxima: Tensor
    tiles: Tensor
    masses: Tensor
    buffers: Tensor
    firsts: Tensor
    tops: Tensor
    flags: Tensor
    words: Tensor
    table_ids: Tensor
    table_logits: Tensor
    table_data: Tensor
    sums: Tensor
    listed: Tensor
    paths: Tensor


class History(NamedTuple):
    """The rows' tokens: see :class:`aleator.device.places.DeviceStep`."""

    position: Tensor
    tokens: Tensor
    generated: Tensor
    length: Tensor


class Source(NamedTuple):
    """One row, in a kernel: pointers to the beginnings of what belongs to it, and what is known of it.

    Attributes:
        logits: [V], or probabilities.
        words: bits of the tokens outside the table that may be chosen.
        tiles: numbers of the tiles that are looked at, ascending.
        table_ids: tokens of the table.
        table_logits: their logits.
        n_vocab: tokens; 0 if none outside the table is a candidate.
        top: the largest value in canonical form.
        infinite: whether there is a +inf.

    """

    logits: Tensor
    words: Tensor
    tiles: Tensor
    table_ids: Tensor
    table_logits: Tensor
    n_vocab: int
    top: float
    infinite: bool


class Filters(NamedTuple):
    """What the operator is asked for.

    Attributes:
        top_k: int32 [B].
        top_p: [B].
        min_p: [B].
        limit: the largest k that acts.
        guess: tiles in which a nucleus is looked for first, if more than ``FIRST_WINDOW``.

    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    limit: int
    guess: int


class Noise(NamedTuple):
    """What the operator draws by.

    Attributes:
        q: float32 [B, V], of the race.
        stride: elements from row to row.
        eps: added to each.
        seeds: int64 [B].
        positions: int64 [B].

    """

    q: Tensor
    stride: int
    eps: float
    seeds: Tensor
    positions: Tensor


class Scratch(NamedTuple):
    """What the operator's kernels leave for each other.

    Attributes:
        maxima: float32 [B, tiles], delegates.
        masses: int64 [B, groups], mass of each group of tiles; 0 where it is not needed.
        tiles: int32 [B, tiles], numbers of the tiles that are looked at.
        buffers: int64 [B, LARGE], keys of the first values.
        long: int64 [B, 2, V], keys of lists that are too long for that.
        last: int64 [B], the last key of what is kept.
        tops: float32 [B], the largest value; +inf if it is one.
        races: int64 [B], the best of rows that nothing filters.
        paths: int64, how many rows took which of ``top_k_top_p_sample.PATHS``.

    """

    maxima: Tensor
    masses: Tensor
    tiles: Tensor
    buffers: Tensor
    long: Tensor
    last: Tensor
    tops: Tensor
    races: Tensor
    paths: Tensor


class Listed(NamedTuple):
    """What the operator gives back.

    Attributes:
        tokens: int64 [B].
        ids: int64 [B, V], the list.
        probs: float32 [B, V], its probabilities.

    """

    tokens: Tensor
    ids: Tensor
    probs: Tensor


@cache
def _group(name: str, fields: tuple[str, ...]) -> type[tuple[Tensor, ...]]:
    return namedtuple(name, fields)


def named(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Tensors as a group whose fields have their names."""
    return _group(name, tuple(tensors))(*tensors.values())
