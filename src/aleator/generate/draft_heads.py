"""Guesses of a draft head, which is shown the hidden states of the tokens that the model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from aleator.core.arrays import Floats
from aleator.generate.context import Batch, Context
from aleator.generate.speculative import DraftContext, DraftModel
from aleator.models.draft_head import DraftHead
from aleator.samplers import SamplerChain

MOST_WAITING = 1024
"""Tokens whose hidden states are held until the head first guesses; of more the head sees the last ones."""
MOST_MISSED = 8
"""Likewise, of tokens made while a head that has guessed is not asked.

To see them all would cost more than the guess that is tried after a pause can save.
"""


class HeadContext(DraftContext):
    """A head's context, with a sequence for each request's text."""

    def __init__(self, head: DraftHead, make: Callable[[], Context], n_tokens: int) -> None:
        super().__init__(make, n_tokens)
        self.head = head

    def model(self, chain: SamplerChain) -> DraftModel:
        """See :meth:`DraftContext.model`."""
        return HeadModel(self, self.head, chain)

    def logits(self, row: Floats) -> Floats:
        """See :meth:`DraftContext.logits`."""
        return self.head.logits(row, self.n_tokens)


class HeadModel(DraftModel):
    """Draws guesses from a head's logits.

    Each position of its sequence has the hidden state of a token of the text and the token after that.  Tokens
    that it was not shown are left out: those of a cached prompt, and :data:`MOST_MISSED` says which else.
    """

    def __init__(self, shared: HeadContext, head: DraftHead, chain: SamplerChain) -> None:
        super().__init__(shared, chain)
        self._head = head
        self._end = 0  # the text's position after the last token that was shown
        self._waiting: deque[Floats] = (
            deque()
        )  # hidden states of the last of these, which the sequence has not
        self._n = 0  # how many
        self._hidden = np.zeros((0, 0), np.float32)  # what the next tokens to compute come after

    def see(self, pos: int, hidden: Floats) -> None:
        """See :meth:`DraftModel.see`."""
        if not len(hidden):
            return
        if pos != self._end:  # a context shift, or the beginning was cached
            self.sure, self._n, self._waiting = 0, 0, deque()
        self._waiting.append(hidden.copy())
        self._end, self._n = pos + len(hidden), self._n + len(hidden)
        most = MOST_MISSED if self.sure else MOST_WAITING
        while self._n - len(self._waiting[0]) >= most:
            self._n -= len(self._waiting.popleft())

    def begin(self, tokens: Sequence[int]) -> list[int]:
        """Take back guesses; return the tokens that follow the shown states, [] if these are not the text's."""
        if not self._n or self._end != len(tokens) - 1:
            return []
        if self.seq < 0:
            self.seq = self.shared.take()
        if self.seq >= 0 and self.sure < len(self.held):
            self.shared.context.cache.seq_rm(self.seq, self.sure)
        del self.held[self.sure :]
        context = self.shared.context
        threads = context.n_threads if self._n == 1 else context.n_threads_batch
        self._hidden = self._head.fused(np.concatenate(self._waiting), threads)
        return list(tokens[self._end - self._n + 1 :])

    def add_to(self, batch: Batch, new: Sequence[int]) -> None:
        """See :meth:`DraftModel.add_to`."""
        context = self.shared.context
        threads = context.n_threads if len(new) == 1 else context.n_threads_batch
        vectors = self._head.inputs(new, self._hidden, threads)
        n, first = len(new), len(self.held)
        batch.embeddings += [*vectors]
        batch.positions += range(first, first + n)
        batch.sequences += [(self.seq,)] * n
        batch.logits += [False] * (n - 1) + [True]

    def computed(self, new: Sequence[int], of_text: int, hidden: Floats | None) -> None:
        """See :meth:`DraftModel.computed`."""
        super().computed(new, of_text, hidden)
        if of_text:
            self.sure, self._n, self._waiting = len(self.held), 0, deque()
        if hidden is not None:
            self._hidden = self._head.follow(hidden[-1:, 0])

    def end(self) -> None:
        """Give the sequence and the states back."""
        super().end()
        self._n, self._waiting = 0, deque()
