"""Tokens (or embeddings) to decode, each with a position, sequences, and a wish for its logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.cache import Cells
from aleator.core.errors import InvalidBatch


class Batch:
    """A list of tokens for :meth:`Context.decode`.

    Positions left out (None) continue their sequence; sequences left out are [0]; if no token says
    whether its logits are wanted, only the last one's are.
    """

    __slots__ = ("embeddings", "logits", "positions", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.embeddings: list[npt.NDArray[np.float32]] = []
        self.positions: list[int | None] = []
        self.sequences: list[Sequence[int]] = []
        self.logits: list[bool | None] = []

    @classmethod
    def one(
        cls, tokens: Iterable[int], pos: int | None = None, seq: int = 0, logits: bool | None = None
    ) -> Batch:
        """Consecutive tokens of one sequence.

        Args:
            tokens: token ids.
            pos: position of the first; None continues the sequence.
            seq: sequence id.
            logits: True or False for every token; None wants only the last one's.

        """
        batch = cls()
        batch.tokens = [int(t) for t in tokens]
        n = len(batch.tokens)
        batch.positions = [None] * n if pos is None else list(range(pos, pos + n))
        batch.sequences = [(seq,)] * n
        batch.logits = [logits] * n
        return batch

    def add(
        self,
        token: int,
        pos: int | None = None,
        seqs: Sequence[int] = (0,),
        logits: bool | None = None,
    ) -> None:
        """Append one token that all of ``seqs`` share."""
        self.tokens.append(int(token))
        self._append(pos, seqs, logits)

    def add_embedding(
        self,
        embedding: Any,
        pos: int | None = None,
        seqs: Sequence[int] = (0,),
        logits: bool | None = None,
    ) -> None:
        """Append one input vector [n_embd] in place of a token's embedding."""
        vector = np.asarray(embedding, dtype=np.float32)
        if vector.ndim != 1:
            raise InvalidBatch(len(self), f"an embedding is [n_embd], not {list(vector.shape)}")
        self.embeddings.append(vector)
        self._append(pos, seqs, logits)

    def _append(self, pos: int | None, seqs: Sequence[int], logits: bool | None) -> None:
        self.positions.append(None if pos is None else int(pos))
        self.sequences.append(tuple(seqs))
        self.logits.append(logits)

    def __len__(self) -> int:
        return len(self.positions)

    def wanted(self) -> list[int]:
        """Indices of the tokens whose logits are wanted, ascending."""
        if all(flag is None for flag in self.logits):
            return [len(self) - 1] if len(self) else []
        return [i for i, flag in enumerate(self.logits) if flag]


class CheckedBatch:
    """A batch that obeys the rules, as arrays.

    Attributes:
        inputs: token ids, int64 [T], or input vectors, float32 [T, n_embd].
        positions: int32 [T].
        seqs: int32 [T], each token's first sequence: the one it attends as.
        owners: uint64 [T, words], all its sequences as bits.
        wanted: int64, ascending indices of the tokens whose logits are wanted.

    """

    __slots__ = ("inputs", "owners", "positions", "seqs", "wanted")

    def __init__(
        self, batch: Batch, cells: Cells, n_seq_max: int, n_vocab: int, n_embd: int
    ) -> None:
        n = len(batch)
        if n == 0:
            raise InvalidBatch(-1, "the batch is empty: add at least one token")
        if batch.tokens and batch.embeddings:
            raise InvalidBatch(-1, "a batch holds either tokens or embeddings, not both")
        self.inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32]
        if batch.embeddings:
            self.inputs = _checked_embeddings(batch.embeddings, n_embd)
        else:
            for i, token in enumerate(batch.tokens):
                if not 0 <= token < n_vocab:
                    raise InvalidBatch(i, f"token {token} is outside the vocabulary [0, {n_vocab})")
            self.inputs = np.array(batch.tokens, dtype=np.int64)
        self.positions = np.array(_checked_positions(batch, cells, n_seq_max), dtype=np.int32)
        self.seqs = np.array([s[0] for s in batch.sequences], dtype=np.int32)
        self.owners = np.zeros((n, cells.words), dtype=np.uint64)
        if n_seq_max == 1:
            self.owners[:, 0] = 1
        else:
            for i, seqs in enumerate(batch.sequences):
                for s in seqs:
                    self.owners[i, s // 64] |= np.uint64(1 << (s % 64))
        self.wanted = np.array(batch.wanted(), dtype=np.int64)

    def rows(self, part: slice) -> npt.NDArray[np.int64]:
        """Which rows of a part are wanted, counted from its start."""
        low, high = np.searchsorted(self.wanted, (part.start, part.stop))
        rows: npt.NDArray[np.int64] = self.wanted[low:high] - part.start
        return rows


def _checked_embeddings(
    vectors: list[npt.NDArray[np.float32]], n_embd: int
) -> npt.NDArray[np.float32]:
    for i, vector in enumerate(vectors):
        if len(vector) != n_embd:
            raise InvalidBatch(i, f"the embedding has {len(vector)} values, the model {n_embd}")
        if not np.isfinite(vector).all():
            raise InvalidBatch(i, "the embedding holds NaN or infinity")
    return np.stack(vectors)


def _checked_positions(batch: Batch, cells: Cells, n_seq_max: int) -> list[int]:
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


def _position(i: int, pos: int | None, s: int, last: dict[int, int], cells: Cells) -> int:
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
    cells: Cells,
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
