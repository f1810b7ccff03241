"""Adaptive-p on the device; the contract is in aleator.samplers.adaptive_p."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from aleator.core.contract import Purpose
from aleator.device.candidates import DeviceCandidates
from aleator.device.places import RANDOM, DeviceSampler, DeviceStep, Fields, key, uniform


class DeviceAdaptiveP(DeviceSampler):
    """Draws tokens whose probability is near a target."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "target": (torch.float64, -1.0),
        "decay": (torch.float64, 0.0),
        "sums": (torch.float64, 0.0),  # of past probabilities, and of their
        "counts": (torch.float64, 1.0),  # weights, after each number of generated tokens
        "next_sum": (torch.float64, 0.0),  # if the token that was drawn is accepted
        "next_count": (torch.float64, 1.0),
    }

    def shape(self, name: str) -> tuple[int, ...]:
        """The average is remembered at every position, so that a rollback is exact."""
        return (self.max_tokens + 1,) if name in ("sums", "counts") else ()

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """The average begins at the target."""
        target, decay = sampler.adaptive_target, sampler.adaptive_decay
        return {
            **key(sampler.seed_in(place), Purpose.ADAPTIVE_P, place),
            "target": target,
            "decay": decay,
            "sums": min(max(target, 0.0), 1.0) / (1 - decay),
            "counts": 1 / (1 - decay),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Favour what is near, and draw."""
        active, target = self.get("active", step), self.get("target", step)
        at, on = step.position.unsqueeze(1), active & (target >= 0)
        total, count = (
            self.get(name, step).gather(1, at).squeeze(1) for name in ("sums", "counts")
        )
        p, size = data.probs, data.size
        wanted = (2 * target - total / count).clamp(0.0, 1.0).to(torch.float32).unsqueeze(1)
        data.materialise(on & (data.temperature != 1))
        lost = on & (
            data.size != size
        )  # the temperature before it is too small: an error on the host
        distance = (p - wanted).abs()
        distance = distance / torch.full_like(distance, 0.3)  # over a number: times its reciprocal

        def favour(z: Tensor) -> Tensor:
            above = distance * distance * 10.0
            return 5.0 - above / (distance + 1.0)

        data.write(on, favour)
        data.keep(~lost.unsqueeze(1))
        data.draw(uniform(self, step), active)
        chosen = data.total(torch.where(data.ids == data.selected.unsqueeze(1), p, 0.0))
        decay = self.get("decay", step)
        self.get("next_sum", step).copy_(chosen.to(torch.float64) + decay * total)
        self.get("next_count", step).copy_(1.0 + decay * count)

    def accepted(self, drawn: Tensor, step: DeviceStep) -> None:
        """Move the average in the rows that drew a token."""
        at = step.position.unsqueeze(1)
        moves = drawn & (self.get("target", step) >= 0)
        for name, coming in (("sums", "next_sum"), ("counts", "next_count")):
            kept = self.get(name, step)
            before = kept.gather(1, (at - drawn.unsqueeze(1).to(torch.int64)).clamp(min=0)).squeeze(
                1
            )
            kept.scatter_(1, at, torch.where(moves, self.get(coming, step), before).unsqueeze(1))

    def carried(self, row: int, position: int) -> None:
        """Another's token leaves the average where it was."""
        for name in ("sums", "counts"):
            self.rows[name][row, position] = self.rows[name][row, position - 1]
