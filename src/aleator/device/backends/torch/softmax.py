"""Softmax on the device: notes the mass; the contract is in aleator.samplers.softmax."""

from __future__ import annotations

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Values
from aleator.samplers.base import Place, Sampler


class DeviceSoftmax(DeviceSampler):
    """Notes the mass of the whole row."""

    def values(self, sampler: Sampler, place: Place) -> Values:
        """No parameters."""
        return {}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Note it."""
        data.note_mass(self.get("active", step))
