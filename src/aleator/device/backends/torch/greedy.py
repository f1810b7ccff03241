"""Greedy on the device; the contract is in aleator.samplers.greedy."""

from __future__ import annotations

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Values
from aleator.samplers.base import Place, Sampler


class DeviceGreedy(DeviceSampler):
    """Selects the token with the largest logit."""

    def values(self, sampler: Sampler, place: Place) -> Values:
        """No parameters."""
        return {}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Select."""
        data.select(data.first(), self.get("active", step))
