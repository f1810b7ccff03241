"""P-less on the device; the contract is in aleator.samplers.p_less."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import less, mul_high
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.p_less import PLess


class DevicePLess(DeviceSampler):
    """Keeps tokens whose probability reaches the sum of all squared probabilities."""

    fields: ClassVar[Fields] = {"normalized": Field(torch.bool, False)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """Which bound."""
        return {"normalized": expect(PLess, sampler).p_less == "normalized"}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        mass, n = data.mass.clamp(min=1), data.size
        high, low = data.weights >> 20, data.weights & 0xFFFFF
        # Sums below 2^61 each; high * 2^40 + middle * 2^21 + low is the sum of squares, of 128 bits.
        highs, middles, lows = (data.total(x) for x in (high * high, high * low, low * low))
        head = (highs << 40) + (middles << 21)
        tail = head + lows
        upper = (highs >> 24) + (middles >> 43) + less(head, middles << 21) + less(tail, lows)
        # A quotient in float64 is off by less than one unit.
        squares = highs.to(torch.float64) * 2.0**40 + middles.to(torch.float64) * 2.0**21 + lows
        bound = (squares / mass.to(torch.float64)).to(torch.int64)
        for _ in range(2):
            product = mul_high(bound, mass)
            under = (product < upper) | ((product == upper) & less(bound * mass, tail))
            bound = bound + under.to(torch.int64)
        others = (n - 1).clamp(min=1)
        normal = torch.div(n * bound - mass + others - 1, others, rounding_mode="floor")
        bound = torch.where(self.get("normalized", step) & (n > 1), normal, bound)
        data.keep_run(bound, self.get("active", step))
