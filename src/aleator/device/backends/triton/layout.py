"""What the kernels of device chains are given, by name.

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
    """One row's candidates, in a kernel: pointers to the beginnings of what belongs to the row."""

    logits: Tensor
    words: Tensor
    tiles: Tensor
    table_ids: Tensor
    table_logits: Tensor


@cache
def _group(name: str, fields: tuple[str, ...]) -> type[tuple[Tensor, ...]]:
    return namedtuple(name, fields)


def named(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Tensors as a group whose fields have their names."""
    return _group(name, tuple(tensors))(*tensors.values())
