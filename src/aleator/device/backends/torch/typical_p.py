"""Typical-p on the device; the contract is in aleator.samplers.typical_p."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.core.contract import DEPTH_UNIT
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import ceil_of_fraction, fraction_parts
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.typical_p import TypicalP

_LAST = 2**40


class DeviceTypicalP(DeviceSampler):
    """Keeps the tokens whose surprise is closest to the entropy."""

    fields: ClassVar[Fields] = {
        "m": Field(torch.int64, 0),
        "s": Field(torch.int64, 24),
        "min_keep": Field(torch.int64, 0),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """P as a fraction m / 2^s."""
        own = expect(TypicalP, sampler)
        m, s = fraction_parts(own.typical_p)
        return {"m": m, "s": s, "min_keep": own.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        entropy = data.entropy()
        mean = (entropy.depth * DEPTH_UNIT + 0.5).floor().to(torch.int64)
        distance = (data.depths() - mean.unsqueeze(1)).abs()
        distance = data.ranked(torch.where(data.alive, distance, _LAST))
        # Distances are below 2^24: with the place in the order one key says all, without ties.
        place = torch.arange(distance.shape[1], device=distance.device)
        nearest = ((distance << 20) + place).argsort(1)
        weights = data.ranked(data.weights).gather(1, nearest)
        wanted = ceil_of_fraction(self.get("m", step), self.get("s", step), entropy.mass)
        above = weights.cumsum(1) - weights
        least = self.get("min_keep", step).clamp(min=1).unsqueeze(1)
        kept = (above < wanted.unsqueeze(1)) | (place < least)
        kept = torch.zeros_like(kept).scatter(1, nearest, kept)
        data.keep_ranked(kept | ~self.get("active", step).unsqueeze(1))
