"""Adaptive-p on the device; the contract is in aleator.samplers.adaptive_p."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.core.contract import ADAPTIVE_PEAK, ADAPTIVE_SLOPE, ADAPTIVE_WIDTH, Purpose
from aleator.device.candidates import DeviceCandidates
from aleator.device.places import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    Values,
    expect,
    key,
    uniform,
)
from aleator.samplers.adaptive_p import AdaptiveP
from aleator.samplers.base import Place, Sampler


class DeviceAdaptiveP(DeviceSampler):
    """Draws tokens whose probability is near a target."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "target": Field(torch.float64, -1.0),
        "decay": Field(torch.float64, 0.0),
    }
    state: ClassVar[Fields] = {
        "total": Field(torch.float64, 0.0),  # of past probabilities, and of their
        "weight": Field(torch.float64, 1.0),  # weights
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The average begins at the target."""
        own = expect(AdaptiveP, sampler)
        target, decay = own.adaptive_target, own.adaptive_decay
        return {
            **key(own.seed_in(place), Purpose.ADAPTIVE_P, place),
            "target": target,
            "decay": decay,
            "total": min(max(target, 0.0), 1.0) / (1 - decay),
            "weight": 1 / (1 - decay),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Favour what is near, and draw."""
        active, target = self.get("active", step), self.get("target", step)
        on = active & (target >= 0)
        total, count = self.get_state("total", step), self.get_state("weight", step)
        p, size = data.probs, data.size
        wanted = (2 * target - total / count).clamp(0.0, 1.0).to(torch.float32).unsqueeze(1)
        data.materialise(on & (data.temperature != 1))
        lost = on & (
            data.size != size
        )  # the temperature before it is too small: an error on the host
        distance = (p - wanted).abs()
        distance = distance / torch.full_like(
            distance, ADAPTIVE_WIDTH
        )  # over a number: times its reciprocal

        def favour(z: Tensor) -> Tensor:
            above = distance * distance * ADAPTIVE_SLOPE
            return ADAPTIVE_PEAK - above / (distance + 1.0)

        data.write(on, favour)
        data.keep(~lost.unsqueeze(1))
        data.draw(uniform(self, step), active)
        chosen = data.total(torch.where(data.ids == data.selected.unsqueeze(1), p, 0.0))
        decay = self.get("decay", step)
        moved = chosen.to(torch.float64) + decay * total
        self.propose("total", torch.where(target >= 0, moved, total), step)
        moved = 1.0 + decay * count
        self.propose("weight", torch.where(target >= 0, moved, count), step)
