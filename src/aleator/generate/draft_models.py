"""Guesses of a draft model, a smaller model with the same vocabulary and a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aleator.core.errors import CacheFull
from aleator.generate.context import Batch, Context
from aleator.generate.speculative import Draft, Drafts, Guesser
from aleator.samplers import SamplerChain


class DraftContext(Drafts):
    """A draft model's context, made for the first guess, with a sequence for each request's text."""

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
        """An empty sequence; -1 if none is left."""
        context = self.context
        if not self._free:
            return -1
        context.cache.seq_rm(self._free[-1])
        return self._free.pop()

    def give_back(self, seq: int) -> None:
        """Return a sequence; only a list is changed."""
        self._free.append(seq)

    def model(self, chain: SamplerChain) -> DraftModel:
        """What guesses for a text that ``chain`` draws."""
        return DraftModel(self, chain)

    def guess(self, drafts: Sequence[Draft]) -> None:
        """See :meth:`Drafts.guess`: the next token of each in one batch."""
        context, going = self.context, []
        for draft in drafts:
            model = draft.model
            if (
                isinstance(model, DraftModel)
                and (new := model.begin(draft.tokens))
                and model.seq >= 0
            ):
                going.append((draft, model, model.chain(), new))
        first = True
        while going:
            batch = Batch()
            for _, model, _, new in going:
                model.add_to(batch, new)
            try:
                logits = context.decode(batch)
            except CacheFull:  # texts that share cells in the main model's cache share none here
                return
            following = []
            for (draft, model, chain, new), row in zip(going, logits, strict=True):
                model.computed(new, len(draft.tokens) if first else 0)
                try:
                    token = chain.sample(row[: self.n_tokens])
                except Exception as error:  # from a user's sampler
                    draft.error = error
                    continue
                draft.found.append(token)
                if len(draft.found) < draft.n:
                    following.append((draft, model, chain, [token]))
            going, first = following, False


class DraftModel(Guesser):
    """Draws guesses from a draft model's logits with a copy of the chain that draws the tokens.

    The copy has the same keys, so the draws agree where the models' distributions do.
    """

    shared: DraftContext

    def __init__(self, shared: DraftContext, chain: SamplerChain) -> None:
        super().__init__(shared)
        self._chain = chain
        self.seq = -1
        self.cached: list[int] = []  # tokens that the draft model's cache holds
        self.sure = 0  # how many of these certainly belong to the text

    def begin(self, tokens: Sequence[int]) -> list[int]:
        """Roll the cache back to where it differs from the text; return the tokens to compute, at least one."""
        if self.seq < 0:
            self.seq = self.shared.take()
        sure = self.sure
        if len(tokens) <= sure or list(tokens[:sure]) != self.cached[:sure]:
            self.sure = 0  # a context shift has moved all positions
        same = self.sure
        while same < min(len(self.cached), len(tokens) - 1) and self.cached[same] == tokens[same]:
            same += 1
        if self.seq >= 0 and same < len(self.cached):
            cache = self.shared.context.cache
            if same < cache.oldest_rewind(self.seq):
                same = self.sure = 0
            cache.seq_rm(self.seq, same)
        del self.cached[same:]
        return list(tokens[same:])

    def add_to(self, batch: Batch, new: Sequence[int]) -> None:
        """Add tokens to compute after those that are cached, the last with its logits."""
        for pos, token in enumerate(new, len(self.cached)):
            batch.add(token, pos, [self.seq], logits=pos == len(self.cached) + len(new) - 1)

    def computed(self, new: Sequence[int], of_text: int) -> None:
        """Note that these tokens are in the cache; ``of_text``: length of the text that they end, or 0."""
        self.cached += new
        self.sure = of_text or self.sure

    def chain(self) -> SamplerChain:
        """A copy of the chain."""
        return self._chain.clone()

    def end(self) -> None:
        """Give the sequence back."""
        if self.seq >= 0:
            self.shared.give_back(self.seq)
            self.seq, self.cached, self.sure = -1, [], 0
