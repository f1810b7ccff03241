"""DRY on the device; the contract is in aleator.samplers.dry, the limits in aleator.samplers.plan."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.device.candidates import DeviceCandidates
from aleator.device.device_sampler import BITS, DeviceSampler, DeviceStep, Field, Fields, Values
from aleator.device.token_bits import bits_of_tokens, unpack
from aleator.samplers.base import Place
from aleator.samplers.dry import DRY
from aleator.samplers.plan import MAX_BREAKER_TOKENS, MAX_BREAKERS, MAX_DRY_WINDOW, long_breakers


class DeviceDRY(DeviceSampler):
    """Penalises tokens that would continue a repeated sequence.

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
        long = long_breakers(sampler)
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
        for i, tokens in enumerate(long_breakers(sampler)):
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
