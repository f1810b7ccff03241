"""Tokens (or embeddings) to decode, each with a position, sequences, and a wish for its logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
        pos: int | Sequence[int] | None = None,
        seqs: Sequence[int] = (0,),
        logits: bool | None = None,
    ) -> None:
        """Append one input vector [n_embd] in place of a token's embedding.

        ``pos``: (t, y, x, z) where the cache keeps four positions per token (M-RoPE).
        """
        vector = np.asarray(embedding, dtype=np.float32)
        if vector.ndim != 1:
            raise InvalidBatch(len(self), f"an embedding is [n_embd], not {list(vector.shape)}")
        self.embeddings.append(vector)
        self._append(pos, seqs, logits)

    def _append(
        self, pos: int | Sequence[int] | None, seqs: Sequence[int], logits: bool | None
    ) -> None:
        if isinstance(pos, Sequence):
            self.positions.append(tuple(int(p) for p in pos))
        else:
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


def checked_inputs(
    batch: Batch, n_vocab: int, n_embd: int
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """What the batch's tokens are: ids, int64 [T], or input vectors, float32 [T, n_embd].

    Raises:
        InvalidBatch: both kinds in one batch, an id outside the vocabulary, a vector of another size or with
            something that is not finite.

    """
    if batch.tokens and batch.embeddings:
        raise InvalidBatch(-1, "a batch holds either tokens or embeddings, not both")
    if batch.embeddings:
        return _checked_embeddings(batch.embeddings, n_embd)
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
