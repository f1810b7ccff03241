"""Min-p on the device; the contract is in aleator.samplers.min_p."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.min_p import MinP


class DeviceMinP(DeviceSampler):
    """Keeps what is within a distance of the largest logit."""

    fields: ClassVar[Fields] = {"log": Field(torch.float64, 0.0), "min_keep": Field(torch.int64, 0)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """ln(min_p), made once on the host."""
        own = expect(MinP, sampler)
        return {"log": math.log(float(np.float32(own.min_p))), "min_keep": own.min_keep}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        bound = (data.temperature * self.get("log", step)).to(torch.float32)
        data.keep_near(bound, self.get("min_keep", step), self.get("active", step))
