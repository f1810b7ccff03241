"""No repeated n-grams on the device; the contract is in aleator.samplers.no_repeat_ngram."""

from __future__ import annotations

from typing import ClassVar

import torch

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
from aleator.samplers.no_repeat_ngram import NoRepeatNgram


class DeviceNoRepeatNgram(DeviceSampler):
    """Masks tokens that would repeat a run: every place of the history is compared with its end."""

    fields: ClassVar[Fields] = {"size": Field(torch.int64, 1)}

    def __init__(self, sampler: Sampler, sizes: PlaceSizes) -> None:
        super().__init__(sampler, sizes)
        self._most = expect(NoRepeatNgram, sampler).no_repeat_ngram_size

    @property
    def launch(self) -> tuple[int, ...]:
        """The longest run of any row so far."""
        return (self._most,)

    def set(self, row: int, sampler: Sampler, place: Place) -> None:
        """Give a row its size."""
        super().set(row, sampler, place)
        self._most = max(self._most, expect(NoRepeatNgram, sampler).no_repeat_ngram_size)

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The length of a run."""
        return {"size": expect(NoRepeatNgram, sampler).no_repeat_ngram_size}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Mask."""
        size, length = self.get("size", step).unsqueeze(1), step.length.unsqueeze(1)
        at = torch.arange(step.history.shape[1], device=self.device)
        found = (at < length) & (at >= size - 1)  # the last token of a run
        for i in range(1, self._most):
            newest = step.history.gather(1, (length - i).clamp(min=0))
            found = found & ((step.history.roll(i, 1) == newest) | (size <= i))
        tokens = torch.where(found, step.history, self.n_vocab).to(torch.int64)
        banned = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.bool, device=self.device)
        banned = data.at_ids(banned.scatter(1, tokens, value=True)[:, :-1])
        data.mask(banned, self.get("active", step) & found.any(1))
