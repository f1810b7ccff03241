"""Greedy on the device; the contract is in aleator.samplers.greedy."""

from __future__ import annotations

from typing import Any

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep


class DeviceGreedy(DeviceSampler):
    """Selects the token with the largest logit."""

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """No parameters."""
        return {}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Select."""
        data.select(data.first(), self.get("active", step))
