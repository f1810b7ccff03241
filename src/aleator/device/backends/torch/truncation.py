"""Device samplers that keep some candidates; the contracts are in aleator.samplers, one module for each."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.core.contract import DEPTH_UNIT, SIGMA_LEAST, SIGMA_UNIT, Purpose
from aleator.core.parameter import single
from aleator.device.candidates import DeviceCandidates, entropy_of
from aleator.device.device_sampler import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    Values,
    key,
    signed64,
)
from aleator.device.fixed import (
    ceil_of_fraction,
    exp2_double,
    fraction_parts,
    less,
    mul_high,
    variance,
)
from aleator.samplers.base import Place
from aleator.samplers.epsilon_cutoff import EpsilonCutoff
from aleator.samplers.eta_cutoff import EtaCutoff
from aleator.samplers.min_k import MinK
from aleator.samplers.min_p import MinP
from aleator.samplers.p_less import PLess
from aleator.samplers.top_h import TopH
from aleator.samplers.top_k import TopK
from aleator.samplers.top_n_sigma import TopNSigma
from aleator.samplers.top_p import TopP
from aleator.samplers.typical_p import TypicalP
from aleator.samplers.xtc import XTC


class DeviceTopK(DeviceSampler):
    """Keeps the first k of the order."""

    fields: ClassVar[Fields] = {"k": Field(torch.int64, 2**62)}

    def values(self, sampler: TopK, place: Place) -> Values:
        return {"k": sampler.kept_of(self.n_vocab)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.keep_first(self.get("k", step))


class DeviceFraction(DeviceSampler):
    """What samplers share that compare with a fraction m / 2^s of a mass, and keep some tokens always."""

    fields: ClassVar[Fields] = {
        "m": Field(torch.int64, 0),
        "s": Field(torch.int64, 24),
        "min_keep": Field(torch.int64, 0),
    }

    def of(self, mass: Tensor, step: DeviceStep) -> Tensor:
        """The rows' fractions of int64 ``mass`` [B], rounded up."""
        return ceil_of_fraction(self.get("m", step), self.get("s", step), mass)


def _fraction(x: float, min_keep: int) -> dict[str, int]:
    """A row of the fields of DeviceFraction."""
    m, s = fraction_parts(x)
    return {"m": m, "s": s, "min_keep": min_keep}


class DeviceTopP(DeviceFraction):
    """Keeps the shortest prefix of the order that holds the mass."""

    fields: ClassVar[Fields] = {**DeviceFraction.fields, "full": Field(torch.bool, False)}

    def values(self, sampler: TopP, place: Place) -> Values:
        return {**_fraction(sampler.top_p, sampler.min_keep), "full": sampler.mass == "full"}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        active, full = self.get("active", step), self.get("full", step)
        total = torch.where(full, data.full_mass, data.mass)
        wanted = self.of(total, step)
        least = self.get("min_keep", step).clamp(min=1)
        # A user's sampler may have changed logits since Softmax noted their mass: nothing is left then.
        least = torch.where(full & (total == 0), 0, least)
        data.keep_mass(torch.where(active, wanted, 2**62), least)


class DeviceMinP(DeviceSampler):
    """Keeps what is within a distance of the largest logit."""

    fields: ClassVar[Fields] = {"log": Field(torch.float64, 0.0), "min_keep": Field(torch.int64, 0)}

    def values(self, sampler: MinP, place: Place) -> Values:
        """ln(min_p), made once on the host."""
        return {"log": math.log(float(np.float32(sampler.min_p))), "min_keep": sampler.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        bound = (data.temperature * self.get("log", step)).to(torch.float32)
        data.keep_near(bound, self.get("min_keep", step), self.get("active", step))


class DeviceTypicalP(DeviceFraction):
    """Keeps the tokens whose surprise is closest to the entropy."""

    def values(self, sampler: TypicalP, place: Place) -> Values:
        return _fraction(sampler.typical_p, sampler.min_keep)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        entropy = data.entropy()
        mean = (entropy.depth * DEPTH_UNIT + 0.5).floor().to(torch.int64)
        distance = (data.depths() - mean.unsqueeze(1)).abs()
        distance = data.ranked(torch.where(data.alive, distance, 2**40))  # masked ones last
        # Distances are below 2^24: with the place in the order one key says all, without ties.
        place = torch.arange(distance.shape[1], device=distance.device)
        nearest = ((distance << 20) + place).argsort(1)
        weights = data.ranked(data.weights).gather(1, nearest)
        above = weights.cumsum(1) - weights
        least = self.get("min_keep", step).clamp(min=1).unsqueeze(1)
        kept = (above < self.of(entropy.mass, step).unsqueeze(1)) | (place < least)
        kept = torch.zeros_like(kept).scatter(1, nearest, kept)
        data.keep_ranked(kept | ~self.get("active", step).unsqueeze(1))


class DeviceTopNSigma(DeviceSampler):
    """Keeps logits within some standard deviations of the largest."""

    fields: ClassVar[Fields] = {"n": Field(torch.float64, 0.0)}

    def values(self, sampler: TopNSigma, place: Place) -> Values:
        return {"n": single(sampler.top_n_sigma)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        d = data.current - data.top
        q = torch.round(d.clamp(min=SIGMA_LEAST) * SIGMA_UNIT).to(torch.int64)
        q = torch.where(data.alive, q, 0)
        count = data.size
        spread = variance(count, data.total(q), data.total(q * q))
        sigma = spread.sqrt() / count.clamp(min=1).to(torch.float64) / SIGMA_UNIT
        bound = (-(self.get("n", step) * sigma)).to(torch.float32)
        data.keep((d >= bound.unsqueeze(1)) | ~self.get("active", step).unsqueeze(1))


class DeviceXTC(DeviceFraction):
    """Sometimes removes the leading tokens above a threshold but the last of them."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        **DeviceFraction.fields,
        "coin": Field(torch.int64, 0),
        "always": Field(torch.bool, False),
    }

    def values(self, sampler: XTC, place: Place) -> Values:
        """The coin falls where u < ceil(probability * 2^64)."""
        probability = single(sampler.xtc_probability)
        coin = 0 if probability >= 1 else math.ceil(probability * 2.0**64)
        return {
            **key(sampler.seed_in(place), Purpose.XTC, place),
            **_fraction(sampler.xtc_threshold, sampler.min_keep),
            "coin": signed64(coin),
            "always": probability >= 1,
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        falls = less(self.uniform(step), self.get("coin", step)) | self.get("always", step)
        run = data.run(self.of(data.mass, step))
        length = run.sum(1)
        enough = data.size - (length - 1) >= self.get("min_keep", step)
        acts = self.get("active", step) & falls & (length >= 2) & enough
        removed = run & (data.rank() < (length - 1).unsqueeze(1)) & acts.unsqueeze(1)
        data.keep_ranked(~removed)


class DeviceEpsilonCutoff(DeviceFraction):
    """Keeps tokens of at least a probability."""

    def values(self, sampler: EpsilonCutoff, place: Place) -> Values:
        return _fraction(sampler.epsilon_cutoff, sampler.min_keep)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        bound = self.of(data.mass, step)
        data.keep_probable(bound, self.get("min_keep", step), self.get("active", step))


class DeviceEtaCutoff(DeviceSampler):
    """Keeps tokens of at least a probability, or less where the entropy is high."""

    fields: ClassVar[Fields] = {
        "most": Field(torch.float64, 0.0),
        "root": Field(torch.float64, 0.0),
        "min_keep": Field(torch.int64, 0),
    }

    def values(self, sampler: EtaCutoff, place: Place) -> Values:
        most = single(sampler.eta_cutoff)
        return {"most": most, "root": math.sqrt(most), "min_keep": sampler.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        entropy = data.entropy()
        power = exp2_double(-entropy.bits)
        eta = (self.get("root", step) * power).minimum(self.get("most", step)).to(torch.float32)
        mantissa, exponent = torch.frexp(eta)
        m, s = (mantissa * 2.0**24).to(torch.int64), 24 - exponent.to(torch.int64)
        bound = ceil_of_fraction(m, s, entropy.mass)
        data.keep_probable(bound, self.get("min_keep", step), self.get("active", step))


class DeviceMinK(DeviceSampler):
    """Keeps what stands before the steepest fall of the sorted logits."""

    fields: ClassVar[Fields] = {"tau": Field(torch.float64, 0.0)}

    def values(self, sampler: MinK, place: Place) -> Values:
        """Tau, as its float32."""
        return {"tau": single(sampler.min_k_tau)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        size = data.size
        z = data.current.sort(dim=1, descending=True).values.to(torch.float64)  # masked ones last
        rank = torch.arange(1, z.shape[1] + 1, device=z.device)
        fall = (z - z.roll(-1, 1)) / rank.to(torch.float64)
        fall = torch.where(rank < size.unsqueeze(1), fall, -1.0)
        steepest = fall == fall.amax(1, keepdim=True)
        cliff = torch.where(steepest, rank, z.shape[1]).amin(1)
        last = z.gather(1, (size - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        span = z[:, 0] - last
        wanted = (self.get("tau", step) / span).minimum(size.to(torch.float64)).to(torch.int64)
        kept = torch.where(span > 0, cliff.maximum(wanted), 2**62)
        data.keep_first(torch.where(self.get("active", step), kept, 2**62))


class DevicePLess(DeviceSampler):
    """Keeps tokens whose probability reaches the sum of all squared probabilities."""

    fields: ClassVar[Fields] = {"normalized": Field(torch.bool, False)}

    def values(self, sampler: PLess, place: Place) -> Values:
        """Which bound."""
        return {"normalized": sampler.p_less == "normalized"}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        mass, n = data.mass.clamp(min=1), data.size
        high, low = data.weights >> 20, data.weights & 0xFFFFF
        # Sums below 2^61 each; high * 2^40 + middle * 2^21 + low is the sum of squares, of 128 bits.
        highs, middles, lows = (data.total(x) for x in (high * high, high * low, low * low))
        head = (highs << 40) + (middles << 21)
        tail = head + lows
        upper = (highs >> 24) + (middles >> 43) + less(head, middles << 21) + less(tail, lows)
        # A quotient in float64 is off by less than one unit.
        squares = highs.to(torch.float64) * 2.0**40 + middles.to(torch.float64) * 2.0**21 + lows
        bound = (squares / mass.to(torch.float64)).to(torch.int64)
        for _ in range(2):
            product = mul_high(bound, mass)
            under = (product < upper) | ((product == upper) & less(bound * mass, tail))
            bound = bound + under.to(torch.int64)
        others = (n - 1).clamp(min=1)
        normal = torch.div(n * bound - mass + others - 1, others, rounding_mode="floor")
        bound = torch.where(self.get("normalized", step) & (n > 1), normal, bound)
        data.keep_run(bound, self.get("active", step))


FAR = 1024
"""Lengths are sought among multiples of this first, all at once, then among what lies between."""


class DeviceTopH(DeviceSampler):
    """Keeps the most likely tokens whose entropy is at most a share of that of all."""

    fields: ClassVar[Fields] = {"share": Field(torch.float64, 1.0)}

    def values(self, sampler: TopH, place: Place) -> Values:
        """The share, as its float32."""
        return {"share": single(sampler.top_h)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        terms = data.entropy_terms()
        weights, bits = (data.ranked(x).cumsum(1) for x in (terms.weights, terms.bits))
        counts = data.ranked(data.alive).to(torch.int64).cumsum(1)
        tops, gap, share = (x.unsqueeze(1) for x in terms[:3])
        size, n_columns = data.size.unsqueeze(1), counts.shape[1]

        def entropies(lengths: Tensor) -> Tensor:
            # What was masked late may stand between candidates in the order: a length is no column.
            at = torch.searchsorted(counts, lengths).clamp(max=n_columns - 1)
            of = entropy_of(
                tops.minimum(lengths), gap, share, weights.gather(1, at), bits.gather(1, at)
            )
            return of.bits

        most = self.get("share", step).unsqueeze(1) * entropies(size)
        kept = torch.zeros_like(terms.tops)
        for unit, places in ((FAR, n_columns // FAR), (1, min(FAR - 1, n_columns))):
            lengths = kept.unsqueeze(1) + unit * torch.arange(1, places + 1, device=kept.device)
            passes = (entropies(lengths) <= most) & (lengths <= size)
            kept = kept + unit * _by_bits(passes)
        data.keep_first(torch.where(self.get("active", step), kept.clamp(min=1), 2**62))


def _by_bits(passes: Tensor) -> Tensor:
    """int64 [B]: the number whose bits are set from the highest where ``passes`` [B, n], from 1 on, says so."""
    n = passes.shape[1]
    found = torch.zeros(len(passes), dtype=torch.int64, device=passes.device)
    for i in reversed(range(n.bit_length())):
        next_ = found + (1 << i)
        says = passes.gather(1, (next_ - 1).clamp(max=n - 1).unsqueeze(1)).squeeze(1)
        found = torch.where(says & (next_ <= n), next_, found)
    return found
