"""Bad words on the device; the contract is in aleator.samplers.bad_words, limits in samplers.device_forms."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from aleator.core.errors import ParameterError
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
from aleator.device.token_bits import bits_of_tokens, unpack
from aleator.samplers.bad_words import BadWords
from aleator.samplers.base import Place, Sampler
from aleator.samplers.plan import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, long_words


class DeviceBadWords(DeviceSampler):
    """Masks tokens that would complete a forbidden sequence."""

    fields: ClassVar[Fields] = {
        "single": Field(torch.int32, 0),  # bits of the tokens that are words by themselves
        "tokens": Field(torch.int64, -1, (MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS)),  # the newest first
        "lengths": Field(torch.int64, 0, (MAX_BAD_WORDS,)),  # 0: there is none
    }

    def __init__(self, sampler: Sampler, sizes: PlaceSizes) -> None:
        super().__init__(sampler, sizes)
        self._words = self._length = 0

    def shape(self, name: str) -> tuple[int, ...]:
        """One bit per token."""
        return (-(-self.n_vocab // 32),) if name == "single" else super().shape(name)

    @property
    def launch(self) -> tuple[int, ...]:
        """The most sequences of several tokens, and the longest, that any row has had so far."""
        return self._words, self._length

    def set(self, row: int, sampler: Sampler, place: Place) -> None:
        """Give a row its words."""
        super().set(row, sampler, place)
        long = long_words(expect(BadWords, sampler))
        self._words = max(self._words, len(long))
        self._length = max(self._length, max(map(len, long), default=0))

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The sequences."""
        own = expect(BadWords, sampler)
        last = max(sequence[-1] for sequence in own.sequences)
        if last >= self.n_vocab:
            raise ParameterError(
                "bad_words",
                f"bad_words names token {last}: the vocabulary has 0 to {self.n_vocab - 1}",
            )
        tokens = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), -1, np.int64)
        lengths = np.zeros(MAX_BAD_WORDS, np.int64)
        for i, sequence in enumerate(long_words(own)):
            tokens[i, : len(sequence)], lengths[i] = sequence[::-1], len(sequence)
        alone = [sequence[0] for sequence in own.sequences if len(sequence) == 1]
        return {
            "single": bits_of_tokens(alone, self.n_vocab),
            "tokens": torch.from_numpy(tokens),
            "lengths": torch.from_numpy(lengths),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Mask."""
        tokens = self.get("tokens", step)[:, : self._words]
        lengths = self.get("lengths", step)[:, : self._words]
        found = (lengths > 0) & (step.length.unsqueeze(1) >= lengths - 1)
        for i in range(1, self._length):
            at = (step.length - i).clamp(min=0).unsqueeze(1)
            same = tokens[:, :, i] == step.history.gather(1, at)
            found = found & (same | (lengths <= i))
        ends = torch.where(found, tokens[:, :, 0], self.n_vocab)
        banned = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.bool, device=self.device)
        banned = data.at_ids(banned.scatter(1, ends, value=True)[:, :-1])
        single = self.get("single", step)
        some = found.any(1) | (single != 0).any(1)
        data.mask(banned | unpack(single, data.ids), self.get("active", step) & some)
