"""Mirostat 2 on the device; the contract is in aleator.samplers.mirostat_v2 and mirostat_state."""

from __future__ import annotations

import torch
from torch import Tensor

from aleator.core.contract import MU_LIMIT, WEIGHT_BITS
from aleator.device.backends.torch.mirostat_state import DeviceMirostatSampler
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import log2_q32
from aleator.device.places import DeviceStep


class DeviceMirostatV2(DeviceMirostatSampler):
    """Removes tokens with more than mu bits of surprise, and draws."""

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate and draw."""
        mu = self.get_state("mu", step)
        q = (mu.clamp(-MU_LIMIT, MU_LIMIT) * 2.0**32).floor().to(torch.int64)
        level = log2_q32(data.mass.clamp(min=1)) - q
        data.keep_run(_least(level), self.get("active", step) & (level > 0))
        self.draw(data, mu, step)


def _least(level: Tensor) -> Tensor:
    """The least weight, int64 [B], whose log2 in Q32 reaches ``level``; beyond 2^40 there is none."""
    low, high = torch.ones_like(level), torch.full_like(level, (1 << WEIGHT_BITS) + 1)
    for _ in range(WEIGHT_BITS + 1):
        middle = low + high >> 1
        reached = log2_q32(middle) >= level
        high = torch.where(reached, middle, high)
        low = torch.where(reached, low, middle + 1).minimum(high)
    return high
