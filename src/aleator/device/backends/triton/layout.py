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
    """The rows that tokens are drawn from."""

    data: Tensor  # [B, V], columns side by side
    stride: int  # elements from row to row


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
    """What each row's chain asks for, written when the chain is set."""

    start: Tensor  # int32 [B], the first place that works on the list
    size: Tensor  # int32 [B], candidates of the list
    path: Tensor  # int32 [B], an index of ``rows.PATHS``
    # float32 [B], log2(e) over the temperature at which the row's mass is needed; 0: it is not
    scale: Tensor
    active: Tensor  # int32 [B, words], bits of the places whose samplers the chain has


class Work(NamedTuple):
    """What the kernels leave for each other."""

    maxima: Tensor  # float32 [B, tiles], delegates
    tiles: Tensor  # int32 [B, tiles], numbers of the tiles that are looked at
    masses: Tensor  # int64 [B, groups], mass of each group of tiles
    buffers: Tensor  # int64 [B, CAPACITY], keys of candidates before they are a list
    firsts: Tensor  # int64 [B], the key of the first candidate
    tops: Tensor  # float32 [B], the largest logit
    flags: Tensor  # int32 [B], see ``sparse``
    words: Tensor  # int32 [B, words], bits of the tokens outside the table that may be chosen
    table_ids: Tensor  # int32 [B, slots], tokens of the table, see ``sparse``
    table_logits: Tensor  # float32 [B, slots], their logits
    table_data: Tensor  # int32 [writers, B, slots, 2], what each writer of the chain does to them
    sums: Tensor  # float64 [B, groups], sums of exponentials for log-probabilities
    listed: Tensor  # int64 [B, 2, columns], keys and weights of what is left of a row
    paths: Tensor  # int64, how many rows took which of ``rows.PATHS``


class History(NamedTuple):
    """The rows' tokens: see :class:`aleator.device.device_sampler.DeviceStep`."""

    position: Tensor
    tokens: Tensor
    generated: Tensor
    length: Tensor


class Source(NamedTuple):
    """One row, in a kernel: pointers to the beginnings of what belongs to it, and what is known of it."""

    logits: Tensor  # [V], or probabilities
    words: Tensor  # bits of the tokens outside the table that may be chosen
    tiles: Tensor  # numbers of the tiles that are looked at, ascending
    table_ids: Tensor  # tokens of the table
    table_logits: Tensor  # their logits
    n_vocab: int  # tokens; 0 if none outside the table is a candidate
    top: float  # the largest value in canonical form
    infinite: bool  # whether there is a +inf


class Filters(NamedTuple):
    """What the operator is asked for."""

    top_k: Tensor  # int32 [B]
    top_p: Tensor  # [B]
    min_p: Tensor  # [B]
    limit: int  # the largest k that acts
    guess: int  # tiles in which a nucleus is looked for first, if more than ``FIRST_WINDOW``


class Noise(NamedTuple):
    """What the operator draws by."""

    q: Tensor  # float32 [B, V], of the race
    stride: int  # elements from row to row
    eps: float  # added to each
    seeds: Tensor  # int64 [B]
    positions: Tensor  # int64 [B]


class Scratch(NamedTuple):
    """What the operator's kernels leave for each other."""

    maxima: Tensor  # float32 [B, tiles], delegates
    masses: Tensor  # int64 [B, groups], mass of each group of tiles; 0 where it is not needed
    tiles: Tensor  # int32 [B, tiles], numbers of the tiles that are looked at
    buffers: Tensor  # int64 [B, LARGE], keys of the first values
    long: Tensor  # int64 [B, 2, V], keys of lists that are too long for that
    last: Tensor  # int64 [B], the last key of what is kept
    tops: Tensor  # float32 [B], the largest value; +inf if it is one
    races: Tensor  # int64 [B], the best of rows that nothing filters
    paths: Tensor  # int64, how many rows took which of ``top_k_top_p_sample.PATHS``


class Listed(NamedTuple):
    """What the operator gives back."""

    tokens: Tensor  # int64 [B]
    ids: Tensor  # int64 [B, V], the list
    probs: Tensor  # float32 [B, V], its probabilities


@cache
def _group(name: str, fields: tuple[str, ...]) -> type[tuple[Tensor, ...]]:
    return namedtuple(name, fields)


def named(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Tensors as a group whose fields have their names."""
    return _group(name, tuple(tensors))(*tensors.values())
