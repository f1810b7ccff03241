"""The rules that a batch must obey, and the positions that its tokens get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aleator.cache.arguments import END
from aleator.core.errors import InvalidBatch
from aleator.core.integers import exact, first_inexact

Position = int | tuple[int, ...] | None


class Tokens(Protocol):
    """What the cache needs of a batch; :class:`aleator.generate.Batch` is one.

    Attributes:
        tokens: their ids; empty if they are embeddings.
        positions: each token's position; None continues its sequence.  Of an embedding, where the cache has
            four positions per token, also (t, y, x, z).
        sequences: each token's sequence ids; it attends as the first (the last, if it sees later tokens).

    """

    tokens: list[int]
    positions: list[Position]
    sequences: list[Sequence[int]]

    def wanted(self) -> list[int]:
        """Indices of the tokens whose logits are wanted, ascending."""


class Places(Protocol):
    """What is known of sequences: :class:`Cells`, or a recurrent cache."""

    @property
    def n_streams(self) -> int:
        """Parts that sequences have to themselves."""

    def seq_pos_max(self, seq: int) -> int:
        """Its highest position, or -1."""

    def same_cells(self, a: int, b: int) -> bool:
        """Whether two sequences hold the same cells or states."""


def checked_positions(
    positions: Sequence[Position],
    sequences: Sequence[Sequence[int]],
    cells: Places,
    n_seq_max: int,
    least_step: int | None = None,
) -> list[int]:
    """Positions with None filled in; InvalidBatch, of a token, unless every sequence simply continues.

    ``least_step``: how far the first position must at least be behind the last in the cache, and gaps are
    allowed; None: it must be the next, and there must be none.
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
    """The position of token ``i`` in sequence ``s``: the next, or within a batch the same again."""
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


def checked_sections(
    batch: Tokens, cells: Places, n_seq_max: int
) -> tuple[list[int], npt.NDArray[np.int32]]:
    """The positions, and int32 [T, 4], of tokens that have four (M-RoPE), by llama.cpp's rules.

    A text's token at p lies at (p, p, p, 0) and comes after all that is there; embeddings say (t, y, x, z),
    and may begin at the last t.  Both may leave gaps; t never falls within a batch, and is not below 0
    (llama.cpp takes -1).
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
    """Ids in range, and sequences that share a token still hold the same text.

    A token of several sequences attends as one of them, so the others must see the same cells.
    (llama.cpp compares only their lowest and highest positions, and computes {0, 1, 2}, {0, 1}, {1, 2}
    wrongly.)
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


def bits_of(owners: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Owners as of :func:`owner_bits` with a column for each sequence, 0 or 1: uint8 [T, 64 * words]."""
    words = np.ascontiguousarray(owners, "<u8")
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
