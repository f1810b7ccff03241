"""What both versions of mirostat share on the device: target, learning rate, mu, and the draw."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import log2_q32
from aleator.device.places import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    Values,
    key,
    uniform,
)
from aleator.samplers.base import Place, Sampler
from aleator.samplers.mirostat import MirostatSampler


class DeviceMirostatSampler(DeviceSampler):
    """Draws, and moves mu by the surprise of what was drawn."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "tau": Field(torch.float64, 0.0),
        "eta": Field(torch.float64, 0.0),
    }
    state: ClassVar[Fields] = {"mu": Field(torch.float64, 0.0)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """Mu begins at twice tau."""
        if not isinstance(sampler, MirostatSampler):
            raise TypeError(f"a place for mirostat was given {type(sampler).__name__}")
        return {
            **key(sampler.seed_in(place), sampler.purpose, place),
            "tau": sampler.mirostat_tau,
            "eta": sampler.mirostat_eta,
            "mu": 2 * sampler.mirostat_tau,
        }

    def draw(self, data: DeviceCandidates, mu: Tensor, step: DeviceStep) -> None:
        """Draw from what is left."""
        data.draw(uniform(self, step), self.get("active", step))
        at_selected = data.ids == data.selected.unsqueeze(1)
        chosen = data.total(torch.where(at_selected, data.weights, 0))
        bits = log2_q32(data.mass.clamp(min=1)) - log2_q32(chosen.clamp(min=1))
        surprise = bits.to(torch.float64) / 2.0**32
        moved = mu - self.get("eta", step) * (surprise - self.get("tau", step))
        self.propose("mu", moved, step)
