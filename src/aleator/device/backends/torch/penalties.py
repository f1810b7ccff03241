"""Penalties on the device; the contract is in aleator.samplers.penalties."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.penalties import Penalties


class DevicePenalties(DeviceSampler):
    """Penalises tokens that were accepted lately.

    Occurrences are counted in the row's history at every step, so nothing has to be taken back with it.
    """

    fields: ClassVar[Fields] = {
        "window": Field(torch.int64, 0),
        "repetition": Field(torch.float32, 1.0),
        "frequency": Field(torch.float32, 0.0),
        "presence": Field(torch.float32, 0.0),
        "repeat_all": Field(torch.bool, True),
        "count_all": Field(torch.bool, True),
        "each": Field(torch.bool, False),  # penalise a repetition once for each occurrence
    }

    def set(self, row: int, sampler: Sampler, place: Place) -> None:
        """Give a row its parameters."""
        super().set(row, sampler, place)
        self.waits |= expect(Penalties, sampler).repetition_per == "occurrence"

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
            "each": own.repetition_per == "occurrence",
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
        again = torch.where(self.get("each", step).unsqueeze(1), repeated, 0)
        counted = torch.where(self.get("count_all", step).unsqueeze(1), every, generated)
        repetition = self.get("repetition", step).unsqueeze(1)
        frequency = self.get("frequency", step).unsqueeze(1)
        presence = self.get("presence", step).unsqueeze(1)

        def penalise(z: Tensor) -> Tensor:
            z = torch.where(repeated > 0, _repeat(z, repetition), z)
            if self.waits:
                z = _repeat_again(z, repetition, again)
            penalty = counted.to(torch.float32) * frequency
            penalty = penalty + presence
            return torch.where(counted > 0, z - penalty, z)

        data.write(active, penalise)

    def _counts(self, step: DeviceStep, inside: Tensor) -> Tensor:
        """int32 [B, V]: how often each token occurs."""
        tokens = torch.where(inside, step.history, self.n_vocab).to(torch.int64)
        counts = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.int32, device=self.device)
        return counts.scatter_add(1, tokens, inside.to(torch.int32))[:, :-1]


def _repeat(z: Tensor, repetition: Tensor) -> Tensor:
    """Logits after one repetition."""
    return torch.where(z > 0, z / repetition, z * repetition)


def _repeat_again(z: Tensor, repetition: Tensor, times: Tensor) -> Tensor:
    """Logits [B, V] after all repetitions but the first, int32 [B, V] with it.

    Each is rounded, so they go one after the other: only of the tokens that have more than one, and as
    many as the most frequent has, which the device is asked for.
    """
    if z.is_meta:  # asked for its size only
        return z
    at = (times > 1).nonzero(as_tuple=True)
    few, own, left = z[at], repetition.squeeze(1)[at[0]], times[at]
    for i in range(1, max(left.tolist(), default=0)):
        few = torch.where(left > i, _repeat(few, own), few)
    return z.index_put(at, few)
