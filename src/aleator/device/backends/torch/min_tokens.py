"""Minimum length on the device; the contract is in aleator.samplers.min_tokens."""

from __future__ import annotations

from typing import ClassVar

import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.device.token_bits import bits_of_tokens, unpack
from aleator.samplers.base import Place, Sampler
from aleator.samplers.min_tokens import MinTokens


class DeviceMinTokens(DeviceSampler):
    """Masks tokens that end the text until enough were generated."""

    fields: ClassVar[Fields] = {
        "least": Field(torch.int64, 0),
        "begun": Field(torch.int64, 0),  # the position at which the text began
        "ends": Field(torch.int32, 0),
    }

    def shape(self, name: str) -> tuple[int, ...]:
        """One bit per token."""
        return (-(-self.n_vocab // 32),) if name == "ends" else super().shape(name)

    def values(self, sampler: Sampler, place: Place) -> Values:
        """How many, and the tokens that end a text."""
        own = expect(MinTokens, sampler)
        return {"least": own.min_tokens, "ends": bits_of_tokens(own.end_tokens, self.n_vocab)}

    def rewound(self, row: int, position: int, *, begins: bool = False) -> None:
        """A text that began later begins here."""
        begun = self.rows["begun"]
        begun[row] = position if begins else begun[row].clamp(max=position)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Mask."""
        generated = step.position - self.get("begun", step)
        early = self.get("active", step) & (generated < self.get("least", step))
        data.mask(unpack(self.get("ends", step), data.ids), early)
