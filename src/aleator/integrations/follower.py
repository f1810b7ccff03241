"""Chains for texts that another engine keeps.

Another engine says before each draw what the text is.  Mostly that is what the chain drew; it may also be
shorter (guesses were refused), or another one (a token was put there by force), and a chain must be in the
state that this text would have brought it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aleator.core.integers import shared
from aleator.samplers import SamplerChain, sample_batch


class Follower:
    """A chain that is brought to another engine's text; it is changed.

    Attributes:
        chain: in the state of :attr:`tokens`.
        tokens: what followed the prompt.
    """

    def __init__(self, chain: SamplerChain, prompt: Iterable[int] = ()) -> None:
        chain.accept_many(prompt)
        self.chain, self.tokens = chain, list[int]()
        self._drawn: list[bool] = []
        self._left: Follower | None = None

    def follow(self, generated: Sequence[int]) -> None:
        """Bring the chain to a text: all that follows the prompt.

        A text that was drawn and then left for another one, as guesses of a draft model are looked at, is
        remembered: back on it, samplers that adapt are as they were.

        Raises:
            ConstraintError: the chain's grammar does not allow a token.
            ParameterError: a token is no id, or the chain cannot roll back.
        """
        if generated == self.tokens:
            return
        same = shared(self.tokens, generated)
        if same < len(self.tokens):
            if same < len(generated):
                self._swap(same, generated)
                same = shared(self.tokens, generated)
            if same < len(self.tokens):
                self.chain.rollback(len(self.tokens) - same)
                del self.tokens[same:], self._drawn[same:]
        for token in generated[same:]:
            self.chain.accept(token, generated=True)
            self.tokens.append(token)
            self._drawn.append(False)

    def _swap(self, same: int, generated: Sequence[int]) -> None:
        """Leave this text for the one that was left before, if that fits better, and remember this one."""
        before = self._left
        here = _copy(self)
        if before is not None and shared(before.tokens, generated) > same:
            self.chain, self.tokens, self._drawn = before.chain, before.tokens, before._drawn
            self._left = None
        elif before is None or here._drawn.count(False) <= before._drawn.count(False):
            self._left = here

    def took(self, token: int) -> None:
        """Note a token that the chain has just drawn and accepted."""
        self.tokens.append(token)
        self._drawn.append(True)

    def draw(self, logits: Any) -> int:
        """Draw the next token from logits [V] on the CPU; see :meth:`SamplerChain.sample`."""
        token = self.chain.sample(logits)
        self.took(token)
        return token


def draw_all(followers: Sequence[Follower], logits: Any) -> list[int]:
    """Draw a token for each of different followers from logits [B, V] on the CPU, rows contiguous.

    LogitsError names the row; no chain with portable numerics has changed then.
    """
    chains = [follower.chain for follower in followers]
    if len(chains) == 1 or any(chain.numerics != "portable" for chain in chains):
        return [follower.draw(row) for follower, row in zip(followers, logits, strict=True)]
    tokens = sample_batch(chains, logits)
    for follower, token in zip(followers, tokens, strict=True):
        follower.took(token)
    return tokens


def _copy(follower: Follower) -> Follower:
    made = Follower(follower.chain.clone())
    made.tokens, made._drawn = list(follower.tokens), list(follower._drawn)
    return made
