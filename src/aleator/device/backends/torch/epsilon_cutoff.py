"""Epsilon cut-off on the device; the contract is in aleator.samplers.epsilon_cutoff."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import ceil_of_fraction, fraction_parts
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.epsilon_cutoff import EpsilonCutoff


class DeviceEpsilonCutoff(DeviceSampler):
    """Keeps tokens of at least a probability."""

    fields: ClassVar[Fields] = {
        "m": Field(torch.int64, 0),
        "s": Field(torch.int64, 24),
        "min_keep": Field(torch.int64, 0),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The probability as a fraction m / 2^s."""
        own = expect(EpsilonCutoff, sampler)
        m, s = fraction_parts(own.epsilon_cutoff)
        return {"m": m, "s": s, "min_keep": own.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        bound = ceil_of_fraction(self.get("m", step), self.get("s", step), data.mass)
        data.keep_probable(bound, self.get("min_keep", step), self.get("active", step))
