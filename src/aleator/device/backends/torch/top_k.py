"""Top-k on the device; the contract is in aleator.samplers.top_k."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Fields


class DeviceTopK(DeviceSampler):
    """Keeps the first k of the order."""

    fields: ClassVar[Fields] = {"k": (torch.int64, 2**62)}

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """K."""
        return {"k": sampler.kept_of(self.n_vocab)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        data.keep_first(self.get("k", step))
