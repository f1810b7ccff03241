"""Device samplers that keep some candidates; the contracts are in aleator.samplers, one module for each."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.core.contract import DEPTH_UNIT, SIGMA_LEAST, SIGMA_UNIT, Purpose
from aleator.core.parameter import single
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import ceil_of_fraction, exp2_double, fraction_parts, less, variance
from aleator.device.places import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    Values,
    expect,
    key,
    signed64,
    uniform,
)
from aleator.samplers.base import Place, Sampler
from aleator.samplers.epsilon_cutoff import EpsilonCutoff
from aleator.samplers.eta_cutoff import EtaCutoff
from aleator.samplers.min_p import MinP
from aleator.samplers.top_k import TopK
from aleator.samplers.top_n_sigma import TopNSigma
from aleator.samplers.top_p import TopP
from aleator.samplers.typical_p import TypicalP
from aleator.samplers.xtc import XTC


class DeviceTopK(DeviceSampler):
    """Keeps the first k of the order."""

    fields: ClassVar[Fields] = {"k": Field(torch.int64, 2**62)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        return {"k": expect(TopK, sampler).kept_of(self.n_vocab)}

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

    def values(self, sampler: Sampler, place: Place) -> Values:
        own = expect(TopP, sampler)
        return {**_fraction(own.top_p, own.min_keep), "full": own.mass == "full"}

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

    def values(self, sampler: Sampler, place: Place) -> Values:
        """ln(min_p), made once on the host."""
        own = expect(MinP, sampler)
        return {"log": math.log(float(np.float32(own.min_p))), "min_keep": own.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        bound = (data.temperature * self.get("log", step)).to(torch.float32)
        data.keep_near(bound, self.get("min_keep", step), self.get("active", step))


class DeviceTypicalP(DeviceFraction):
    """Keeps the tokens whose surprise is closest to the entropy."""

    def values(self, sampler: Sampler, place: Place) -> Values:
        own = expect(TypicalP, sampler)
        return _fraction(own.typical_p, own.min_keep)

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

    def values(self, sampler: Sampler, place: Place) -> Values:
        return {"n": single(expect(TopNSigma, sampler).top_n_sigma)}

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

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The coin falls where u < ceil(probability * 2^64)."""
        own = expect(XTC, sampler)
        probability = single(own.xtc_probability)
        coin = 0 if probability >= 1 else math.ceil(probability * 2.0**64)
        return {
            **key(own.seed_in(place), Purpose.XTC, place),
            **_fraction(own.xtc_threshold, own.min_keep),
            "coin": signed64(coin),
            "always": probability >= 1,
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        falls = less(uniform(self, step), self.get("coin", step)) | self.get("always", step)
        run = data.run(self.of(data.mass, step))
        length = run.sum(1)
        enough = data.size - (length - 1) >= self.get("min_keep", step)
        acts = self.get("active", step) & falls & (length >= 2) & enough
        removed = run & (data.rank() < (length - 1).unsqueeze(1)) & acts.unsqueeze(1)
        data.keep_ranked(~removed)


class DeviceEpsilonCutoff(DeviceFraction):
    """Keeps tokens of at least a probability."""

    def values(self, sampler: Sampler, place: Place) -> Values:
        own = expect(EpsilonCutoff, sampler)
        return _fraction(own.epsilon_cutoff, own.min_keep)

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

    def values(self, sampler: Sampler, place: Place) -> Values:
        own = expect(EtaCutoff, sampler)
        most = single(own.eta_cutoff)
        return {"most": most, "root": math.sqrt(most), "min_keep": own.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        entropy = data.entropy()
        power = exp2_double(-entropy.bits)
        eta = (self.get("root", step) * power).minimum(self.get("most", step)).to(torch.float32)
        mantissa, exponent = torch.frexp(eta)
        m, s = (mantissa * 2.0**24).to(torch.int64), 24 - exponent.to(torch.int64)
        bound = ceil_of_fraction(m, s, entropy.mass)
        data.keep_probable(bound, self.get("min_keep", step), self.get("active", step))
