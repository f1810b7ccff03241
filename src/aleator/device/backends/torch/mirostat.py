"""Both versions of mirostat on the device; their contracts are in aleator.samplers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from aleator.core.contract import LOG2_E, MU_LIMIT, WEIGHT_BITS
from aleator.core.numerics import log2_double as log2_of_number
from aleator.device.candidates import DeviceCandidates
from aleator.device.device_sampler import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    Values,
    key,
    uniform,
)
from aleator.device.fixed import double_of, exp2_double, log2_double, log2_q32
from aleator.samplers.base import Place
from aleator.samplers.mirostat import Mirostat


class DeviceMirostatSampler(DeviceSampler):
    """Draws, and moves mu by the surprise of the drawn token."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "tau": Field(torch.float64, 0.0),
        "eta": Field(torch.float64, 0.0),
    }
    state: ClassVar[Fields] = {"mu": Field(torch.float64, 0.0)}

    def values(self, sampler: Any, place: Place) -> Values:
        return {
            **key(sampler.seed_in(place), sampler.purpose, place),
            "tau": sampler.mirostat_tau,
            "eta": sampler.mirostat_eta,
            "mu": 2 * sampler.mirostat_tau,
        }

    def draw(self, data: DeviceCandidates, mu: Tensor, step: DeviceStep) -> None:
        """Draw from the remaining candidates."""
        data.draw(uniform(self, step), self.get("active", step))
        at_selected = data.ids == data.selected.unsqueeze(1)
        chosen = data.total(torch.where(at_selected, data.weights, 0))
        bits = log2_q32(data.mass.clamp(min=1)) - log2_q32(chosen.clamp(min=1))
        surprise = bits.to(torch.float64) / 2.0**32
        moved = mu - self.get("eta", step) * (surprise - self.get("tau", step))
        self.propose("mu", moved, step)


class DeviceMirostatV2(DeviceMirostatSampler):
    """Removes tokens with more than mu bits of surprise, and draws."""

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        mu = self.get_state("mu", step)
        q = (mu.clamp(-MU_LIMIT, MU_LIMIT) * 2.0**32).floor().to(torch.int64)
        level = log2_q32(data.mass.clamp(min=1)) - q
        data.keep_run(_least(level), self.get("active", step) & (level > 0))
        self.draw(data, mu, step)


def _least(level: Tensor) -> Tensor:
    """The least weight, int64 [B], whose log2 in Q32 reaches ``level``; above 2^40 if there is none."""
    low, high = torch.ones_like(level), torch.full_like(level, (1 << WEIGHT_BITS) + 1)
    for _ in range(WEIGHT_BITS + 1):
        middle = low + high >> 1
        reached = log2_q32(middle) >= level
        high = torch.where(reached, middle, high)
        low = torch.where(reached, low, middle + 1).minimum(high)
    return high


class DeviceMirostat(DeviceMirostatSampler):
    """Keeps as many tokens as a Zipf distribution of the same shape has within mu bits, and draws."""

    fields: ClassVar[Fields] = {**DeviceMirostatSampler.fields, "m": Field(torch.int64, 0)}

    def needs(self, sampler: Mirostat) -> tuple[int, ...]:
        return (min(sampler.mirostat_m, self.n_vocab),)

    def values(self, sampler: Mirostat, place: Place) -> Values:
        return {**super().values(sampler, place), "m": sampler.mirostat_m}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        mu = self.get_state("mu", step)
        k = self._bound(data, mu, step)
        data.keep_first(torch.where(self.get("active", step), k, 2**62))
        self.draw(data, mu, step)

    def _bound(self, data: DeviceCandidates, mu: Tensor, step: DeviceStep) -> Tensor:
        """The number of candidates to keep, int64 [B]."""
        s = self._exponent(data, step)
        e, vocabulary = s - 1, log2_of_number(float(self.n_vocab))
        near = e.abs() < 2**-20
        safe = torch.where(near, 1.0, e)
        limit = torch.full_like(mu, log2_of_number(vocabulary / LOG2_E) if vocabulary > 0 else 0.0)
        rest = (1 - exp2_double(-safe * vocabulary)).abs()
        rest = torch.where(rest > 0, rest, 1.0)
        log_k = torch.where(near, mu - limit, log2_double(safe.abs()) + mu - log2_double(rest))
        k = exp2_double((log_k / torch.where(s > 0, s, 1.0)).clamp(-1.0, 40.0))
        k = k.floor().to(torch.int64).clamp(min=1)
        k = torch.where(s < 2**-10, 2**62, k)
        return torch.where(s.isinf(), 1, k)

    def _exponent(self, data: DeviceCandidates, step: DeviceStep) -> Tensor:
        """The paper's s, float64 [B]: a quotient of two exact sums; inf if there is nothing to sum."""
        # Not data.ranked: among the first there may be tokens that were masked since the order was made.
        keys = data.keys()
        columns = keys.topk(min(self.launch[0], keys.shape[1]), 1).indices
        w = data.weights.gather(1, columns)
        i = torch.arange(w.shape[1] - 1, device=self.device)
        logs = log2_q32(w.clamp(min=1))
        fall = logs[:, :-1] - logs[:, 1:]
        t = log2_q32(i + 2) - log2_q32(i + 1)
        there = (w[:, 1:] > 0) & (i < self.get("m", step).unsqueeze(1) - 1)
        there = there.to(torch.int64).cumprod(1) == 1
        fall, t = torch.where(there, fall, 0), torch.where(there, t, 0)
        # Products have up to 70 bits: t is taken in two parts, whose sums stay below 2^55.
        high, low = t >> 16, t & 0xFFFF
        numerator = double_of((high * fall).sum(1), (low * fall).sum(1))
        denominator = double_of((high * t).sum(1), (low * t).sum(1))
        return torch.where(denominator > 0, numerator / denominator, float("inf"))
