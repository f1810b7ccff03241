"""Smoothing on the device; the contract is in aleator.samplers.smoothing."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.smoothing import Smoothing


class DeviceSmoothing(DeviceSampler):
    """Bends the logits with the square and the cube of their distance from the best."""

    fields: ClassVar[Fields] = {
        "square": Field(torch.float32, 0.0),
        "cube": Field(torch.float32, 0.0),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The coefficients."""
        square, cube = expect(Smoothing, sampler).coefficients
        return {"square": square, "cube": cube}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Bend."""
        active = self.get("active", step)
        data.materialise(active & (data.temperature != 1))
        top = data.top
        a, b = self.get("square", step).unsqueeze(1), self.get("cube", step).unsqueeze(1)

        def bend(z: Tensor) -> Tensor:
            d = z - top
            square = d * d
            bent = square * a
            bent = top - bent
            cube = square * d
            cube = cube * b
            return bent + cube

        data.write(active, bend)
