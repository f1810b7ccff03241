"""Device samplers that mask tokens, or penalise them by DRY; their contracts are in aleator.samplers."""

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
from aleator.samplers.dry import DRY
from aleator.samplers.min_tokens import MinTokens
from aleator.samplers.no_repeat_ngram import NoRepeatNgram
from aleator.samplers.plan import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BREAKER_TOKENS,
    MAX_BREAKERS,
    MAX_DRY_WINDOW,
    of_several,
)
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
        long = of_several(sampler.sequences)
        return len(long), max(map(len, long), default=0)

    def values(self, sampler: BadWords, place: Place) -> Values:
        last = max(sequence[-1] for sequence in sampler.sequences)
        if last >= self.n_vocab:
            raise ParameterError(
                f"bad_words names token {last}: the vocabulary has 0 to {self.n_vocab - 1}"
            )
        tokens = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), -1, np.int64)
        lengths = np.zeros(MAX_BAD_WORDS, np.int64)
        for i, sequence in enumerate(of_several(sampler.sequences)):
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


class DeviceDRY(DeviceSampler):
    """Penalises tokens that would continue a repeated sequence; limits are in samplers.plan.

    The window is limited, because all pairs of places in it are compared.
    """

    fields: ClassVar[Fields] = {
        "window": Field(torch.int64, 0),
        "allowed": Field(torch.int64, 2**31 - 1),
        "penalties": Field(torch.float32, 0.0, (MAX_DRY_WINDOW,)),  # by the length of a repetition
        "single": Field(torch.int32, 0, BITS),  # the tokens that are breakers by themselves
        "breakers": Field(torch.int32, -1, (MAX_BREAKERS, MAX_BREAKER_TOKENS)),
        "lengths": Field(torch.int64, 0, (MAX_BREAKERS,)),  # of breakers; 0: there is none
    }

    def needs(self, sampler: DRY) -> tuple[int, ...]:
        """Columns of the window; number and greatest length of breakers of several tokens."""
        long = of_several(sampler.breakers)
        window = min(sampler.dry_penalty_last_n, self.max_tokens)
        width = 1 << (min(max(window, 16), MAX_DRY_WINDOW) - 1).bit_length()
        longest = max(map(len, long), default=0)
        return width, min(len(long), MAX_BREAKERS), min(longest, MAX_BREAKER_TOKENS)

    def values(self, sampler: DRY, place: Place) -> Values:
        window = min(sampler.dry_penalty_last_n, self.max_tokens)
        penalties = np.zeros(MAX_DRY_WINDOW, np.float32)
        for length in range(sampler.dry_allowed_length, window):
            penalties[length] = sampler.penalty(length)
        breakers = np.full((MAX_BREAKERS, MAX_BREAKER_TOKENS), -1, np.int32)
        lengths = np.zeros(MAX_BREAKERS, np.int64)
        for i, tokens in enumerate(of_several(sampler.breakers)):
            breakers[i, : len(tokens)], lengths[i] = tokens, len(tokens)
        alone = [tokens[0] for tokens in sampler.breakers if len(tokens) == 1]
        return {
            "window": window,
            "allowed": sampler.dry_allowed_length,
            "penalties": torch.from_numpy(penalties),
            "single": bits_of_tokens(alone, self.n_vocab),
            "breakers": torch.from_numpy(breakers),
            "lengths": torch.from_numpy(lengths),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        recent, count = self._recent(step)
        single = unpack(self.get("single", step), recent.clamp(min=0)) & (recent >= 0)
        limit = self._limit(recent, count, single, step)
        lengths = self._lengths(recent, count, limit)  # of the repetition from column k + 1 on
        allowed = self.get("allowed", step).unsqueeze(1)
        column = torch.arange(recent.shape[1], device=self.device)
        found = (lengths >= allowed) & (column + 1 < count) & ~single & (limit >= allowed)
        longest = torch.full(
            (step.batch, self.n_vocab + 1), -1, dtype=torch.int64, device=self.device
        )
        tokens = torch.where(found, recent, self.n_vocab)
        longest = longest.scatter_reduce(1, tokens, torch.where(found, lengths, -1), "amax")
        longest = data.at_ids(longest[:, :-1])
        penalty = self.get("penalties", step).gather(1, longest.clamp(min=0))
        active = self.get("active", step) & found.any(1)
        data.write(active, lambda z: torch.where(longest >= 0, z - penalty, z))

    def _recent(self, step: DeviceStep) -> tuple[Tensor, Tensor]:
        """The window's tokens, int64 [B, width], the newest first, -1 after the end; their number, [B, 1]."""
        count = self.get("window", step).minimum(step.length).unsqueeze(1)
        column = torch.arange(self.launch[0], device=self.device)
        at = step.length.unsqueeze(1) - 1 - column
        tokens = step.history.gather(1, at.clamp(0, step.history.shape[1] - 1)).to(torch.int64)
        return torch.where(column < count, tokens, -1), count

    def _limit(self, recent: Tensor, count: Tensor, single: Tensor, step: DeviceStep) -> Tensor:
        """The number of newest tokens after the nearest breaker, int64 [B, 1]."""
        width = recent.shape[1]
        column = torch.arange(width, device=self.device)
        tail = torch.where(single, 0, -1)  # tokens of the breaker after its first; -1: none here
        for i in range(self.launch[1]):
            tokens = self.get("breakers", step)[:, i]
            length = self.get("lengths", step)[:, i : i + 1]
            hit = (recent == tokens[:, :1]) & (length > 0) & (column >= length - 1)
            for j in range(1, self.launch[2]):
                follows = recent.roll(j, 1) == tokens[:, j : j + 1]
                hit = hit & (follows | (j >= length))
            tail = torch.where(hit, tail.maximum(length - 1), tail)
        after = torch.where(tail >= 0, column - tail, 0)
        first = (tail >= 0).to(torch.int8).argmax(1, keepdim=True)
        return torch.where((tail >= 0).any(1, keepdim=True), after.gather(1, first), count)

    def _lengths(self, recent: Tensor, count: Tensor, limit: Tensor) -> Tensor:
        """At k, how many tokens from k + 1 on equal the newest ones, int64 [B, width]."""
        width = recent.shape[1]
        column = torch.arange(width, device=self.device)
        other = column.unsqueeze(1) + 1 + column  # [k, i]
        tokens = recent.to(torch.int32)
        padded = torch.nn.functional.pad(tokens, (0, width + 1), value=-2)
        differs = padded[:, other] != tokens.unsqueeze(1)  # past the window's end: -1 or -2
        first = differs.to(torch.int8).argmax(2)
        return first.minimum(limit).minimum((count - 1 - column).clamp(min=0))
