"""A smaller model with the same vocabulary guesses, with the random numbers of the larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aleator.generate.batch import Batch
from aleator.generate.context import Context
from aleator.samplers import SamplerChain


class DraftModel:
    """Draws guesses from a small model's logits with a copy of the chain that draws the tokens.

    The copy has the same keys, so where both models think alike their draws are the same.

    Args:
        context: makes the small model's context of so many positions; called with the first guess.
        chain: draws the tokens; it is copied, never changed.
        n_ctx: positions that the text may come to use.
        n_tokens: tokens of the vocabulary.
    """

    def __init__(
        self, context: Callable[[int], Context], chain: SamplerChain, n_ctx: int, n_tokens: int
    ) -> None:
        self._make, self._chain = context, chain
        self._n_ctx, self._n_tokens = n_ctx, n_tokens
        self._context: Context | None = None
        self._held: list[int] = []  # what the small model's cache holds
        self._sure = 0  # of these so many are the text's

    def draft(self, tokens: Sequence[int], n: int) -> list[int]:
        """See :class:`aleator.generate.speculation.drafter.Drafter`."""
        if self._context is None:
            self._context = self._make(self._n_ctx)
        context = self._context
        sure = self._sure
        if len(tokens) <= sure or list(tokens[:sure]) != self._held[:sure]:
            self._sure = 0  # a context shift has moved everything
        same = self._sure
        while same < min(len(self._held), len(tokens) - 1) and self._held[same] == tokens[same]:
            same += 1
        context.cache.seq_rm(0, same, -1)
        del self._held[same:]
        chain, found = self._chain.clone(), list[int]()
        new = list(tokens[same:])
        while len(found) < n and len(self._held) + len(new) <= context.n_ctx:
            logits = context.decode(Batch.one(new, len(self._held)))
            self._held += new
            if not found:
                self._sure = len(tokens)
            token = chain.sample(logits[0, : self._n_tokens])
            found.append(token)
            new = [token]
        return found
