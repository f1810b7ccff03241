"""Batches: the rules they must obey, how they are cut into micro-batches, and where their tokens go.

There are three rules for cutting, as in llama.cpp's batch allocator.  Each takes the tokens' sequences in
batch order and returns lists of batch indices; within a sequence the batch order is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from aleator.cache.options import END
from aleator.core.arrays import Bytes, Int32s, Int64s, UInt64s
from aleator.core.errors import InvalidBatch, ParameterError
from aleator.core.integers import exact, first_inexact
from aleator.core.records import dataclass

Position = int | tuple[int, ...] | None


class Tokens(Protocol):
    """A batch as the cache sees it, such as :class:`aleator.generate.Batch`.

    Attributes:
        tokens: their ids; empty if they are embeddings.
        positions: each token's position; None continues its sequence.  An embedding may also have (t, y, x, z)
            if the cache has four positions per token.
        sequences: each token's sequence ids; it attends as the first (the last, if it sees later tokens).
    """

    tokens: list[int]
    positions: list[Position]
    sequences: list[Sequence[int]]

    def outputs(self) -> list[int]:
        """Indices of the tokens whose logits are computed, ascending."""


class Places(Protocol):
    """The state of sequences that checks need: :class:`Cells`, or a recurrent cache."""

    @property
    def n_streams(self) -> int:
        """The number of streams: parts of the cache that sequences do not share."""

    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, or -1."""

    def same_cells(self, a: int, b: int) -> bool:
        """Whether two sequences hold the same cells or states."""


def checked_positions(
    positions: Sequence[Position],
    sequences: Sequence[Sequence[int]],
    cells: Places,
    n_seq_max: int,
    least_step: int | None = None,
) -> list[int]:
    """Fill in positions that are None; InvalidBatch names the first token that does not continue its sequence.

    ``least_step`` is the least distance of the first position from the last in the cache; gaps are allowed.
    With None each position must be the next one, without gaps.
    """
    last: dict[int, int] = {}
    groups: set[frozenset[int]] = set()
    previous: Sequence[int] | None = None
    made: list[int] = []
    for i, (given, seqs) in enumerate(zip(positions, sequences, strict=True)):
        if seqs != previous:
            _check_sequences(i, seqs, groups, cells, n_seq_max)
            previous = seqs
        pos = _position(i, given, seqs[0], last, cells, least_step)
        for s in seqs[1:]:
            _position(i, pos, s, last, cells, least_step)
        for s in seqs:
            last[s] = pos
        made.append(pos)
    return made


def _position(
    i: int, pos: Position, s: int, last: dict[int, int], cells: Places, least_step: int | None
) -> int:
    """The position of token ``i`` in sequence ``s``: the next, or the same again within a batch."""
    if isinstance(pos, tuple):
        raise InvalidBatch(i, f"position {pos}: this model has one number per position")
    if pos is not None and type(pos) is not int and exact(pos) is None:
        raise InvalidBatch(i, f"position {pos!r} is not an integer")
    in_batch = s in last
    before = last[s] if in_batch else cells.seq_pos_max(s)
    if pos is None:
        pos = before + 1
    elif in_batch and pos < before:
        raise InvalidBatch(i, f"position {pos} of sequence {s} comes after {before} in the batch")
    elif in_batch and pos > before + 1 and least_step is None:
        raise InvalidBatch(i, f"position {pos} of sequence {s} leaves a gap after {before}")
    elif not in_batch and before >= 0 and least_step is None and pos != before + 1:
        raise InvalidBatch(
            i,
            f"position {pos} does not continue sequence {s}, whose last position is {before}: "
            f"pass {before + 1}, or remove positions with seq_rm first",
        )
    elif not in_batch and before >= 0 and least_step is not None and pos < before + least_step:
        raise InvalidBatch(
            i,
            f"position {pos} lies behind sequence {s}, whose last position is {before}: pass at least "
            f"{before + least_step}, or remove positions with seq_rm first",
        )
    if not 0 <= pos < END:
        raise InvalidBatch(i, f"position {pos} must lie in [0, 2^31 - 1)")
    return pos


def checked_sections(batch: Tokens, cells: Places, n_seq_max: int) -> tuple[list[int], Int32s]:
    """The positions of tokens, and their four M-RoPE positions, int32 [T, 4], by llama.cpp's rules.

    A text token at p has (p, p, p, 0) and comes after all tokens in the cache; embeddings give (t, y, x, z)
    and may begin at the last t.  Both may leave gaps; t never decreases within a batch, and is not below 0
    (llama.cpp accepts -1).
    """
    firsts: list[Position] = []
    for i, pos in enumerate(batch.positions):
        if isinstance(pos, tuple):
            if len(batch.tokens):
                raise InvalidBatch(
                    i, f"position {pos} of a token: only embeddings have four, pass one"
                )
            if len(pos) != 4 or not all(0 <= p < END for p in pos):
                raise InvalidBatch(i, f"position {pos} must be (t, y, x, z), each in [0, 2^31 - 1)")
        firsts.append(pos[0] if isinstance(pos, tuple) else pos)
    least_step = 1 if len(batch.tokens) else 0
    positions = checked_positions(firsts, batch.sequences, cells, n_seq_max, least_step)
    given = zip(positions, batch.positions, strict=True)
    sections = [pos if isinstance(pos, tuple) else (p, p, p, 0) for p, pos in given]
    return positions, np.array(sections, np.int32).reshape(-1, 4)


def _check_sequences(
    i: int, seqs: Sequence[int], groups: set[frozenset[int]], cells: Places, n_seq_max: int
) -> None:
    """Require ids in range, and sequences that share a token to hold the same cells so far.

    A token of several sequences attends as one of them, so the others must see the same cells.
    (llama.cpp compares only their lowest and highest positions, and gets {0, 1, 2}, {0, 1}, {1, 2} wrong.)
    """
    if not seqs:
        raise InvalidBatch(i, "the token belongs to no sequence")
    wrong = first_inexact(list(seqs))
    if wrong is not None:
        raise InvalidBatch(i, f"sequence {seqs[wrong]!r} is not an integer")
    for s in seqs:
        if not 0 <= s < n_seq_max:
            raise InvalidBatch(
                i,
                f"sequence {s} must lie in [0, {n_seq_max}): create the context with a "
                "larger n_seq_max for more sequences",
            )
    group = frozenset(seqs)
    if len(group) < len(seqs):
        raise InvalidBatch(i, f"sequences {list(seqs)} name one twice")
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


def owner_bits(batch: Tokens, words: int, n_seq_max: int) -> UInt64s:
    """The sequences of each token as bits, uint64 [T, words]."""
    owners = np.zeros((len(batch.sequences), words), dtype=np.uint64)
    if n_seq_max == 1:
        owners[:, 0] = 1
    else:
        for i, ids in enumerate(batch.sequences):
            for s in ids:
                owners[i, s // 64] |= np.uint64(1 << (s % 64))
    return owners


def bits_of(owners: UInt64s) -> Bytes:
    """The owners of :func:`owner_bits` with a column of 0 or 1 per sequence: uint8 [T, 64 * words]."""
    words = np.ascontiguousarray(owners, "<u8")
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")


RULES = ("simple", "equal", "sequence")

Indices = list[int]


@dataclass(frozen=True)
class Cuts:
    """How a batch is cut into chunks of ``n_batch``, and these into micro-batches.

    The arguments are those of :meth:`aleator.cache.Cache.plan`.
    """

    n_ubatch: int
    n_batch: int
    rule: str = "simple"
    keep_tail: int = 0
    causal: bool = True


def split(
    sequences: Sequence[Sequence[int]],
    n_ubatch: int,
    rule: str = "simple",
    *,
    sequential: bool = False,
    keep_tail: int = 0,
) -> list[Indices]:
    """Cut a batch into micro-batches of at most ``n_ubatch`` tokens; return the batch indices of each.

    Args:
        sequences: each token's sequence ids.
        n_ubatch: tokens per micro-batch, 1 or more.
        rule: "simple" takes the next tokens in batch order; "equal" takes the same number from several
            sequences and groups them by sequence; "sequence" takes one sequence at a time.
        sequential: with "equal", the sequences of a micro-batch have consecutive ids, and each token has one.
        keep_tail: see :class:`Cuts`; less than ``n_ubatch``.
    """
    if n_ubatch < 1:
        raise ParameterError(f"n_ubatch must be 1 or more, not {n_ubatch}")
    if rule == "simple":
        n = len(sequences)
        return [list(range(i, min(i + n_ubatch, n))) for i in range(0, n, n_ubatch)]
    if rule == "sequence":
        return _by_sequence(sequences, n_ubatch)
    if rule != "equal":
        raise ParameterError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    if not 0 <= keep_tail < n_ubatch:
        raise ParameterError(f"keep_tail must lie in [0, n_ubatch = {n_ubatch}), not {keep_tail}")
    if sequential and any(len(set(s)) > 1 for s in sequences):
        raise ParameterError(
            "sequential", "a token of several sequences cannot be split by sequence"
        )
    left: dict[frozenset[int], Indices] = {}
    for i, seqs in enumerate(sequences):
        left.setdefault(frozenset(seqs), []).append(i)
    parts = []
    while left:
        parts.append(_equal(left, n_ubatch, sequential, keep_tail))
    return parts


def _equal(
    left: dict[frozenset[int], Indices], n_ubatch: int, sequential: bool, keep_tail: int
) -> Indices:
    """Take one micro-batch from the remaining tokens."""
    chosen: list[frozenset[int]] = []
    for group in sorted(left, key=lambda g: left[g][0]):
        if len(chosen) == n_ubatch:
            break
        follows = not sequential or not chosen or min(group) == min(chosen[-1]) + 1
        if follows and all(group.isdisjoint(other) for other in chosen):
            chosen.append(group)
    n = min(n_ubatch // len(chosen), min(len(left[g]) for g in chosen))
    if keep_tail:
        good = 0
        while good < len(chosen) and (
            len(left[chosen[good]]) == n or len(left[chosen[good]]) - n >= keep_tail
        ):
            good += 1
        if good == 0:
            rest = len(left[chosen[0]])
            n, good = rest if rest <= n_ubatch else min(n, rest - keep_tail), 1
        chosen = chosen[:good]
    part: Indices = []
    for group in chosen:
        part += left[group][:n]
        left[group] = left[group][n:]
        if not left[group]:
            del left[group]
    return part


def _by_sequence(sequences: Sequence[Sequence[int]], n_ubatch: int) -> list[Indices]:
    groups = [frozenset(s) for s in sequences]
    todo = list(range(len(groups)))
    parts = []
    while todo:
        current = groups[todo[0]]
        part: Indices = []
        rest: Indices = []
        for i in todo:
            if len(part) < n_ubatch and groups[i] <= current:
                part.append(i)
                current = groups[i]
            else:
                rest.append(i)
        parts.append(part)
        todo = rest
    return parts


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """One micro-batch of a plan.

    Attributes:
        tokens: batch indices of its T tokens: a slice, or int64 [T].
        cell_ids: int64 [T], the cells that they get.
        outputs: int64, indices within the micro-batch of the tokens whose logits are computed.
    """

    tokens: slice | Int64s
    cell_ids: Int64s
    outputs: Int64s


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """The plan of :meth:`KVCache.plan` for a batch of T tokens.

    Attributes:
        positions: int32 [T].
        seqs: int32 [T], the sequence that each token attends as: its first, or last with ``causal=False``.
        owners: uint64 [T, words], all its sequences as bits.
        parts: the micro-batches, in the order in which they are computed.
        version: version of the cells that the plan was made for; any change makes the plan void.
        rows: int64, for each output in batch order its row in the concatenated parts; None: same order.
        causal: whether a token sees only positions up to its own.
        sections: int32 [T, 4], (t, y, x, z) of each token, t as in ``positions``; None if a position is one
            number.
        extras: int32 [T, 3], what the cells store: y, x and token id, -1 for an embedding.
    """

    positions: Int32s
    seqs: Int32s
    owners: UInt64s
    parts: tuple[Part, ...]
    version: int
    rows: Int64s | None
    causal: bool
    sections: Int32s | None = None
    extras: Int32s | None = None

    def __len__(self) -> int:
        """The number of tokens, and so of cells."""
        return len(self.positions)
