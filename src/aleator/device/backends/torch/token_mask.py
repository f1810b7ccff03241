"""Token mask on the device; the contract is in aleator.samplers.token_mask."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Fields


def unpack(words: Tensor, ids: Tensor) -> Tensor:
    """Bool [B, V] from int32 [B, ceil(n_vocab / 32)]: bit id % 32 of word id // 32."""
    word = words.gather(1, (ids // 32).expand(len(words), -1))
    return word >> (ids % 32).to(torch.int32) & 1 == 1


def allow(logits: Tensor, allowed: Tensor | None, ids: Tensor) -> Tensor:
    """Logits [B, V] of tokens ``ids`` with those masked that the bits ``allowed`` leave out.

    Before the canonical form, so that a +inf counts only where it is allowed.
    """
    if allowed is None:
        return logits
    return logits.masked_fill(~unpack(allowed, ids.unsqueeze(0)), float("-inf"))


class DeviceTokenMask(DeviceSampler):
    """Keeps allowed tokens."""

    fields: ClassVar[Fields] = {"words": (torch.int32, -1)}

    def shape(self, name: str) -> tuple[int, ...]:
        """One bit per token."""
        return (-(-self.n_vocab // 32),)

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """The mask; tokens past its end are masked."""
        words = np.zeros(self.shape("words"), np.uint32)
        given = np.array(sampler.allowed, np.uint32)[: len(words)]
        words[: len(given)] = given
        return {"words": torch.from_numpy(words.view(np.int32))}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Mask."""
        data.keep(unpack(self.get("words", step), data.ids))
