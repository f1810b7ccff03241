"""Top-p on the device; the contract is in aleator.samplers.top_p."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import ceil_of_fraction, fraction_parts
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.top_p import TopP


class DeviceTopP(DeviceSampler):
    """Keeps the shortest prefix of the order that holds the mass."""

    fields: ClassVar[Fields] = {
        "m": Field(torch.int64, 0),
        "s": Field(torch.int64, 24),
        "min_keep": Field(torch.int64, 0),
        "full": Field(torch.bool, False),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """P as a fraction m / 2^s."""
        own = expect(TopP, sampler)
        m, s = fraction_parts(own.top_p)
        return {"m": m, "s": s, "min_keep": own.min_keep, "full": own.mass == "full"}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        active, full = self.get("active", step), self.get("full", step)
        total = torch.where(full, data.full_mass, data.mass)
        wanted = ceil_of_fraction(self.get("m", step), self.get("s", step), total)
        least = self.get("min_keep", step).clamp(min=1)
        # A user's sampler may have changed logits since Softmax noted their mass: nothing is left then.
        least = torch.where(full & (total == 0), 0, least)
        data.keep_mass(torch.where(active, wanted, 2**62), least)
