"""Dist on the device; the contract is in aleator.samplers.dist."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.core.contract import Purpose
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import log2_q32, philox
from aleator.device.places import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Fields,
    Values,
    expect,
    key,
    uniform,
)
from aleator.samplers.base import Place, Sampler
from aleator.samplers.dist import Dist


class DeviceDist(DeviceSampler):
    """Draws in proportion to weight, by inverse cumulative mass."""

    fields: ClassVar[Fields] = RANDOM
    purpose: ClassVar[Purpose] = Purpose.DIST

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The key of its random numbers."""
        own = expect(Dist, sampler)
        seed = place.seed if own.seed is None else own.seed
        return key(seed, self.purpose, place)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Draw."""
        data.draw(uniform(self, step), self.get("active", step))


class DeviceGumbel(DeviceDist):
    """Draws by a race: the smallest E / weight wins."""

    purpose: ClassVar[Purpose] = Purpose.GUMBEL

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Race."""
        u = philox(
            data.ids.to(torch.int64),
            step.position.unsqueeze(1),
            self.get("stream", step).unsqueeze(1),
            self.get("seed", step).unsqueeze(1),
        )
        e = (64 << 32) - log2_q32(torch.where(u == 0, 1, u))
        ids = data.ids.expand_as(e)
        best = _smallest_quotient(e, data.weights)
        e, w, ids = (data.per_part(x.gather(1, best).squeeze(1)) for x in (e, data.weights, ids))
        winner = ids.gather(1, _smallest_quotient(e, w)).squeeze(1)
        data.select(winner, self.get("active", step))


def _smallest_quotient(e: Tensor, w: Tensor) -> Tensor:
    """int64 [B, 1]: the first column with the smallest e / w, exactly; w = 0 never wins.

    e is at most 2^38 and w at most 2^40, so quotients that differ do so by at least 2^-80: they are
    compared digit by digit, 24 + 22 + 22 + 22 bits after the point.
    """
    left, divisor = w > 0, w.clamp(min=1)
    remainder = e
    for bits in (24, 22, 22, 22):
        digit = torch.where(left, (remainder << bits) // divisor, 2**63 - 1)
        remainder = (remainder << bits) % divisor
        left = left & (digit == digit.amin(1, keepdim=True))
    return left.to(torch.int8).argmax(1, keepdim=True)
