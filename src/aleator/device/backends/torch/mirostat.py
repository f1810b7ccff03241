"""Mirostat 1 on the device; the contract is in aleator.samplers.mirostat and mirostat_state."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.core.contract import LOG2_E
from aleator.core.numerics import log2_double as log2_of_number
from aleator.device.backends.torch.mirostat_state import DeviceMirostatSampler
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import double_of, exp2_double, log2_double, log2_q32
from aleator.device.places import DeviceStep, Field, Fields, PlaceSizes, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.mirostat import Mirostat


class DeviceMirostat(DeviceMirostatSampler):
    """Keeps as many tokens as a Zipf distribution of the same shape has within mu bits, and draws."""

    fields: ClassVar[Fields] = {**DeviceMirostatSampler.fields, "m": Field(torch.int64, 0)}

    def __init__(self, sampler: Sampler, sizes: PlaceSizes) -> None:
        super().__init__(sampler, sizes)
        self._most = min(expect(Mirostat, sampler).mirostat_m, sizes.n_vocab)

    @property
    def launch(self) -> tuple[int, ...]:
        """The largest m of all rows so far."""
        return (self._most,)

    def set(self, row: int, sampler: Sampler, place: Place) -> None:
        """Give a row its parameters."""
        super().set(row, sampler, place)
        self._most = max(self._most, min(expect(Mirostat, sampler).mirostat_m, self.n_vocab))

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The parameters of both versions, and how many tokens the shape is estimated on."""
        return {**super().values(sampler, place), "m": expect(Mirostat, sampler).mirostat_m}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Estimate, truncate and draw."""
        mu = self.get_state("mu", step)
        k = self._bound(data, mu, step)
        data.keep_first(torch.where(self.get("active", step), k, 2**62))
        self.draw(data, mu, step)

    def _bound(self, data: DeviceCandidates, mu: Tensor, step: DeviceStep) -> Tensor:
        """int64 [B], how many to keep."""
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
        """float64 [B], the s of the paper: a quotient of two exact sums; inf where there is nothing to sum."""
        # Not data.ranked: among the first there may be tokens that were masked since the order was made.
        keys = data.keys()
        columns = keys.topk(min(self._most, keys.shape[1]), 1).indices
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
