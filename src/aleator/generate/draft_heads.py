"""Guesses of a draft head, which is shown the hidden states of the tokens that the model computes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from threading import Lock

import aleator._native as _native
from aleator.core.arrays import Floats
from aleator.core.threads import pool as thread_pool
from aleator.generate.speculative import Draft, Drafts, Guesser
from aleator.models.draft_head import WINDOW, DraftHead
from aleator.samplers import SamplerChain

MOST_MISSED = 8
"""Most new tokens that a head is shown which was not asked for a while.

To see them all would cost more than the guess that is tried after a pause can save.
"""
RATES = (0.16, 0.35, 0.42, 0.57, 0.62, 0.7, 0.9, 0.97, 0.99, 0.99)
"""How many guesses of each kind are right, as long as none was compared: as with the bundled model's head."""
COUNTED = 4.0
"""As how many compared guesses these count."""


class HeadDrafts(Drafts):
    """A head, and places for the texts of ``n_texts`` requests; it computes with ``n_threads``."""

    def __init__(
        self, head: DraftHead, n_texts: int, n_tokens: int, n_threads: int | None = None
    ) -> None:
        self._head, self._n_texts, self._n_tokens = head, n_texts, n_tokens
        self._n_threads, self._process, self._turn = n_threads, os.getpid(), Lock()
        self.free, self.most_new = list(range(n_texts)), head.most_new
        self.most_guesses = head.most_guesses
        self._made: _native.DraftHead | None = None  # by the first guess

    def model(self, chain: SamplerChain) -> HeadText:
        """See :class:`Drafts`."""
        return HeadText(self, chain)

    def guess(self, drafts: Sequence[Draft]) -> None:
        """See :class:`Drafts`.

        A fork's child gets no guesses: a thread of its parent may have made some.  Nor does whoever asks while
        some are made, such as a user's sampler that is applied for one.
        """
        if self._process != os.getpid() or not self._turn.acquire(blocking=False):
            return
        try:
            self._guess(drafts)
        finally:
            self._turn.release()

    def _guess(self, drafts: Sequence[Draft]) -> None:
        going, texts = [], []
        for draft in drafts:
            model = draft.model
            if not isinstance(model, HeadText) or not (new := model.begin(draft.tokens)):
                continue
            most = min(draft.n, self.most_guesses)
            given = model.place, model.sure, [*model.waiting], new, most, draft.least
            texts.append((*given, model.rates(), model.chain.in_native))
            going.append((draft, model, len(new)))
        if not texts:
            return
        if self._made is None:
            self._made = self._head.over(self._n_texts, self._n_tokens)
        found = self._made.guess(thread_pool(self._n_threads), texts, WINDOW)
        for (draft, model, n), (tokens, kinds) in zip(going, found, strict=True):
            model.seen(n, kinds)
            draft.found += tokens

    def leave(self, place: int) -> None:
        """Give a text's place back; cells of one text alone serve the next context, unless they are in use."""
        self.free.append(place)
        if self._n_texts > 1 or not self._turn.acquire(blocking=False):
            return
        if self._made is not None:
            self._head.give_back(self._n_texts, self._n_tokens, self._made)
            self._made = None
        self._turn.release()


class HeadText(Guesser):
    """One text's place with a head, and how often its guesses of each kind were right.

    Each position of the place has the hidden state of a token of the text and the token after that.  Tokens
    that it was not shown are left out: those of a cached prompt, all but the last :attr:`HeadDrafts.most_new`
    of a longer one, and :data:`MOST_MISSED` says which else.

    Attributes:
        place: its number; -1: none was given yet, or none was left.
        sure: how many positions the place has.
        waiting: hidden states of the last tokens, which are to come.
    """

    stops = True
    shared: HeadDrafts

    def __init__(self, shared: HeadDrafts, chain: SamplerChain) -> None:
        super().__init__(shared)
        self.chain, self.most = chain, shared.most_guesses
        self.place, self.sure = -1, 0
        self._end = 0  # the text's position after the last token that was shown
        self.waiting = deque[Floats]()
        self._n = 0  # how many
        self._kinds: list[int] = []  # of the last guesses
        self._right = [COUNTED * each for each in RATES]
        self._tried = [COUNTED] * len(RATES)

    def add_hidden(self, pos: int, hidden: Floats) -> None:
        """See :meth:`Guesser.add_hidden`."""
        if not len(hidden):
            return
        if pos != self._end:  # a pause, a context shift, or the beginning was cached
            self._forget()
            if pos < self._end:
                self.sure = 0
        most = MOST_MISSED if self.sure else self.shared.most_new
        self.waiting.append(hidden[-most:].copy())  # the others of the batch need not wait too
        self._end, self._n = pos + len(hidden), self._n + len(self.waiting[-1])
        while self._n > most:
            first = self.waiting.popleft()
            self._n -= len(first)
            if self._n < most:
                self.waiting.appendleft(first[self._n - most :])
                self._n = most

    def begin(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that follow the states that wait; [] if these are not the text's, or no place is left."""
        if not self._n or self._end != len(tokens) - 1:
            return []
        if self.place < 0:
            if not self.shared.free:
                return []
            self.place = self.shared.free.pop()
        return list(tokens[self._end - self._n + 1 :])

    def seen(self, n: int, kinds: list[int]) -> None:
        """Note that ``n`` states were taken, and which kinds of guesses followed."""
        self.sure, self._kinds = self.sure + n, kinds
        self._forget()

    def rates(self) -> list[float]:
        """How many guesses of each kind are right."""
        return [right / tried for right, tried in zip(self._right, self._tried, strict=True)]

    def learn(self, right: int) -> None:
        """See :meth:`Guesser.learn`."""
        for i, kind in enumerate(self._kinds[: right + 1]):
            self._right[kind] += i < right
            self._tried[kind] += 1

    def end(self) -> None:
        """Give the place and the states back."""
        if self.place >= 0:
            self.shared.leave(self.place)
        self.place, self.sure = -1, 0
        self._forget()

    def _forget(self) -> None:
        self.waiting, self._n = deque(), 0
