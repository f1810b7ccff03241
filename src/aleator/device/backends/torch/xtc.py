"""XTC on the device; the contract is in aleator.samplers.xtc."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch

from aleator.core.contract import Purpose
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import ceil_of_fraction, fraction_parts, less
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
from aleator.samplers.base import Place, Sampler
from aleator.samplers.xtc import XTC


class DeviceXTC(DeviceSampler):
    """Sometimes removes the leading tokens above a threshold but the last of them."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "coin": Field(torch.int64, 0),
        "always": Field(torch.bool, False),
        "m": Field(torch.int64, 0),
        "s": Field(torch.int64, 24),
        "min_keep": Field(torch.int64, 0),
    }

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The coin falls where u < ceil(probability * 2^64)."""
        own = expect(XTC, sampler)
        m, s = fraction_parts(own.xtc_threshold)
        probability = float(np.float32(own.xtc_probability))
        coin = 0 if probability >= 1 else math.ceil(probability * 2.0**64)
        return {
            **key(own.seed_in(place), Purpose.XTC, place),
            "coin": int(np.uint64(coin).astype(np.int64)),
            "always": probability >= 1,
            "m": m,
            "s": s,
            "min_keep": own.min_keep,
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Throw the coin and remove."""
        falls = less(uniform(self, step), self.get("coin", step)) | self.get("always", step)
        bound = ceil_of_fraction(self.get("m", step), self.get("s", step), data.mass)
        run = data.run(bound)
        length = run.sum(1)
        enough = data.size - (length - 1) >= self.get("min_keep", step)
        acts = self.get("active", step) & falls & (length >= 2) & enough
        removed = run & (data.rank() < (length - 1).unsqueeze(1)) & acts.unsqueeze(1)
        data.keep_ranked(~removed)
