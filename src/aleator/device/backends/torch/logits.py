"""Device samplers that write logits or the temperature; their contracts are in aleator.samplers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.core.errors import ParameterError
from aleator.device.candidates import DeviceCandidates
from aleator.device.device_sampler import DeviceSampler, DeviceStep, Field, Fields, Values
from aleator.device.fixed import exp2_double, log2_double
from aleator.samplers.base import Place
from aleator.samplers.logit_bias import LogitBias
from aleator.samplers.penalties import Penalties
from aleator.samplers.smoothing import Smoothing
from aleator.samplers.temperature import Temperature

MAX_BIASES = 1024
"""Maximum number of biases of one row."""


class DeviceSoftmax(DeviceSampler):
    """Records the mass of the whole row."""

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.note_mass(self.get("active", step))


class DeviceTemperature(DeviceSampler):
    """Multiplies the pending temperature, also by a dynamic one."""

    fields: ClassVar[Fields] = {
        "low": Field(torch.float64, 1.0),
        "high": Field(torch.float64, 1.0),
        "exponent": Field(torch.float64, 1.0),
        "dynamic": Field(torch.bool, False),
    }

    def values(self, sampler: Temperature, place: Place) -> Values:
        temperature, spread = sampler.temperature, sampler.dynatemp_range
        if spread <= 0:
            return {"low": temperature, "high": temperature}
        return {
            "low": max(0.0, temperature - spread),
            "high": temperature + spread,
            "exponent": sampler.dynatemp_exponent,
            "dynamic": True,
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        low, high = self.get("low", step), self.get("high", step)
        exponent = self.get("exponent", step)
        count = data.size
        most = log2_double(count.clamp(min=2).to(torch.float64))
        level = (data.entropy().bits / most).clamp(max=1)
        power = exp2_double(exponent * log2_double(torch.where(level > 0, level, 1.0)))
        level = torch.where((level > 0) & (exponent != 1), power, level)
        level = torch.where(exponent == 0, 1.0, level)
        level = torch.where(count > 1, level, 0.0)
        dynamic = low + (high - low) * level
        data.apply_temperature(torch.where(self.get("dynamic", step), dynamic, low))


class DeviceSmoothing(DeviceSampler):
    """Bends the logits with the square and the cube of their distance from the best."""

    fields: ClassVar[Fields] = {
        "square": Field(torch.float32, 0.0),
        "cube": Field(torch.float32, 0.0),
    }

    def values(self, sampler: Smoothing, place: Place) -> Values:
        square, cube = sampler.coefficients
        return {"square": square, "cube": cube}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        active = self.get("active", step)
        data.materialise(active & (data.temperature != 1))
        top = data.top
        a, b = self.get("square", step).unsqueeze(1), self.get("cube", step).unsqueeze(1)

        def bend(z: Tensor) -> Tensor:
            d = z - top
            square = d * d
            bent = square * a
            bent = top - bent
            cube = square * d
            cube = cube * b
            return bent + cube

        data.write(active, bend)


def check_tokens(pairs: Iterable[tuple[int, float]], n_vocab: int) -> None:
    """Refuse biases of tokens that do not exist."""
    largest = max((token for token, _ in pairs), default=0)
    if largest >= n_vocab:
        raise ParameterError(
            f"logit_bias names token {largest}: the vocabulary has 0 to {n_vocab - 1}"
        )


class DeviceLogitBias(DeviceSampler):
    """Adds biases to logits."""

    fields: ClassVar[Fields] = {
        "tokens": Field(torch.int64, 0, (MAX_BIASES,)),
        "biases": Field(torch.float32, 0.0, (MAX_BIASES,)),
    }

    def values(self, sampler: LogitBias, place: Place) -> Values:
        """The pairs; unused entries point past the vocabulary."""
        pairs = sampler.logit_bias
        if len(pairs) > MAX_BIASES:
            raise ParameterError(
                f"logit_bias has {len(pairs)} entries: on a device a row has at most {MAX_BIASES}"
            )
        check_tokens(pairs, self.n_vocab)
        tokens = np.full(MAX_BIASES, self.n_vocab, np.int64)
        tokens[: len(pairs)] = [token for token, _ in pairs]
        biases = np.zeros(MAX_BIASES, np.float32)
        with np.errstate(over="ignore"):
            biases[: len(pairs)] = np.array([bias for _, bias in pairs], np.float64)
        return {"tokens": torch.from_numpy(tokens), "biases": torch.from_numpy(biases)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        active = self.get("active", step)
        tokens = torch.where(active.unsqueeze(1), self.get("tokens", step), self.n_vocab)
        added = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.float32, device=self.device)
        added = added.scatter(1, tokens, self.get("biases", step))
        data.write(active, lambda z: z + data.at_ids(added[:, :-1]))


class DevicePenalties(DeviceSampler):
    """Penalises recently accepted tokens.

    Occurrences are counted in the row's history at every step, so a rollback needs no extra work.
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

    def set(self, row: int, sampler: Penalties, place: Place) -> None:
        super().set(row, sampler, place)
        self.waits |= sampler.repetition_per == "occurrence"

    def values(self, sampler: Penalties, place: Place) -> Values:
        """The parameters; a window of -1 becomes the whole history."""
        return {
            "window": 2**62 if sampler.penalty_last_n < 0 else sampler.penalty_last_n,
            "repetition": sampler.repetition_penalty,
            "frequency": sampler.frequency_penalty,
            "presence": sampler.presence_penalty,
            "repeat_all": sampler.penalty_scope != "generated",
            "count_all": sampler.penalty_scope == "all",
            "each": sampler.repetition_per == "occurrence",
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        at = torch.arange(step.history.shape[1], device=self.device)
        length = step.length.unsqueeze(1)
        window, repetition, frequency, presence, repeat_all, count_all, each = (
            self.get(name, step).unsqueeze(1) for name in self.fields
        )
        inside = (at < length) & (at >= length - window)
        active = self.get("active", step) & inside.any(1)
        every = data.at_ids(self._counts(step, inside))
        generated = data.at_ids(self._counts(step, inside & step.generated))
        repeated = torch.where(repeat_all, every, generated)
        again = torch.where(each, repeated, 0)
        counted = torch.where(count_all, every, generated)

        def penalise(z: Tensor) -> Tensor:
            z = torch.where(repeated > 0, _repeat(z, repetition), z)
            if self.waits:
                z = _repeat_again(z, repetition, again)
            penalty = counted.to(torch.float32) * frequency
            penalty = penalty + presence
            return torch.where(counted > 0, z - penalty, z)

        data.write(active, penalise)

    def _counts(self, step: DeviceStep, inside: Tensor) -> Tensor:
        """How often each token occurs, int32 [B, V]."""
        tokens = torch.where(inside, step.history, self.n_vocab).to(torch.int64)
        counts = torch.zeros(step.batch, self.n_vocab + 1, dtype=torch.int32, device=self.device)
        return counts.scatter_add(1, tokens, inside.to(torch.int32))[:, :-1]


def _repeat(z: Tensor, repetition: Tensor) -> Tensor:
    """Logits after one repetition."""
    return torch.where(z > 0, z / repetition, z * repetition)


def _repeat_again(z: Tensor, repetition: Tensor, times: Tensor) -> Tensor:
    """Logits [B, V] after all repetitions except the first; ``times`` counts all, int32 [B, V].

    Each penalty is rounded, so they are applied one by one, only to tokens with more than one repetition.  The
    host reads the largest number from the device.
    """
    if z.is_meta:  # only the memory is being measured
        return z
    at = (times > 1).nonzero(as_tuple=True)
    few, own, left = z[at], repetition.squeeze(1)[at[0]], times[at]
    for i in range(1, max(left.tolist(), default=0)):
        few = torch.where(left > i, _repeat(few, own), few)
    return z.index_put(at, few)
