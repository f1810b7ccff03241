"""Penalties on the device; the contract is in aleator.samplers.penalties."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import (
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    PlaceSizes,
    Values,
    expect,
)
from aleator.samplers.base import Place, Sampler
from aleator.samplers.penalties import Penalties


class DevicePenalties(DeviceSampler):
    """Penalises tokens that were accepted lately."""

    fields: ClassVar[Fields] = {
        "window": Field(torch.int64, 0),
        "repetition": Field(torch.float32, 1.0),
        "frequency": Field(torch.float32, 0.0),
        "presence": Field(torch.float32, 0.0),
        "repeat_all": Field(torch.bool, True),
        "count_all": Field(torch.bool, True),
        "times": Field(torch.int32, 1),  # how often a token is penalised for its repetition at most
    }

    def __init__(self, sampler: Sampler, sizes: PlaceSizes) -> None:
        super().__init__(sampler, sizes)
        self._times = 1

    @property
    def launch(self) -> tuple[int, ...]:
        """How often any row so far may penalise a token for its repetition."""
        return (self._times,)

    def set(self, row: int, sampler: Sampler, place: Place) -> None:
        """Give a row its parameters."""
        super().set(row, sampler, place)
        self._times = max(self._times, _times(expect(Penalties, sampler)))

    def values(self, sampler: Sampler, place: Place) -> Values:
        """A window of -1 is the whole history."""
        own = expect(Penalties, sampler)
        return {
            "window": 2**62 if own.penalty_last_n < 0 else own.penalty_last_n,
            "repetition": own.repetition_penalty,
            "frequency": own.frequency_penalty,
            "presence": own.presence_penalty,
            "repeat_all": own.penalty_scope != "generated",
            "count_all": own.penalty_scope == "all",
            "times": _times(own),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Penalise."""
        at = torch.arange(step.history.shape[1], device=self.device)
        length = step.length.unsqueeze(1)
        inside = (at < length) & (at >= length - self.get("window", step).unsqueeze(1))
        active = self.get("active", step) & inside.any(1)
        every = data.at_ids(self._counts(step, inside))
        generated = data.at_ids(self._counts(step, inside & step.generated))
        repeated = torch.where(self.get("repeat_all", step).unsqueeze(1), every, generated)
        repeated = repeated.minimum(self.get("times", step).unsqueeze(1))
        counted = torch.where(self.get("count_all", step).unsqueeze(1), every, generated)
        repetition = self.get("repetition", step).unsqueeze(1)
        frequency = self.get("frequency", step).unsqueeze(1)
        presence = self.get("presence", step).unsqueeze(1)

        def penalise(z: Tensor) -> Tensor:
            for i in range(self._times):
                z = torch.where(repeated > i, torch.where(z > 0, z / repetition, z * repetition), z)
            penalty = counted.to(torch.float32) * frequency
            penalty = penalty + presence
            return torch.where(counted > 0, z - penalty, z)

        data.write(active, penalise)

    def _counts(self, step: DeviceStep, inside: Tensor) -> Tensor:
        """int32 [B, V]: how often each token occurs."""
        tokens = torch.where(inside, step.history, self.n_vocab).to(torch.int64)
        counts = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.int32, device=self.device)
        return counts.scatter_add(1, tokens, inside.to(torch.int32))[:, :-1]


def _times(sampler: Penalties) -> int:
    """How often it penalises a token for its repetition at most."""
    return sampler.penalty_last_n if sampler.repetition_per == "occurrence" else 1
