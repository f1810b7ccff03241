"""The candidates that device samplers work on: one row per sequence, in tensors of fixed shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aleator.core import contract
from aleator.device.fixed import MASK32, exp2_double, log2_double, mul_high
from aleator.device.step import OwnRows
from aleator.device.token_bits import unpack

NOTHING = -1
"""``selected`` before a token is chosen, and in a row without a finite logit."""

_ROUND_BITS = int(np.float32(contract.ROUND).view(np.int32))
_NEG_INF = float("-inf")
_NO_TOKEN = 2**31 - 1


class Entropy(NamedTuple):
    """Entropy of each row's distribution, [B]; the contract is in docs/numerics.md."""

    bits: Tensor  # float64
    depth: Tensor  # float64: mean number of bits of weights below the largest
    mass: Tensor  # int64: mass of all candidates, in Q40


class EntropyTerms(NamedTuple):
    """Each row's terms from which :func:`entropy_of` makes an entropy."""

    tops: Tensor  # int64 [B]: number of candidates with the largest logit
    gap: Tensor  # float64 [B]: bits by which the next logit lies below it
    share: Tensor  # float64 [B]: 2^-gap
    weights: Tensor  # int64 [B, V]: of the other candidates, in Q40 relative to the next logit
    bits: Tensor  # int64 [B, V]: these weights times the bits by which they lie below it


def entropy_of(n: Tensor, gap: Tensor, share: Tensor, weights: Tensor, bits: Tensor) -> Entropy:
    """The entropy if ``n`` candidates have the largest logit; ``weights`` and ``bits`` are sums, int64."""
    one = 2.0**contract.WEIGHT_BITS
    weight = weights.to(torch.float64) / one
    mass = share * weight
    total = (n.to(torch.float64) + mass).clamp(min=1)
    depth = share * (gap * weight + bits.to(torch.float64) / one) / total
    e = contract.LOG2_E
    series = mass * (e - mass * (e / 2 - mass * (e / 3)))
    few = (n == 1) & (mass < contract.ENTROPY_SERIES)
    log = torch.where(few, series, log2_double(total))
    return Entropy(log + depth, depth, (total * one).to(torch.int64))


def power(t: Tensor) -> tuple[Tensor, Tensor]:
    """2^t as (p, n), p * 2^n with p near 1; n int32."""
    r = t + contract.ROUND
    f = t - (r - contract.ROUND)
    *lower, highest = contract.EXP2_COEFFICIENTS
    p = torch.full_like(f, highest)
    for coefficient in reversed(lower):
        p = p * f
        p = p + coefficient
    return p, r.view(torch.int32) - _ROUND_BITS


def _q40(p: Tensor, n: Tensor) -> Tensor:
    bits = p.view(torch.int32).to(torch.int64)
    below = (127 - (bits >> 23) - n.to(torch.int64)).clamp(max=63)
    return (bits & 0x7FFFFF | 0x800000) << contract.WEIGHT_BITS - 23 >> below


class DeviceCandidates:
    """The candidates of B rows over a vocabulary of V, on their device.

    Samplers read and assign these; shapes never change.  docs/samplers.md says what they are in llama.cpp.

    Attributes:
        ids: int32 [1, V], the token of each column, ascending; [B, V] if rows differ.
        logits: float32 [B, V], -inf for masked tokens.  Reading applies a pending temperature; assigning
            brings them into canonical form: NaN masks, -0 becomes +0, +inf masks all others.
        probs: float32 [B, V], current probabilities; 0 for masked tokens.
        p: float32 [B, V], probabilities that the last softmax found.
        size: int64 [B], number of candidates of each row.
        selected: int64 [B], the chosen token, or -1.
        sorted: always False: columns are in the order of ids.
        own: while a user's sampler runs, its parameters, state and keys in each row.
    """

    sorted = False

    def __init__(self, logits: Tensor, ids: Tensor | None = None) -> None:
        if ids is None:
            ids = torch.arange(logits.shape[1], device=logits.device, dtype=torch.int32)[None]
        self.ids = ids
        self.own: OwnRows | None = None
        self._temperature = torch.ones(logits.shape[0], dtype=torch.float64, device=logits.device)
        self.full_mass = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
        self._full_top = torch.zeros(logits.shape[0], 1, dtype=torch.float32, device=logits.device)
        self.selected = torch.full_like(self.full_mass, NOTHING)
        self._order: Tensor | None = None
        self._weights: Tensor | None = None
        self._take(logits.to(torch.float32))

    def _take(self, z: Tensor) -> None:
        """Set logits in canonical form; masked tokens are those at -inf."""
        z = torch.where(z.isnan(), _NEG_INF, z) + 0.0
        top = self.most(z).unsqueeze(1)
        infinite = torch.where(z == top, 0.0, _NEG_INF)
        self._z = torch.where(top == float("inf"), infinite, z)
        self._order = self._weights = None

    # What looks at all columns goes through these, which a vocabulary in parts overrides.

    def most(self, x: Tensor) -> Tensor:
        """The largest of each row, [B]."""
        return x.amax(1)

    def total(self, x: Tensor) -> Tensor:
        """The sum of each row, [B]."""
        return x.sum(1)

    def per_part(self, x: Tensor) -> Tensor:
        """The values [B] of all parts of the vocabulary, side by side; here there is one part."""
        return x.unsqueeze(1)

    def at_ids(self, dense: Tensor) -> Tensor:
        """The columns [B, V] of values for the whole vocabulary, [B, n_vocab]."""
        return dense

    @property
    def alive(self) -> Tensor:
        """Which tokens are candidates, bool [B, V]."""
        return self._z > _NEG_INF

    @property
    def size(self) -> Tensor:
        """The number of candidates of each row."""
        return self.total(self.alive.to(torch.int64))

    @property
    def top(self) -> Tensor:
        """Each row's largest logit, float32 [B, 1]; 0 if there is none."""
        top = self.most(self._z).unsqueeze(1)
        return torch.where(top > _NEG_INF, top, 0.0)

    @property
    def current(self) -> Tensor:
        """The logits without the pending temperature, float32 [B, V]."""
        return self._z

    @property
    def temperature(self) -> Tensor:
        """The pending temperature, float64 [B], by which the logits must still be divided."""
        return self._temperature

    def apply_temperature(self, factor: Tensor) -> None:
        """Multiply the temperature by float64 [B]; at 1e-5 or less only the first candidate stays."""
        product = self._temperature * factor
        cold = product <= contract.COLDEST
        self._temperature = torch.where(cold, 1.0, product)
        self.full_mass = torch.where(factor == 1, self.full_mass, 0)
        self.keep_only(self.first(), cold)

    @property
    def logits(self) -> Tensor:
        """The logits, with a pending temperature applied."""
        self.materialise(self._temperature != 1)
        return self._z

    @logits.setter
    def logits(self, logits: Tensor) -> None:
        self.write(torch.ones_like(self.selected, dtype=torch.bool), lambda z: logits)

    def materialise(self, rows: Tensor) -> None:
        """Apply the pending temperature of some rows, bool [B]."""
        divisor = torch.where(rows, self._temperature, 1.0).to(torch.float32).unsqueeze(1)
        self._temperature = torch.where(rows, 1.0, self._temperature)
        self._full_top = self._full_top / divisor
        self._take(torch.where(divisor == 1, self._z, self._z / divisor))

    def write(self, rows: Tensor, change: Callable[[Tensor], Tensor]) -> None:
        """Rewrite the logits of some rows, bool [B], by ``change(logits)``; masked ones stay masked."""
        self.materialise(rows & (self._temperature != 1))
        changed = torch.where(self.alive, change(self._z), _NEG_INF)
        self._take(torch.where(rows.unsqueeze(1), changed, self._z))
        self.full_mass = torch.where(rows, 0, self.full_mass)

    def keep(self, kept: Tensor) -> None:
        """Keep the tokens of a mask, bool [B, V]; their order does not change."""
        self._z = torch.where(kept, self._z, _NEG_INF)
        self._weights = None

    def scaled(self, top: Tensor | None = None) -> Tensor:
        """The contract's t, float32 [B, V]: log2 of each weight relative to the largest, or to ``top``'s."""
        # A number over a tensor would be a product with its reciprocal, which is rounded twice.
        c = torch.full_like(self._temperature, contract.LOG2_E) / self._temperature
        t = (self._z - (self.top if top is None else top)) * c.to(torch.float32).unsqueeze(1)
        return torch.where(t >= contract.LEAST_BITS, t, contract.LEAST_BITS)

    @property
    def weights(self) -> Tensor:
        """Q40 weights, int64 [B, V]; 0 for masked tokens."""
        if self._weights is None:
            self._weights = self._weighed(self.top)
        return self._weights

    def _weighed(self, top: Tensor) -> Tensor:
        """Weights relative to the logits ``top``, float32 [B, 1]."""
        p, n = power(self.scaled(top))
        return torch.where(self.alive, _q40(p, n), 0)

    @property
    def mass(self) -> Tensor:
        """The sum of the weights, int64 [B]."""
        return self.total(self.weights)

    @property
    def probs(self) -> Tensor:
        """Probabilities, float32 [B, V]: weight over mass."""
        mass = self.mass.clamp(min=1).to(torch.float64).unsqueeze(1)
        return (self.weights.to(torch.float64) / mass).to(torch.float32)

    def note_mass(self, rows: Tensor) -> None:
        """Set ``full_mass`` and ``p`` from the current candidates in some rows, bool [B]."""
        self.full_mass = torch.where(rows, self.mass, self.full_mass)
        self._full_top = torch.where(rows.unsqueeze(1), self.top, self._full_top)

    @property
    def p(self) -> Tensor:
        """Probabilities that the last softmax found, float32 [B, V].

        Later samplers do not change them, so that those of the remaining candidates sum to less than 1.  They
        are 0 before a softmax, after logits or the temperature changed, and for masked tokens.
        """
        noted = self.full_mass.unsqueeze(1)
        p = self._weighed(self._full_top).to(torch.float64) / noted.clamp(min=1).to(torch.float64)
        return torch.where(noted > 0, p, 0.0).to(torch.float32)

    def depths(self) -> Tensor:
        """How many bits each weight lies below 2^40, in Q16, int64 [B, V]."""
        return torch.round(-self.scaled() * contract.DEPTH_UNIT).to(torch.int64)

    def entropy_terms(self) -> EntropyTerms:
        """The terms of entropies, relative to the largest logit below the top."""
        top = self.top
        is_top = self._z == top
        others = self.alive & ~is_top
        second = self.most(torch.where(others, self._z, _NEG_INF)).unsqueeze(1)
        second = torch.where(second > _NEG_INF, second, top)
        t = self.scaled(second)
        p, exponent = power(torch.where(others, t, contract.LEAST_BITS))
        weighted = p * ((exponent + 127 + contract.WEIGHT_BITS) << 23).view(torch.float32) * -t
        weighted = torch.where(others, weighted, 0.0)
        c = torch.full_like(self._temperature, contract.LOG2_E) / self._temperature
        gap = (top.to(torch.float64) - second.to(torch.float64)).squeeze(1) * c
        return EntropyTerms(
            self.total(is_top.to(torch.int64)),
            gap,
            exp2_double(-gap),
            torch.where(others, _q40(p, exponent), 0),
            weighted.to(torch.int64),
        )

    def entropy(self) -> Entropy:
        """Entropy by integer sums of weights relative to the largest logit below the top."""
        terms = self.entropy_terms()
        sums = self.total(terms.weights), self.total(terms.bits)
        return entropy_of(terms.tops, terms.gap, terms.share, *sums)

    def keys(self) -> Tensor:
        """Distinct keys, int64 [B, V], larger the earlier a token is in the order."""
        return order_keys(self._z, self.ids)

    def order(self) -> Tensor:
        """Columns by logit descending, then token id ascending, int64 [B, V]; masked ones last.

        Made once and kept until logits are written: tokens that are masked later keep their places.
        """
        if self._order is None:
            self._order = self.keys().argsort(1, descending=True)
        return self._order

    def first(self) -> Tensor:
        """The first token of the order, int64 [B]; -1 in a row without candidates."""
        at_top = (self._z == self.most(self._z).unsqueeze(1)) & self.alive
        lowest = -self.most(torch.where(at_top, -self.ids, -_NO_TOKEN))
        return torch.where(lowest < _NO_TOKEN, lowest, NOTHING).to(torch.int64)

    def ranked(self, values: Tensor) -> Tensor:
        """[B, V] columns in the order."""
        return values.gather(1, self.order())

    def rank(self) -> Tensor:
        """The number of earlier candidates in the order, int64 [B, V], in the order."""
        alive = self.ranked(self.alive).to(torch.int64)
        return alive.cumsum(1) - alive

    def keep_first(self, k: Tensor) -> None:
        """Keep the first ``k`` of the order, int64 [B]."""
        self.keep_ranked(self.rank() < k.unsqueeze(1))

    def keep_mass(self, wanted: Tensor, least: Tensor) -> None:
        """Keep the shortest prefix of the order with mass ``wanted`` and ``least`` tokens, int64 [B]."""
        weights = self.ranked(self.weights)
        above = weights.cumsum(1) - weights
        self.keep_ranked((above < wanted.unsqueeze(1)) | (self.rank() < least.unsqueeze(1)))

    def keep_run(self, bound: Tensor, rows: Tensor) -> None:
        """Keep the leading candidates that weigh at least ``bound``, int64 [B], and the first, in some rows."""
        run = self.run(bound) | (self.rank() < 1)
        self.keep_ranked(run | ~rows.unsqueeze(1))

    def keep_near(self, threshold: Tensor, least: Tensor, rows: Tensor) -> None:
        """Keep logits within float32 ``threshold`` [B] of the largest, in some rows, bool [B].

        If fewer than ``least``, int64 [B], are near, the first ``least`` of the order stay.
        """
        kept = self.alive & (self._z - self.top >= threshold.unsqueeze(1))
        few = self.total(kept.to(torch.int64)) < least
        self.keep(kept | (few | ~rows).unsqueeze(1))
        least = torch.where(few & rows, least, 2**62)
        self.keep_mass(torch.zeros_like(least), least)

    def keep_probable(self, bound: Tensor, min_keep: Tensor, rows: Tensor) -> None:
        """Keep the run of weights that reach int64 ``bound`` [B], in some rows, bool [B].

        If the run is shorter than ``min_keep``, int64 [B], or empty, the first ``min_keep`` of the order stay,
        at least one, with all that tie with the last of them.
        """
        run, rank = self.run(bound), self.rank()
        least = min_keep.clamp(min=1).minimum(self.size)
        alive, z = self.ranked(self.alive), self.ranked(self._z)
        at = alive & (rank == (least - 1).unsqueeze(1))
        last = torch.where(at, z, _NEG_INF).amax(1, keepdim=True)
        few = (run.sum(1) < least).unsqueeze(1)
        self.keep_ranked(torch.where(few, z >= last, run) | ~rows.unsqueeze(1))

    def mask(self, masked: Tensor, rows: Tensor) -> None:
        """Mask tokens, bool [B, V], in some rows, bool [B], by writing their logits."""
        self.write(rows, lambda z: torch.where(masked, _NEG_INF, z))

    def keep_through(self, keys: Tensor) -> None:
        """Keep the candidates at ``keys``, int64 [B], or before in the order."""
        self.keep(self.keys() >= keys.unsqueeze(1))

    def keep_allowed(self, words: Tensor) -> None:
        """Keep the tokens whose bits are set, int32 [B, words]."""
        self.keep(unpack(words, self.ids))

    def keep_only(self, tokens: Tensor, rows: Tensor) -> None:
        """Keep one token, int64 [B], in some rows, bool [B]."""
        self.keep((self.ids == tokens.unsqueeze(1)) | ~rows.unsqueeze(1))

    def keep_ranked(self, kept: Tensor) -> None:
        """Keep by a mask in the order, bool [B, V]."""
        self.keep(torch.zeros_like(kept).scatter(1, self.order(), kept))

    def run(self, bound: Tensor) -> Tensor:
        """The leading candidates with weights of at least ``bound``, int64 [B]: bool [B, V], in the order."""
        alive, reached = self.ranked(self.alive), self.ranked(self.weights) >= bound.unsqueeze(1)
        failed = (alive & ~reached).to(torch.int64).cumsum(1) > 0
        return alive & ~failed

    def draw(self, u: Tensor, rows: Tensor, weights: Tensor | None = None) -> None:
        """Choose by inverse cumulative mass in the order of ids, from 64-bit uniforms [B].

        ``weights``, int64 [B, V], replace the candidates' own.
        """
        weights = self.weights if weights is None else weights
        mass = self.per_part(weights.sum(1))
        target = mul_high(u, mass.sum(1))
        # The part that contains the target, and the remaining mass there.
        before = mass.cumsum(1) - mass
        part = (mass.cumsum(1) <= target.unsqueeze(1)).sum(1, keepdim=True)
        rest = target.unsqueeze(1) - before.gather(1, part.clamp(max=mass.shape[1] - 1))
        column = (weights.cumsum(1) <= rest).sum(1, keepdim=True)
        column = column.clamp(max=weights.shape[1] - 1)
        found = self.per_part(self.ids.expand_as(weights).gather(1, column).squeeze(1))
        self.select(found.gather(1, part.clamp(max=mass.shape[1] - 1)).squeeze(1), rows)

    def select(self, tokens: Tensor, rows: Tensor) -> None:
        """Choose tokens [B] in some rows, bool [B]; -1 if a row has no candidates."""
        chosen = torch.where(self.size > 0, tokens.to(torch.int64), NOTHING)
        self.selected = torch.where(rows, chosen, self.selected)

    def snapshot(self) -> tuple[Tensor, ...]:
        """Copy everything that samplers can change."""
        return self._z, self._temperature, self.full_mass, self._full_top, self.selected

    def restore(self, before: tuple[Tensor, ...], rows: Tensor) -> None:
        """Restore some rows, bool [B], from a snapshot."""
        z, temperature, full_mass, full_top, selected = before
        self._z = torch.where(rows.unsqueeze(1), z, self._z)
        self._temperature = torch.where(rows, temperature, self._temperature)
        self.full_mass = torch.where(rows, full_mass, self.full_mass)
        self._full_top = torch.where(rows.unsqueeze(1), full_top, self._full_top)
        self.selected = torch.where(rows, selected, self.selected)
        self._order = self._weights = None


def order_keys(z: Tensor, ids: Tensor) -> Tensor:
    """Keys, int64, larger the earlier a token is in the order; ``z`` is float32 without NaN and -0."""
    bits = z.view(torch.int32).to(torch.int64)
    ordered = torch.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits)
    return (ordered << 32) + (MASK32 - ids.to(torch.int64))
