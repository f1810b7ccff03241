"""SynthID-text's tournament: draws steered by layers of keyed coins, and the test that finds them in a text.

Source    S. Dathathri et al., Nature 634 (2024): "Scalable watermarking for identifying large language model
          outputs".  Coins are those of transformers' ``SynthIDTextWatermarkLogitsProcessor`` with its default
          table (65,536 entries, seed 0, made on the CPU) and ``ngram_len = watermark_ngram + 1``.
Coins     h = 1; for each of the last n tokens, the oldest first, then for the token that may follow, then for
          the layer's key: h = (h + number) * 6364136223846793005 + 1.  Its low 16 bits name an entry of the
          table, the layer's coin of that token: bit 0 of a word of an MT19937 with seed 0.
Layers    In shares of 2^40, s = w >> e with e such that the sum of w has 40 bits.  For each layer, with Z the
          sum of s, G that of s where the coin is 1, and f = floor((Z - G) * 2^40 / Z):
          s = coin * s + floor(s * f / 2^40).  That is p * (1 + coin - E[coin]): over coins its mean is p.
          Integers, as the published float32 update depends on the order of its sums; probabilities differ from
          transformers' in float64 by 3e-8 at most.
Draw      by inverse cumulative mass from the shares, with seed and position as ``draw="inverse"``.
Ordinary  draws are as in samplers/watermark.py: if fewer than n tokens were generated, or if the same n tokens
          occur earlier in the history.  transformers looks 1,024 tokens back, and also marks the first
          tokens of a text unless ``skip_first_ngram_calls`` is set.
Test      the mean coin over the text's distinct contexts, each at its first place, and all layers.  Its p is
          exact over independent, uniform keys, whatever the text is: a text's coins are neither fair nor
          independent.  A weighted mean has too many values for this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.samplers.watermark import (
    KEYED,
    WATERMARK_NGRAM,
    WatermarkKey,
    WatermarkTest,
    checked,
    detect_watermark,
)

MULTIPLIER = 6364136223846793005
TABLE_SIZE = 1 << 16
HEAVIEST, LIGHTEST = 10.0, 1.0
"""Weights of the first and the last layer in the weighted mean; the others are evenly spaced between."""
STEEPEST = 64.0
"""Largest tilt that is tried."""


@cache
def table() -> NDArray[np.uint8]:
    """The table of coins, 65,536 entries."""
    bits = np.random.RandomState(0).randint(0, 2, TABLE_SIZE, np.uint32)  # the lowest of words
    return bits.astype(np.uint8)


def hashed(h: int, numbers: Iterable[int]) -> int:
    """Hash numbers into ``h``; 64 bits, of which coins need 16."""
    for number in numbers:
        h = ((h + number) * MULTIPLIER + 1) & (1 << 64) - 1
    return h


def coins(
    tokens: Sequence[int] | NDArray[np.integer], context: Sequence[int], numbers: Sequence[int]
) -> NDArray[np.uint8]:
    """The coin of each token after a context, in each layer."""
    h = np.uint64(hashed(1, context)) + np.asarray(tokens).astype(np.uint64)
    return table()[_layers(h * np.uint64(MULTIPLIER) + np.uint64(1), numbers)]


def _layers(h: NDArray[np.uint64], numbers: Sequence[int]) -> NDArray[np.uint64]:
    keyed = h[:, None] + np.array(numbers, np.uint64)
    hashes = keyed * np.uint64(MULTIPLIER) + np.uint64(1)
    entries: NDArray[np.uint64] = hashes & np.uint64(TABLE_SIZE - 1)
    return entries


def tournament(
    weights: Sequence[int],
    tokens: Sequence[int] | NDArray[np.integer],
    context: Sequence[int],
    numbers: Sequence[int],
) -> list[int]:
    """The shares of tokens after all layers."""
    shift = sum(weights).bit_length() - 40
    shares = [w >> shift for w in weights]
    for layer in coins(tokens, context, numbers).T.tolist():
        total = sum(shares)
        ones = sum(s for s, coin in zip(shares, layer, strict=True) if coin)
        factor = ((total - ones) << 40) // total
        shares = [coin * s + (s * factor >> 40) for s, coin in zip(shares, layer, strict=True)]
    return shares


@dataclass(frozen=True)
class SynthIDTest(WatermarkTest):
    """The result of :func:`detect_synthid`; ``score`` is the sum of coins, ``p_value`` exact over keys.

    Attributes:
        layers: Coins of each draw that was scored.
        mean: Mean of the coins; about 0.5 without a watermark.
        weighted_mean: Mean with weights from 10 for the first layer to 1 for the last, as later layers say
            less if a text has little entropy.
        weighted_log10_p: Logarithm of Chernoff's bound on the probability of such a weighted mean: p is at most
            this.
    """

    layers: int
    mean: float
    weighted_mean: float
    weighted_log10_p: float


def detect_synthid(
    tokens: Sequence[int] | NDArray[np.integer],
    key: bytes | WatermarkKey | None = None,
    *,
    ngram: int = WATERMARK_NGRAM.neutral,
) -> SynthIDTest:
    """Test whether a text was drawn with ``draw="synthid"``, or by transformers, and a key.

    Args:
        tokens: Token ids of the text, 0 to 2^24 - 1, without its prompt.
        key: The key's bytes, or a :class:`WatermarkKey`; None takes that of ``ALEATOR_WATERMARK_KEY``.
        ngram: ``watermark_ngram`` of the draws, 1 to 16; one less than transformers' ``ngram_len``.

    Raises:
        ParameterError: There is no key, it is too short, or tokens or ``ngram`` are out of range.
    """
    ids, own, n = checked(tokens, key, ngram)
    drawn = ids[n:]
    multiplier, one = np.uint64(MULTIPLIER), np.uint64(1)
    h = np.ones(len(drawn), np.uint64)
    for i in range(n if len(drawn) else 0):
        h = (h + ids[i : i + len(drawn)]) * multiplier + one
    _, first = np.unique(h, return_index=True)
    m, depth = len(first), len(own.numbers)
    h = (h[first] + drawn[first]) * multiplier + one
    by_layer = table()[_layers(h, own.numbers)].sum(0, dtype=np.int64)
    weights = np.linspace(HEAVIEST, LIGHTEST, depth)
    weights *= depth / weights.sum()
    log_p = weighted_log_p = 0.0
    if m:
        layer = _Layer(h)
        log_p = layer.log_tail(int(by_layer.sum()), depth)
        weighted_log_p = layer.log_bound(float(weights @ by_layer), weights)
    mean = float(by_layer.sum()) / max(1, m * depth)
    weighted = float(weights @ by_layer) / max(1, m * depth)
    found = len(ids), m, float(by_layer.sum()), math.exp(log_p), log_p / math.log(10), str(own)
    return SynthIDTest(*found, depth, mean, weighted, weighted_log_p / math.log(10))


def detector(draw: str) -> Callable[..., WatermarkTest]:
    """The test that looks for a draw."""
    detectors = dict(zip(KEYED, (detect_watermark, detect_synthid), strict=True))
    if draw not in detectors:
        raise ParameterError(f"draw={draw!r:.60} leaves no watermark: give {' or '.join(KEYED)}")
    return detectors[draw]


class _Layer:
    """The distribution of the sum of one layer's coins over its 65,536 possible keys."""

    def __init__(self, h: NDArray[np.uint64]) -> None:
        often = np.bincount((h & np.uint64(TABLE_SIZE - 1)).astype(np.int64), minlength=TABLE_SIZE)
        by_hash = table()[_layers(np.arange(TABLE_SIZE, dtype=np.uint64), [0])[:, 0]]
        # The key k gives the sum of often[h] * by_hash[h + k].
        spectrum = np.fft.rfft(often).conj() * np.fft.rfft(by_hash)
        sums = np.rint(np.fft.irfft(spectrum, TABLE_SIZE)).astype(np.int64)
        self.least = int(sums.min())
        self.chance = np.bincount(sums - self.least) / TABLE_SIZE
        self.above = np.arange(len(self.chance), dtype=np.float64)

    def log_moment(self, tilt: float) -> float:
        """The logarithm of E[exp(tilt * X)] of the sum X less the least."""
        terms = tilt * self.above + np.log(np.maximum(self.chance, 1e-300))
        top = float(terms.max())
        return top + math.log(float(np.exp(terms - top).sum()))

    def tilted(self, tilt: float) -> NDArray[np.float64]:
        """The distribution that is proportional to exp(tilt * X)."""
        weights = self.chance * np.exp(tilt * (self.above - self.above.max()))
        made: NDArray[np.float64] = weights / weights.sum()
        return made

    def log_tail(self, score: int, depth: int) -> float:
        """The logarithm of P(the sum over ``depth`` layers >= score).

        Layers have independent keys, so their distributions are convolved.  Tilting moves the mean to the
        score, where the result is then exact to float precision.
        """
        x = score - depth * self.least
        tilt = _root(lambda t: depth * float(self.tilted(t) @ self.above) - x)
        size = depth * (len(self.chance) - 1) + 1
        room = 1 << size.bit_length()
        whole = np.fft.irfft(np.fft.rfft(self.tilted(tilt), room) ** depth, room)[x:size]
        tail = float((np.maximum(whole, 0) * np.exp(-tilt * np.arange(len(whole)))).sum())
        if not tail:
            return -math.inf
        return min(0.0, math.log(tail) + depth * self.log_moment(tilt) - tilt * x)

    def log_bound(self, score: float, weights: NDArray[np.float64]) -> float:
        """The least of ln E[exp(t * X)] - t * score over t."""
        x = score - self.least * math.fsum(weights)

        def slope(t: float) -> float:
            return math.fsum(w * (self.tilted(t * w) @ self.above) for w in weights) - x

        t = _root(slope)
        return min(0.0, math.fsum(self.log_moment(t * float(w)) for w in weights) - t * x)


def _root(rises: Callable[[float], float]) -> float:
    """The zero of an increasing function between 0 and the steepest tilt."""
    low, high = 0.0, STEEPEST
    if rises(low) >= 0:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return high
