"""Chains for texts that another engine manages.

The engine passes the text before each draw.  Usually it is what the chain drew, but it may be shorter (guesses
were refused) or different (a token was forced).  The chain must then be in the state that belongs to this text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from aleator.core.integers import shared
from aleator.samplers import SamplerChain, sample_batch


class Follower:
    """Keeps a chain in step with another engine's text; the given chain is changed.

    Attributes:
        chain: the chain, in the state after :attr:`tokens`.
        tokens: the tokens after the prompt.
    """

    def __init__(self, chain: SamplerChain, prompt: Iterable[int] = ()) -> None:
        chain.accept_many(prompt)
        self.chain, self.tokens = chain, list[int]()
        self._drawn: list[bool] = []
        self._left: Follower | None = None

    def follow(self, generated: Sequence[int]) -> None:
        """Bring the chain to a text: all tokens after the prompt.

        A drawn text that is left for another one, as when guesses of a draft model are checked, is remembered:
        on return, samplers that adapt recover their state.

        Raises:
            ConstraintError: the chain's grammar does not allow a token.
            ParameterError: a token is not an id, or the chain cannot roll back.
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
        """Return to the text that was left before, if it fits better, and remember this one."""
        before = self._left
        here = Follower(self.chain.clone())
        here.tokens, here._drawn = list(self.tokens), list(self._drawn)
        if before is not None and shared(before.tokens, generated) > same:
            self.chain, self.tokens, self._drawn = before.chain, before.tokens, before._drawn
            self._left = None
        elif before is None or here._drawn.count(False) <= before._drawn.count(False):
            self._left = here

    def record(self, token: int) -> None:
        """Record a token that the chain has just drawn and accepted."""
        self.tokens.append(token)
        self._drawn.append(True)

    def draw(self, logits: Any) -> int:
        """Draw the next token from logits [V] on the CPU; see :meth:`SamplerChain.sample`."""
        token = self.chain.sample(logits)
        self.record(token)
        return token


def leave_drawn(followers: Sequence[Follower], rows: Sequence[int], logits: Any) -> None:
    """Draw in distinct rows of a tensor of logits [B, V], and set these to 0 at the token, -inf elsewhere.

    LogitsError as of :func:`draw_all`; the tensor is then unchanged.
    """
    part = logits if len(rows) == len(logits) else logits[rows]
    drawn = draw_all(followers, part.detach().float().cpu())
    logits[rows] = -math.inf
    logits[rows, drawn] = 0.0


def draw_all(followers: Sequence[Follower], logits: Any) -> list[int]:
    """Draw a token for each of distinct followers from logits [B, V] on the CPU, rows contiguous.

    LogitsError names the row; chains with portable numerics are then unchanged.
    """
    chains = [follower.chain for follower in followers]
    if len(chains) == 1 or any(chain.numerics != "portable" for chain in chains):
        return [follower.draw(row) for follower, row in zip(followers, logits, strict=True)]
    tokens = sample_batch(chains, logits)
    for follower, token in zip(followers, tokens, strict=True):
        follower.record(token)
    return tokens
