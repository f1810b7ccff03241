"""Top-k on the device; the contract is in aleator.samplers.top_k."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.top_k import TopK


class DeviceTopK(DeviceSampler):
    """Keeps the first k of the order."""

    fields: ClassVar[Fields] = {"k": Field(torch.int64, 2**62)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """K."""
        own = expect(TopK, sampler)
        return {"k": own.kept_of(self.n_vocab)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        data.keep_first(self.get("k", step))
