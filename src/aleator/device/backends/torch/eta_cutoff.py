"""Eta cut-off on the device; the contract is in aleator.samplers.eta_cutoff."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from aleator.core.parameter import single
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import ceil_of_fraction, exp2_double
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.eta_cutoff import EtaCutoff


class DeviceEtaCutoff(DeviceSampler):
    """Keeps tokens of at least a probability, or less where the entropy is high."""

    fields: ClassVar[Fields] = {
        "most": Field(torch.float64, 0.0),
        "root": Field(torch.float64, 0.0),
        "min_keep": Field(torch.int64, 0),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The probability and its square root."""
        own = expect(EtaCutoff, sampler)
        most = single(own.eta_cutoff)
        return {"most": most, "root": math.sqrt(most), "min_keep": own.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        entropy = data.entropy()
        power = exp2_double(-entropy.bits)
        eta = (self.get("root", step) * power).minimum(self.get("most", step)).to(torch.float32)
        mantissa, exponent = torch.frexp(eta)
        m, s = (mantissa * 2.0**24).to(torch.int64), 24 - exponent.to(torch.int64)
        bound = ceil_of_fraction(m, s, entropy.mass)
        data.keep_probable(bound, self.get("min_keep", step), self.get("active", step))
