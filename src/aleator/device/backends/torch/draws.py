"""Device samplers that choose a token; the contracts are in aleator.samplers, one module for each."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.core.contract import ADAPTIVE_PEAK, ADAPTIVE_SLOPE, ADAPTIVE_WIDTH, Purpose
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import log2_q32, philox
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
from aleator.samplers.dist import Dist


class DeviceGreedy(DeviceSampler):
    """Selects the token with the largest logit."""

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.select(data.first(), self.get("active", step))


class DeviceDist(DeviceSampler):
    """Draws in proportion to weight, by inverse cumulative mass."""

    fields: ClassVar[Fields] = RANDOM
    purpose: ClassVar[Purpose] = Purpose.DIST

    def values(self, sampler: Sampler, place: Place) -> Values:
        own = expect(Dist, sampler)
        seed = place.seed if own.seed is None else own.seed
        return key(seed, self.purpose, place)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.draw(uniform(self, step), self.get("active", step))


class DeviceGumbel(DeviceDist):
    """Draws by a race: the smallest E / weight wins."""

    purpose: ClassVar[Purpose] = Purpose.GUMBEL

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
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
        active, target = self.get("active", step), self.get("target", step)
        on = active & (target >= 0)
        total, count = self.get_state("total", step), self.get_state("weight", step)
        p, size = data.probs, data.size
        wanted = (2 * target - total / count).clamp(0.0, 1.0).to(torch.float32).unsqueeze(1)
        data.materialise(on & (data.temperature != 1))
        # Lost: the temperature before it is too small, which is an error on the host.
        lost = on & (data.size != size)
        distance = (p - wanted).abs()
        # A quotient by a plain number would be a product with its reciprocal.
        distance = distance / torch.full_like(distance, ADAPTIVE_WIDTH)

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
