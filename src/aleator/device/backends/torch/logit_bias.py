"""Logit bias on the device; the contract is in aleator.samplers.logit_bias."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch

from aleator.core.errors import ParameterError
from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.logit_bias import LogitBias

MAX_BIASES = 1024
"""Biases of one row."""


def check_tokens(pairs: Iterable[tuple[int, float]], n_vocab: int) -> None:
    """Refuse biases of tokens that there are not."""
    largest = max((token for token, _ in pairs), default=0)
    if largest >= n_vocab:
        raise ParameterError(
            "logit_bias",
            f"logit_bias names token {largest}: the vocabulary has 0 to {n_vocab - 1}",
        )


class DeviceLogitBias(DeviceSampler):
    """Adds biases to logits."""

    fields: ClassVar[Fields] = {
        "tokens": Field(torch.int64, 0),
        "biases": Field(torch.float32, 0.0),
    }

    def shape(self, name: str) -> tuple[int, ...]:
        """Pairs of a token and its bias."""
        return (MAX_BIASES,)

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The pairs; the rest points past the vocabulary."""
        own = expect(LogitBias, sampler)
        pairs = own.logit_bias
        if len(pairs) > MAX_BIASES:
            raise ParameterError(
                "logit_bias",
                f"logit_bias has {len(pairs)} entries: on a device a row has at most {MAX_BIASES}",
            )
        check_tokens(pairs, self.n_vocab)
        tokens = np.full(MAX_BIASES, self.n_vocab, np.int64)
        tokens[: len(pairs)] = [token for token, _ in pairs]
        biases = np.zeros(MAX_BIASES, np.float32)
        with np.errstate(over="ignore"):
            biases[: len(pairs)] = np.array([bias for _, bias in pairs], np.float64)
        return {"tokens": torch.from_numpy(tokens), "biases": torch.from_numpy(biases)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Add."""
        active = self.get("active", step)
        tokens = torch.where(active.unsqueeze(1), self.get("tokens", step), self.n_vocab)
        added = torch.zeros(
            step.batch, self.n_vocab + 1, dtype=torch.float32, device=self.device
        ).scatter(1, tokens, self.get("biases", step))
        data.write(active, lambda z: z + data.at_ids(added[:, :-1]))
