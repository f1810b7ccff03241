"""Temperature on the device, dynamic too; the contract is in aleator.samplers.temperature."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import exp2_double, log2_double
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.temperature import Temperature


class DeviceTemperature(DeviceSampler):
    """Multiplies the pending temperature."""

    fields: ClassVar[Fields] = {
        "low": Field(torch.float64, 1.0),
        "high": Field(torch.float64, 1.0),
        "exponent": Field(torch.float64, 1.0),
        "dynamic": Field(torch.bool, False),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """Bounds of the dynamic temperature, or the one there is."""
        own = expect(Temperature, sampler)
        temperature, spread = own.temperature, own.dynatemp_range
        if spread <= 0:
            return {"low": temperature, "high": temperature}
        return {
            "low": max(0.0, temperature - spread),
            "high": temperature + spread,
            "exponent": own.dynatemp_exponent,
            "dynamic": True,
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Multiply."""
        low, high = self.get("low", step), self.get("high", step)
        exponent = self.get("exponent", step)
        count = data.size
        most = log2_double(count.clamp(min=2).to(torch.float64))
        level = (data.entropy().bits / most).clamp(max=1)
        power = exp2_double(exponent * log2_double(torch.where(level > 0, level, 1.0)))
        level = torch.where((level > 0) & (exponent != 1), power, level)
        level = torch.where(exponent == 0, 1.0, level)
        level = torch.where(count > 1, level, 0.0)
        dynamic = low + (high - low) * level
        data.heat(torch.where(self.get("dynamic", step), dynamic, low))
