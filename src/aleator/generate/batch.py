"""Tokens (or embeddings) to decode: each with a position, its sequences, and whether its logits are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.core.errors import InvalidBatch
from aleator.core.integers import exact, first_inexact


class Batch:
    """A list of tokens for :meth:`Context.decode`.

    Positions left out (None) continue their sequence; sequences left out are [0]; if no token says
    whether its logits are wanted, only the last one's are.
    """

    __slots__ = ("embeddings", "logits", "positions", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.embeddings: list[npt.NDArray[np.float32]] = []
        self.positions: list[int | tuple[int, ...] | None] = []
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

        Raises:
            InvalidBatch: a token, the position or the sequence is not an integer.
        """
        batch = cls()
        if not isinstance(tokens, Iterable):
            raise InvalidBatch(-1, f"tokens must be a list of token ids, not {tokens!r}")
        given = list(tokens)
        wrong = first_inexact(given)
        if wrong is not None:
            raise InvalidBatch(wrong, f"token {given[wrong]!r} is not an integer")
        batch.tokens = list(map(int, given))
        if pos is not None:
            pos = _integer(0, "position", pos)
        seq = _integer(0, "sequence", seq)
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
        """Append one token that all of ``seqs`` share.

        Raises:
            InvalidBatch: the token, a position or a sequence is not an integer, or a sequence is named twice.
        """
        number = _integer(len(self), "token", token)
        self._append(pos, seqs, logits)
        self.tokens.append(number)

    def add_embedding(
        self,
        embedding: Any,
        pos: int | Sequence[int] | None = None,
        seqs: Sequence[int] = (0,),
        logits: bool | None = None,
    ) -> None:
        """Append one input vector [n_embd] in place of a token's embedding.

        ``pos``: (t, y, x, z) where the cache keeps four positions per token (M-RoPE).
        """
        try:
            vector = np.asarray(embedding, dtype=np.float32)
        except (ValueError, TypeError):
            raise InvalidBatch(len(self), "an embedding is a list of numbers, [n_embd]") from None
        if vector.ndim != 1:
            raise InvalidBatch(len(self), f"an embedding is [n_embd], not {list(vector.shape)}")
        self._append(pos, seqs, logits)
        self.embeddings.append(vector)

    def _append(
        self, pos: int | Sequence[int] | None, seqs: Sequence[int], logits: bool | None
    ) -> None:
        i = len(self)
        if not isinstance(seqs, Iterable):
            raise InvalidBatch(i, f"sequences must be a list of ids, not {seqs!r}")
        ids = tuple(_integer(i, "sequence", s) for s in seqs)
        if len(set(ids)) < len(ids):
            raise InvalidBatch(i, f"sequences {list(ids)} name one twice")
        place: int | tuple[int, ...] | None = None
        if isinstance(pos, Sequence):
            place = tuple(_integer(i, "position", p) for p in pos)
        elif pos is not None:
            place = _integer(i, "position", pos)
        self.positions.append(place)
        self.sequences.append(ids)
        self.logits.append(logits)

    def __len__(self) -> int:
        return len(self.positions)

    def wanted(self) -> list[int]:
        """Indices of the tokens whose logits are wanted, ascending."""
        if all(flag is None for flag in self.logits):
            return [len(self) - 1] if len(self) else []
        return [i for i, flag in enumerate(self.logits) if flag]


def _integer(i: int, what: str, value: object) -> int:
    """``value`` of token ``i`` as an int; InvalidBatch if it is none."""
    number = exact(value)
    if number is None:
        raise InvalidBatch(i, f"{what} {value!r} is not an integer")
    return number


def checked_inputs(
    batch: Batch, n_vocab: int, n_embd: int
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """What the batch's tokens are: ids, int64 [T], or input vectors, float32 [T, n_embd]."""
    if batch.tokens and batch.embeddings:
        raise InvalidBatch(-1, "a batch holds either tokens or embeddings, not both")
    if batch.embeddings:
        return _checked_embeddings(batch.embeddings, n_embd)
    wrong = first_inexact(batch.tokens)
    if wrong is not None:
        raise InvalidBatch(wrong, f"token {batch.tokens[wrong]!r} is not an integer")
    for i, token in enumerate(batch.tokens):
        if not 0 <= token < n_vocab:
            raise InvalidBatch(i, f"token {token} is outside the vocabulary [0, {n_vocab})")
    return np.array(batch.tokens, dtype=np.int64)


def _checked_embeddings(
    vectors: list[npt.NDArray[np.float32]], n_embd: int
) -> npt.NDArray[np.float32]:
    for i, vector in enumerate(vectors):
        if len(vector) != n_embd:
            raise InvalidBatch(i, f"the embedding has {len(vector)} values, the model {n_embd}")
        if not np.isfinite(vector).all():
            raise InvalidBatch(i, "the embedding holds NaN or infinity")
    return np.stack(vectors)
