"""The input and output of several decode steps at once: where sequences stand, and the tokens drawn."""

from __future__ import annotations

from dataclasses import field
from functools import partial

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.generate.logprobs import Logprobs, LogprobsOf, TokenBytes, reported_logprobs


def _no_logprobs(token: int, top: int, token_bytes: TokenBytes) -> Logprobs:
    raise ParameterError("logprobs", "the device chain was made without logprobs")


@dataclass(frozen=True)
class DecodeStart:
    """Where one sequence stands."""

    row: int
    seq: int  # its id in the cache, which holds positions 0 to ``pos`` - 1
    token: int  # the token drawn last, not decoded yet
    pos: int
    limit: int  # most tokens to draw, at least 1
    heeds_ends: bool = True  # an end-of-generation token ends it


@dataclass
class DecodeResult:
    """What was decoded from a start: the tokens drawn, each with the chain's report on it, if there is one.

    The start's own token and all of these but the last are in the cache.  ``failed``: after the last of them no
    token could be drawn.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    failed: bool = False

    def logprobs_of(self, i: int) -> LogprobsOf:
        """Log-probabilities of token ``i``, if the chain reports them."""
        if not self.logprobs:
            return _no_logprobs
        return partial(reported_logprobs, self.logprobs[i], self.top_ids[i], self.top_logprobs[i])
