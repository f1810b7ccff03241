"""Where the tokens of a batch will go: rules checked, micro-batches cut, cells chosen, nothing changed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from aleator._native import Cells
from aleator.cache.cells.batch_rules import Tokens, checked_positions, checked_sections, owner_bits
from aleator.cache.cells.split import Cuts, split
from aleator.cache.journal import Journal
from aleator.core.errors import CacheFull, InvalidBatch
from aleator.core.records import dataclass


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """One micro-batch of a plan.

    Attributes:
        tokens: batch indices of its T tokens: a slice, or int64 [T].
        cell_ids: int64 [T], the cells they will have.
        wanted: int64, which of its tokens' logits are wanted, counted from its start.

    """

    tokens: slice | npt.NDArray[np.int64]
    cell_ids: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What :meth:`KVCache.plan` decided about a batch of T tokens.

    Attributes:
        positions: int32 [T].
        seqs: int32 [T], the sequence that each token attends as: its first, or last with ``causal=False``.
        owners: uint64 [T, words], all its sequences as bits.
        parts: the micro-batches, in the order in which they are computed.
        version: of the cells that the plan was made for; the plan is void after any change.
        rows: int64, for each wanted token in batch order its row in the concatenated parts; None: as they come.
        causal: whether a token sees only positions up to its own.
        sections: int32 [T, 4], (t, y, x, z) of each token, t as in ``positions``; None where a position is
            one number.
        extras: int32 [T, 3], what the cells keep of them: y, x and token id, -1 for an embedding.

    """

    positions: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int32]
    owners: npt.NDArray[np.uint64]
    parts: tuple[Part, ...]
    version: int
    rows: npt.NDArray[np.int64] | None
    causal: bool
    sections: npt.NDArray[np.int32] | None = None
    extras: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """How many tokens, and so cells."""
        return len(self.positions)


class Planned(Protocol):
    """Cells that a plan is made for.

    Attributes:
        cells: the bookkeeping.
        journal: what a trial of the placement is taken back with.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        n_pos_per_embd: 4 if a token has positions (t, y, x, z), else 1.
        contiguous: whether the tokens of a micro-batch must lie in a row.

    """

    cells: Cells
    journal: Journal
    n_seq_max: int
    n_pos_per_embd: int
    contiguous: bool

    def make_room(self, needed: int) -> None:
        """Free cells until ``needed`` are free, or raise CacheFull."""

    def find(
        self,
        positions: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        extras: npt.NDArray[np.int32] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Give tokens cells and return them, or raise CacheFull."""


def make_plan(pool: Planned, batch: Tokens, cuts: Cuts) -> Plan:
    """See :meth:`aleator.cache.KVCache.plan`."""
    cells, n = pool.cells, len(batch.positions)
    if n == 0:
        raise InvalidBatch(-1, "the batch is empty: add at least one token")
    if not cuts.causal and n > cuts.n_ubatch:
        raise InvalidBatch(
            -1,
            f"{n} tokens that see each other must be computed at once, and n_ubatch is {cuts.n_ubatch}: "
            "pass fewer, or create the context with a larger n_ubatch",
        )
    sections = extras = None
    if pool.n_pos_per_embd == 1:
        given = checked_positions(batch, cells, pool.n_seq_max)
    else:
        given, sections = checked_sections(batch, cells, pool.n_seq_max)
        extras = np.full((n, 3), -1, np.int32)
        extras[:, :2] = sections[:, 1:3]
        if len(batch.tokens):
            extras[:, 2] = batch.tokens
    positions = np.array(given, dtype=np.int32)
    # Only where later tokens are seen does it matter which, and llama.cpp takes the last.
    seqs = np.array([s[0 if cuts.causal else -1] for s in batch.sequences], dtype=np.int32)
    owners = owner_bits(batch, cells.words, pool.n_seq_max)
    wanted = np.array(batch.wanted(), dtype=np.int64)
    version = cells.version
    if n <= min(cuts.n_ubatch, cuts.n_batch) and cuts.rule != "sequence" and cells.n_streams == 1:
        cell_ids = cells.find(n, pool.contiguous)
        if len(cell_ids) == n and cuts.rule == "simple":
            part = Part(slice(0, n), cell_ids, wanted)
            return Plan(
                positions, seqs, owners, (part,), version, None, cuts.causal, sections, extras
            )
    tokens = [
        [start + i for i in part]
        for start in range(0, n, cuts.n_batch)
        for part in split(
            batch.sequences[start : start + cuts.n_batch],
            cuts.n_ubatch,
            cuts.rule,
            sequential=cells.n_streams > 1,
            keep_tail=cuts.keep_tail,
        )
    ]
    is_wanted = np.zeros(n, np.bool_)
    is_wanted[wanted] = True

    def trial() -> tuple[list[Part], list[npt.NDArray[np.int64]]]:
        parts, order = [], []
        pool.make_room(n)
        for members in tokens:
            index = np.array(members, np.int64)
            cell_ids = pool.find(
                positions[index], owners[index], None if extras is None else extras[index]
            )
            parts.append(Part(_as_slice(index), cell_ids, np.flatnonzero(is_wanted[index])))
            order.append(index[is_wanted[index]])
        return parts, order

    parts, order = pool.journal.attempt(trial)  # nothing of it stays
    flat = np.concatenate(order)
    rows = None if bool((flat[1:] > flat[:-1]).all()) else np.argsort(flat)
    return Plan(positions, seqs, owners, tuple(parts), version, rows, cuts.causal, sections, extras)


def full(contiguous: bool, needed: int, free: int, evictable: int = 0) -> CacheFull:
    """The error for tokens that find no cells, saying why where cells are free."""
    if needed <= free + evictable:
        why = "in a row" if contiguous else "in the share that each sequence has to itself"
        return CacheFull(
            needed,
            free,
            evictable,
            f"the KV cache has {free} free cells, but not {needed} {why}: "
            + ("defrag() it" if contiguous else "remove or shift the sequence"),
        )
    return CacheFull(needed, free, evictable)


def _as_slice(index: npt.NDArray[np.int64]) -> slice | npt.NDArray[np.int64]:
    first, n = int(index[0]), len(index)
    unbroken = int(index[-1]) - first == n - 1 and bool((np.diff(index) == 1).all())
    return slice(first, first + n) if unbroken else index
