"""Min-k on the device; the contract is in aleator.samplers.min_k."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.core.parameter import single
from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.min_k import MinK


class DeviceMinK(DeviceSampler):
    """Keeps what stands before the steepest fall of the sorted logits."""

    fields: ClassVar[Fields] = {"tau": Field(torch.float64, 0.0)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """Tau, as its float32."""
        return {"tau": single(expect(MinK, sampler).min_k_tau)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        size = data.size
        z = data.current.sort(dim=1, descending=True).values.to(torch.float64)  # masked ones last
        rank = torch.arange(1, z.shape[1] + 1, device=z.device)
        fall = (z - z.roll(-1, 1)) / rank.to(torch.float64)
        fall = torch.where(rank < size.unsqueeze(1), fall, -1.0)
        steepest = fall == fall.amax(1, keepdim=True)
        cliff = torch.where(steepest, rank, z.shape[1]).amin(1)
        last = z.gather(1, (size - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        span = z[:, 0] - last
        wanted = (self.get("tau", step) / span).minimum(size.to(torch.float64)).to(torch.int64)
        kept = torch.where(span > 0, cliff.maximum(wanted), 2**62)
        data.keep_first(torch.where(self.get("active", step), kept, 2**62))
