"""Device samplers that mask tokens; their contracts are in aleator.samplers, one module each."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.core.errors import ParameterError
from aleator.device.candidates import DeviceCandidates
from aleator.device.device_sampler import BITS, DeviceSampler, DeviceStep, Field, Fields, Values
from aleator.device.token_bits import bits_of_tokens, unpack
from aleator.samplers.bad_words import BadWords
from aleator.samplers.base import Place
from aleator.samplers.min_tokens import MinTokens
from aleator.samplers.no_repeat_ngram import NoRepeatNgram
from aleator.samplers.plan import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, long_words
from aleator.samplers.token_mask import TokenMask


class DeviceTokenMask(DeviceSampler):
    """Keeps allowed tokens."""

    fields: ClassVar[Fields] = {"words": Field(torch.int32, -1, BITS)}

    def values(self, sampler: TokenMask, place: Place) -> Values:
        words = np.zeros(self.rows["words"].shape[1], np.uint32)
        given = np.array(sampler.allowed, np.uint32)[: len(words)]
        words[: len(given)] = given
        return {"words": torch.from_numpy(words.view(np.int32))}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.keep_allowed(self.get("words", step))


class DeviceMinTokens(DeviceSampler):
    """Masks tokens that end the text until enough tokens were generated."""

    fields: ClassVar[Fields] = {
        "least": Field(torch.int64, 0),
        "begun": Field(torch.int64, 0),  # the position at which the text began
        "ends": Field(torch.int32, 0, BITS),
    }

    def values(self, sampler: MinTokens, place: Place) -> Values:
        return {
            "least": sampler.min_tokens,
            "ends": bits_of_tokens(sampler.end_tokens, self.n_vocab),
        }

    def rewound(self, row: int, position: int, *, begins: bool = False) -> None:
        begun = self.rows["begun"]
        begun[row] = position if begins else begun[row].clamp(max=position)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        generated = step.position - self.get("begun", step)
        early = self.get("active", step) & (generated < self.get("least", step))
        data.mask(unpack(self.get("ends", step), data.ids), early)


def _among(tokens: Tensor, n_vocab: int, data: DeviceCandidates) -> Tensor:
    """Which candidates are among ``tokens``, int64 [B, N]: bool [B, V]; the entry ``n_vocab`` means none."""
    found = torch.zeros(len(tokens), n_vocab + 1, dtype=torch.bool, device=tokens.device)
    return data.at_ids(found.scatter(1, tokens, value=True)[:, :-1])


class DeviceBadWords(DeviceSampler):
    """Masks tokens that would complete a forbidden sequence; limits are in samplers.plan."""

    fields: ClassVar[Fields] = {
        "single": Field(torch.int32, 0, BITS),  # the tokens that are words by themselves
        "tokens": Field(torch.int64, -1, (MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS)),  # the newest first
        "lengths": Field(torch.int64, 0, (MAX_BAD_WORDS,)),  # 0: there is none
    }

    def needs(self, sampler: BadWords) -> tuple[int, ...]:
        """The number of sequences of several tokens, and the length of the longest."""
        long = long_words(sampler)
        return len(long), max(map(len, long), default=0)

    def values(self, sampler: BadWords, place: Place) -> Values:
        last = max(sequence[-1] for sequence in sampler.sequences)
        if last >= self.n_vocab:
            raise ParameterError(
                f"bad_words names token {last}: the vocabulary has 0 to {self.n_vocab - 1}"
            )
        tokens = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), -1, np.int64)
        lengths = np.zeros(MAX_BAD_WORDS, np.int64)
        for i, sequence in enumerate(long_words(sampler)):
            tokens[i, : len(sequence)], lengths[i] = sequence[::-1], len(sequence)
        alone = [sequence[0] for sequence in sampler.sequences if len(sequence) == 1]
        return {
            "single": bits_of_tokens(alone, self.n_vocab),
            "tokens": torch.from_numpy(tokens),
            "lengths": torch.from_numpy(lengths),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        words, longest = self.launch
        tokens = self.get("tokens", step)[:, :words]
        lengths = self.get("lengths", step)[:, :words]
        found = (lengths > 0) & (step.length.unsqueeze(1) >= lengths - 1)
        for i in range(1, longest):
            at = (step.length - i).clamp(min=0).unsqueeze(1)
            same = tokens[:, :, i] == step.history.gather(1, at)
            found = found & (same | (lengths <= i))
        ends = torch.where(found, tokens[:, :, 0], self.n_vocab)
        single = self.get("single", step)
        some = found.any(1) | (single != 0).any(1)
        banned = _among(ends, self.n_vocab, data) | unpack(single, data.ids)
        data.mask(banned, self.get("active", step) & some)


class DeviceNoRepeatNgram(DeviceSampler):
    """Masks tokens that would repeat a run, by comparing each place of the history with its end."""

    fields: ClassVar[Fields] = {"size": Field(torch.int64, 1)}

    def needs(self, sampler: NoRepeatNgram) -> tuple[int, ...]:
        return (sampler.no_repeat_ngram_size,)

    def values(self, sampler: NoRepeatNgram, place: Place) -> Values:
        return {"size": sampler.no_repeat_ngram_size}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        size, length = self.get("size", step).unsqueeze(1), step.length.unsqueeze(1)
        at = torch.arange(step.history.shape[1], device=self.device)
        found = (at < length) & (at >= size - 1)  # the last token of a run
        for i in range(1, self.launch[0]):
            newest = step.history.gather(1, (length - i).clamp(min=0))
            found = found & ((step.history.roll(i, 1) == newest) | (size <= i))
        tokens = torch.where(found, step.history, self.n_vocab).to(torch.int64)
        banned = _among(tokens, self.n_vocab, data)
        data.mask(banned, self.get("active", step) & found.any(1))
