"""Where the tokens of a batch will go: rules checked, micro-batches cut, cells chosen, nothing changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from aleator.cache.split import split
from aleator.core.errors import CacheFull, InvalidBatch

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache


class Tokens(Protocol):
    """What the cache needs of a batch; :class:`aleator.generate.Batch` is one.

    Attributes:
        positions: each token's position; None continues its sequence.
        sequences: each token's sequence ids; it attends as the first.

    """

    positions: list[int | None]
    sequences: list[Sequence[int]]

    def wanted(self) -> list[int]:
        """Indices of the tokens whose logits are wanted, ascending."""


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """One micro-batch of a plan.

    Attributes:
        tokens: batch indices of its T tokens: a slice, or int64 [T].
        slots: int64 [T], the cells they will have.
        wanted: int64, which of its tokens' logits are wanted, counted from its start.

    """

    tokens: slice | npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What :meth:`KVCache.plan` decided about a batch of T tokens.

    Attributes:
        positions: int32 [T].
        seqs: int32 [T], each token's first sequence: the one it attends as.
        owners: uint64 [T, words], all its sequences as bits.
        parts: the micro-batches, in the order in which they are computed.
        version: of the cells that the plan was made for; the plan is void after any change.
        rows: int64, for each wanted token in batch order its row in the concatenated parts; None: as they come.
        causal: whether a token sees only positions up to its own.

    """

    positions: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int32]
    owners: npt.NDArray[np.uint64]
    parts: tuple[Part, ...]
    version: int
    rows: npt.NDArray[np.int64] | None
    causal: bool

    def __len__(self) -> int:
        """How many tokens, and so cells."""
        return len(self.positions)


def make_plan(
    cache: KVCache,
    batch: Tokens,
    *,
    n_ubatch: int,
    n_batch: int,
    rule: str,
    keep_tail: int,
    causal: bool,
) -> Plan:
    """See :meth:`KVCache.plan`."""
    cells, n = cache.cells, len(batch.positions)
    if n == 0:
        raise InvalidBatch(-1, "the batch is empty: add at least one token")
    if not causal and n > n_ubatch:
        raise InvalidBatch(
            -1,
            f"{n} tokens that see each other must be computed at once, and n_ubatch is {n_ubatch}: "
            "pass fewer, or create the context with a larger n_ubatch",
        )
    positions = np.array(checked_positions(batch, cells, cache.n_seq_max), dtype=np.int32)
    seqs = np.array([s[0] for s in batch.sequences], dtype=np.int32)
    owners = owner_bits(batch, cells.words, cache.n_seq_max)
    wanted = np.array(batch.wanted(), dtype=np.int64)
    version = cells.version
    if n <= n_ubatch and n <= n_batch and rule != "sequence" and cells.n_streams == 1:
        slots = cells.find(n, cache.contiguous)
        if len(slots) == n and rule == "simple":
            part = Part(slice(0, n), slots, wanted)
            return Plan(positions, seqs, owners, (part,), version, None, causal)
    tokens = [
        [start + i for i in part]
        for start in range(0, n, n_batch)
        for part in split(
            batch.sequences[start : start + n_batch],
            n_ubatch,
            rule,
            sequential=cells.n_streams > 1,
            keep_tail=keep_tail,
        )
    ]
    parts, order = [], []
    with cache.step() as trial:  # taken back below
        trial.make_room(n)
        is_wanted = np.zeros(n, np.bool_)
        is_wanted[wanted] = True
        for members in tokens:
            index = np.array(members, np.int64)
            slots = trial.find(positions[index], owners[index])
            parts.append(Part(_as_slice(index), slots, np.flatnonzero(is_wanted[index])))
            order.append(index[is_wanted[index]])
        trial.cancel()
    flat = np.concatenate(order)
    rows = None if bool((flat[1:] > flat[:-1]).all()) else np.argsort(flat)
    return Plan(positions, seqs, owners, tuple(parts), version, rows, causal)


def owner_bits(batch: Tokens, words: int, n_seq_max: int) -> npt.NDArray[np.uint64]:
    """The sequences of each token as bits, uint64 [T, words]."""
    owners = np.zeros((len(batch.sequences), words), dtype=np.uint64)
    if n_seq_max == 1:
        owners[:, 0] = 1
    else:
        for i, ids in enumerate(batch.sequences):
            for s in ids:
                owners[i, s // 64] |= np.uint64(1 << (s % 64))
    return owners


def full(cache: KVCache, needed: int, free: int, evictable: int = 0) -> CacheFull:
    """The error for tokens that find no cells, saying why where cells are free."""
    if needed <= free + evictable:
        why = "in a row" if cache.contiguous else "in the share that each sequence has to itself"
        return CacheFull(
            needed,
            free,
            evictable,
            f"the KV cache has {free} free cells, but not {needed} {why}: "
            + ("defrag() it" if cache.contiguous else "remove or shift the sequence"),
        )
    return CacheFull(needed, free, evictable)


def _as_slice(index: npt.NDArray[np.int64]) -> slice | npt.NDArray[np.int64]:
    first, n = int(index[0]), len(index)
    unbroken = int(index[-1]) - first == n - 1 and bool((np.diff(index) == 1).all())
    return slice(first, first + n) if unbroken else index


class Places(Protocol):
    """What is known of sequences: :class:`Cells`, or a recurrent cache."""

    @property
    def n_streams(self) -> int:
        """Parts that sequences have to themselves."""

    def seq_pos_max(self, seq: int) -> int:
        """Its highest position, or -1."""

    def same_cells(self, a: int, b: int) -> bool:
        """Whether two sequences hold the same."""


def checked_positions(batch: Tokens, cells: Places, n_seq_max: int) -> list[int]:
    """Positions with None filled in; raises InvalidBatch unless every sequence simply continues."""
    last: dict[int, int] = {}
    groups: set[frozenset[int]] = set()
    previous: Sequence[int] | None = None
    positions: list[int] = []
    for i, (given, seqs) in enumerate(zip(batch.positions, batch.sequences, strict=True)):
        if seqs != previous:
            _check_sequences(i, seqs, groups, cells, n_seq_max)
            previous = seqs
        pos = _position(i, given, seqs[0], last, cells)
        for s in seqs[1:]:
            _position(i, pos, s, last, cells)
        for s in seqs:
            last[s] = pos
        positions.append(pos)
    return positions


def _position(i: int, pos: int | None, s: int, last: dict[int, int], cells: Places) -> int:
    """The position of token ``i`` in sequence ``s``: the next, or within a batch the same again."""
    before = last.get(s)
    if before is None:
        before = cells.seq_pos_max(s)
        if before >= 0 and pos is not None and pos != before + 1:
            raise InvalidBatch(
                i,
                f"position {pos} does not continue sequence {s}, whose last position is {before}: "
                f"pass {before + 1}, or remove positions with seq_rm first",
            )
    elif pos is not None and pos < before:
        raise InvalidBatch(i, f"position {pos} of sequence {s} comes after {before} in the batch")
    elif pos is not None and pos > before + 1:
        raise InvalidBatch(i, f"position {pos} of sequence {s} leaves a gap after {before}")
    if pos is None:
        pos = before + 1
    if not 0 <= pos < 2**31 - 1:
        raise InvalidBatch(i, f"position {pos} must lie in [0, 2^31 - 1)")
    return pos


def _check_sequences(
    i: int,
    seqs: Sequence[int],
    groups: set[frozenset[int]],
    cells: Places,
    n_seq_max: int,
) -> None:
    """Ids in range, and sequences that share a token still hold the same text.

    A token of several sequences attends as the first one, so the others must see the same cells.
    (llama.cpp compares only their lowest and highest positions.)
    """
    if not seqs:
        raise InvalidBatch(i, "the token belongs to no sequence")
    for s in seqs:
        if not 0 <= s < n_seq_max:
            raise InvalidBatch(
                i,
                f"sequence {s} must lie in [0, {n_seq_max}): create the context with a "
                "larger n_seq_max for more sequences",
            )
    group = frozenset(seqs)
    if len(group) > 1:
        if cells.n_streams > 1:
            raise InvalidBatch(
                i,
                f"sequences {sorted(group)} share the token, but with policy='streams' each has cells "
                "of its own: use policy='unified'",
            )
        for s in seqs[1:]:
            if not cells.same_cells(seqs[0], s):
                raise InvalidBatch(
                    i,
                    f"sequences {seqs[0]} and {s} share the token but not the tokens before it: "
                    "give each its own token, or copy one with seq_cp",
                )
        for other in groups:
            if not (group <= other or group.isdisjoint(other)):
                raise InvalidBatch(
                    i,
                    f"sequences {sorted(group)} share the token, but {sorted(other)} had one of "
                    "their own earlier in the batch",
                )
    groups.add(group)
