"""A smaller model with the same vocabulary guesses, with the random numbers of the larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from aleator.core.errors import CacheFull
from aleator.core.records import dataclass
from aleator.generate.batch import Batch
from aleator.generate.context import Context
from aleator.samplers import SamplerChain


class DraftContext:
    """A small model's context, made with the first guess; each request's text has a sequence in it."""

    def __init__(self, make: Callable[[], Context], n_tokens: int) -> None:
        self._make, self.n_tokens = make, n_tokens
        self._context: Context | None = None
        self._free: list[int] = []

    @property
    def context(self) -> Context:
        """The context."""
        if self._context is None:
            self._context = self._make()
            self._free = list(range(self._context.n_seq_max))
        return self._context

    def take(self) -> int:
        """A sequence, which is empty; -1: there is none left."""
        context = self.context
        if not self._free:
            return -1
        context.cache.seq_rm(self._free[-1], -1, -1)
        return self._free.pop()

    def give_back(self, seq: int) -> None:
        """A sequence is needed no more; touches nothing but a list."""
        self._free.append(seq)


class DraftModel:
    """Draws guesses from a small model's logits with a copy of the chain that draws the tokens.

    The copy has the same keys, so where both models think alike their draws are the same.
    """

    def __init__(self, shared: DraftContext, chain: SamplerChain) -> None:
        self.shared, self._chain = shared, chain
        self.seq = -1
        self.held: list[int] = []  # what the small model's cache holds
        self.sure = 0  # of these so many are the text's

    def begin(self, tokens: Sequence[int]) -> list[int]:
        """Go back to where the cache's text and this one diverge; returns the one or more tokens to compute."""
        if self.seq < 0:
            self.seq = self.shared.take()
        sure = self.sure
        if len(tokens) <= sure or list(tokens[:sure]) != self.held[:sure]:
            self.sure = 0  # a context shift has moved everything
        same = self.sure
        while same < min(len(self.held), len(tokens) - 1) and self.held[same] == tokens[same]:
            same += 1
        if self.seq >= 0 and same < len(self.held):
            cache = self.shared.context.cache
            if same < cache.oldest_rewind(self.seq):
                same = self.sure = 0
            cache.seq_rm(self.seq, same, -1)
        del self.held[same:]
        return list(tokens[same:])

    def chain(self) -> SamplerChain:
        """A copy of the chain."""
        return self._chain.clone()

    def end(self) -> None:
        """Give the sequence back."""
        if self.seq >= 0:
            self.shared.give_back(self.seq)
            self.seq, self.held, self.sure = -1, [], 0


@dataclass
class Draft:
    """At most ``n`` guesses, 1 or more, that are asked of a draft model.

    Attributes:
        tokens: The prompt and all that was drawn.
        error: Of the chain, which ends the guessing for this text alone.
    """

    model: DraftModel
    tokens: Sequence[int]
    n: int
    found: list[int] = field(default_factory=list)
    error: Exception | None = None


def draft_together(drafts: Sequence[Draft]) -> None:
    """Guess for several texts of one :class:`DraftContext`: the next token of each in one batch."""
    shared = drafts[0].model.shared
    context, going = shared.context, []
    for draft in drafts:
        new = draft.model.begin(draft.tokens)
        if draft.model.seq >= 0:
            going.append((draft, draft.model.chain(), new))
    first = True
    while going:
        batch = Batch()
        for draft, _, new in going:
            held = len(draft.model.held)
            for i, token in enumerate(new):
                batch.add(token, held + i, [draft.model.seq], logits=i == len(new) - 1)
        try:
            logits = context.decode(batch)
        except CacheFull:  # texts that share cells in the larger model's cache share none here
            return
        following = []
        for (draft, chain, new), row in zip(going, logits, strict=True):
            draft.model.held += new
            if first:
                draft.model.sure = len(draft.tokens)
            try:
                token = chain.sample(row[: shared.n_tokens])
            except Exception as error:  # of a user's sampler
                draft.error = error
                continue
            draft.found.append(token)
            if len(draft.found) < draft.n:
                following.append((draft, chain, [token]))
        going, first = following, False
