"""Token mask on the device; the contract is in aleator.samplers.token_mask."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.token_mask import TokenMask


class DeviceTokenMask(DeviceSampler):
    """Keeps allowed tokens."""

    fields: ClassVar[Fields] = {"words": Field(torch.int32, -1)}

    def shape(self, name: str) -> tuple[int, ...]:
        """One bit per token."""
        return (-(-self.n_vocab // 32),)

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The mask; tokens past its end are masked."""
        own = expect(TokenMask, sampler)
        words = np.zeros(self.shape("words"), np.uint32)
        given = np.array(own.allowed, np.uint32)[: len(words)]
        words[: len(given)] = given
        return {"words": torch.from_numpy(words.view(np.int32))}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Mask."""
        data.keep_allowed(self.get("words", step))
