"""Natural-logarithm probabilities of tokens, from the model's logits as they are before sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.core.arrays import Doubles
from aleator.core.records import dataclass
from aleator.samplers.kept_tokens import KeptRow, KeptTokens

TokenBytes = Callable[[int], bytes]
"""Gives the bytes that a token stands for."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and its natural-log probability; ``bytes`` are its own, ``text`` their UTF-8 reading."""

    token: int
    logprob: float
    text: str
    bytes: bytes

    def as_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; a probability of zero has ``logprob`` null."""
        logprob = self.logprob if np.isfinite(self.logprob) else None
        return {
            "token": self.token,
            "logprob": logprob,
            "text": self.text,
            "bytes": list(self.bytes),
        }


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The model's distribution at one step: the chosen token and the most probable ones, best first.

    Attributes:
        chosen: The token that was drawn.
        top: The most probable ones.
        kept: The tokens that the samplers had kept when it was drawn; None if not requested (``kept=True``).
    """

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]
    kept: KeptTokens | None = None

    def as_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary: the chosen token's fields plus ``top``."""
        return {**self.chosen.as_json(), "top": [entry.as_json() for entry in self.top]}


LogprobsOf = Callable[[int, int, TokenBytes], Logprobs]
"""``(token, top, token_bytes)``: the log-probabilities of a token and of the ``top`` most probable ones."""


def log_softmax(logits: npt.ArrayLike) -> Doubles:
    """Natural-log probabilities of ``logits`` [V], in float64.

    NaN counts as -inf.  Tokens with +inf share all probability.  With nothing finite every entry is -inf.
    """
    z = np.asarray(logits).astype(np.float64)
    z[np.isnan(z)] = -np.inf
    largest = z.max()
    if largest == np.inf:
        z = np.where(z == np.inf, 0.0, -np.inf)
    elif largest == -np.inf:
        return z
    else:
        z -= largest
    shifted: Doubles = z - np.log(np.exp(z).sum())
    return shifted


def reported_logprobs(
    chosen: float,
    ids: Sequence[int],
    logprobs: Sequence[float],
    token: int,
    top: int,
    token_bytes: TokenBytes,
) -> Logprobs:
    """The log-probabilities that a device chain reported for a row (:class:`aleator.device.report.Report`)."""
    best = zip([token, *ids[:top]], [chosen, *logprobs[:top]], strict=True)
    own, *others = (_entry(i, logprob, token_bytes(i)) for i, logprob in best)
    return Logprobs(own, tuple(others))


def with_kept(found: LogprobsOf, row: KeptRow) -> LogprobsOf:
    """Add the kept tokens of a row to the log-probabilities."""

    def both(token: int, top: int, token_bytes: TokenBytes) -> Logprobs:
        return replace(found(token, top, token_bytes), kept=row.with_token(token))

    return both


def noted(found: LogprobsOf, token: int, top: int | None, token_bytes: TokenBytes) -> LogprobsOf:
    """Compute what is requested of a token now, so that its logits can be dropped; ``top`` None: nothing."""
    made = [] if top is None else [found(token, top, token_bytes)]
    return lambda *_: made[0]


def top_logprobs(logits: npt.ArrayLike, token: int, top: int, token_bytes: TokenBytes) -> Logprobs:
    """The log-probability of ``token`` and of the ``top`` most probable tokens (ties: lowest id).

    The logits [V] are the model's own.  With ``top`` 0 none are listed, with more than V all.
    """
    logprobs = log_softmax(logits)
    top = min(top, logprobs.size)
    best: list[int] = []
    if top:
        # Ordered by logits, since different ones may round to the same log-probability.
        z = np.nan_to_num(np.asarray(logits), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        # Every token tied with the last place is included, so that the lowest ids win.
        ids = np.flatnonzero(z >= np.partition(z, -top)[-top])
        best = ids[np.argsort(-z[ids], kind="stable")][:top].tolist()
    own, *others = (_entry(i, float(logprobs[i]), token_bytes(i)) for i in (token, *best))
    return Logprobs(own, tuple(others))


def _entry(token: int, logprob: float, raw: bytes) -> TokenLogprob:
    return TokenLogprob(token, logprob, raw.decode("utf-8", "replace"), raw)
