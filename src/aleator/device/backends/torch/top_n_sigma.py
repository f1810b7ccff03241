"""Top-n-sigma on the device; the contract is in aleator.samplers.top_n_sigma."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from aleator.core.contract import SIGMA_LEAST, SIGMA_UNIT
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import variance
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.top_n_sigma import TopNSigma


class DeviceTopNSigma(DeviceSampler):
    """Keeps logits within some standard deviations of the largest."""

    fields: ClassVar[Fields] = {"n": Field(torch.float64, 0.0)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """n, as its float32."""
        own = expect(TopNSigma, sampler)
        return {"n": float(np.float32(own.top_n_sigma))}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        alive = data.alive
        d = data.current - data.top
        q = torch.round(d.clamp(min=SIGMA_LEAST) * SIGMA_UNIT).to(torch.int64)
        q = torch.where(alive, q, 0)
        count = data.size
        spread = variance(count, data.total(q), data.total(q * q))
        sigma = spread.sqrt() / count.clamp(min=1).to(torch.float64) / SIGMA_UNIT
        bound = (-(self.get("n", step) * sigma)).to(torch.float32)
        data.keep((d >= bound.unsqueeze(1)) | ~self.get("active", step).unsqueeze(1))
