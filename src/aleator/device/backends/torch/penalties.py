"""Penalties on the device; the contract is in aleator.samplers.penalties."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from aleator.core.errors import ParameterError
from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Fields


class DevicePenalties(DeviceSampler):
    """Penalises tokens that were accepted lately."""

    fields: ClassVar[Fields] = {
        "window": (torch.int64, 0),
        "repetition": (torch.float32, 1.0),
        "frequency": (torch.float32, 0.0),
        "presence": (torch.float32, 0.0),
        "repeat_all": (torch.bool, True),
        "count_all": (torch.bool, True),
    }

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """A window of -1 is the whole history."""
        if sampler.repetition_per != "token":
            raise ParameterError(
                "repetition_per",
                f"repetition_per={sampler.repetition_per!r} runs on the host only: make the device chain with "
                "such a sampler, or give this row 'token'",
            )
        return {
            "window": 2**62 if sampler.penalty_last_n < 0 else sampler.penalty_last_n,
            "repetition": sampler.repetition_penalty,
            "frequency": sampler.frequency_penalty,
            "presence": sampler.presence_penalty,
            "repeat_all": sampler.penalty_scope != "generated",
            "count_all": sampler.penalty_scope == "all",
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Penalise."""
        at = torch.arange(step.history.shape[1], device=self.device)
        length = step.length.unsqueeze(1)
        inside = (at < length) & (at >= length - self.get("window", step).unsqueeze(1))
        active = self.get("active", step) & inside.any(1)
        every = data.at_ids(self._counts(step, inside))
        generated = data.at_ids(self._counts(step, inside & step.generated))
        repeated = torch.where(self.get("repeat_all", step).unsqueeze(1), every, generated) > 0
        counted = torch.where(self.get("count_all", step).unsqueeze(1), every, generated)
        repetition = self.get("repetition", step).unsqueeze(1)
        frequency = self.get("frequency", step).unsqueeze(1)
        presence = self.get("presence", step).unsqueeze(1)

        def penalise(z: Tensor) -> Tensor:
            z = torch.where(repeated, torch.where(z > 0, z / repetition, z * repetition), z)
            penalty = counted.to(torch.float32) * frequency
            penalty = penalty + presence
            return torch.where(counted > 0, z - penalty, z)

        data.write(active, penalise)

    def _counts(self, step: DeviceStep, inside: Tensor) -> Tensor:
        """int32 [B, V]: how often each token occurs."""
        tokens = torch.where(inside, step.history, self.n_vocab).to(torch.int64)
        counts = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.int32, device=self.device)
        return counts.scatter_add(1, tokens, inside.to(torch.int32))[:, :-1]
