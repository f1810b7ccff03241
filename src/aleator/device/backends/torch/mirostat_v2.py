"""Mirostat 2 on the device; the contract is in aleator.samplers.mirostat_v2 and mirostat_state."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from aleator.core.contract import Purpose
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import log2_q32
from aleator.device.places import RANDOM, DeviceSampler, DeviceStep, Fields, key, uniform


class DeviceMirostatV2(DeviceSampler):
    """Draws with the surprise of tokens held near tau bits."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "tau": (torch.float64, 0.0),
        "eta": (torch.float64, 0.0),
        "mu": (torch.float64, 0.0),  # after each number of generated tokens
        "next": (torch.float64, 0.0),  # if the token that was drawn is accepted
    }

    def shape(self, name: str) -> tuple[int, ...]:
        """Mu is remembered at every position, so that a rollback is exact."""
        return (self.max_tokens + 1,) if name == "mu" else ()

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """Mu begins at twice tau."""
        return {
            **key(sampler.seed_in(place), Purpose.MIROSTAT_V2, place),
            "tau": sampler.mirostat_tau,
            "eta": sampler.mirostat_eta,
            "mu": 2 * sampler.mirostat_tau,
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate and draw."""
        active = self.get("active", step)
        mu = self.get("mu", step).gather(1, step.position.unsqueeze(1)).squeeze(1)
        q = (mu.clamp(-100.0, 100.0) * 2.0**32).floor().to(torch.int64)
        level = log2_q32(data.mass.clamp(min=1)) - q
        run = data.run(_least(level))
        kept = run | (data.rank() < 1) | (level <= 0).unsqueeze(1) | ~active.unsqueeze(1)
        data.keep_ranked(kept)
        data.draw(uniform(self, step), active)
        at_selected = data.ids == data.selected.unsqueeze(1)
        chosen = data.total(torch.where(at_selected, data.weights, 0))
        bits = log2_q32(data.mass.clamp(min=1)) - log2_q32(chosen.clamp(min=1))
        surprise = bits.to(torch.float64) / 2.0**32
        moved = mu - self.get("eta", step) * (surprise - self.get("tau", step))
        self.get("next", step).copy_(moved)

    def accepted(self, drawn: Tensor, step: DeviceStep) -> None:
        """Move mu in the rows that drew a token."""
        mu, at = self.get("mu", step), step.position.unsqueeze(1)
        moved = torch.where(drawn, self.get("next", step), mu.gather(1, at).squeeze(1))
        mu.scatter_(1, at, moved.unsqueeze(1))

    def carried(self, row: int, position: int) -> None:
        """Another's token leaves mu where it was."""
        mu = self.rows["mu"]
        mu[row, position] = mu[row, position - 1]


def _least(level: Tensor) -> Tensor:
    """The least weight, int64 [B], whose log2 in Q32 reaches ``level``; beyond 2^40 there is none."""
    low, high = torch.ones_like(level), torch.full_like(level, (1 << 40) + 1)
    for _ in range(41):
        middle = low + high >> 1
        reached = log2_q32(middle) >= level
        high = torch.where(reached, middle, high)
        low = torch.where(reached, low, middle + 1).minimum(high)
    return high
