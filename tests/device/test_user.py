"""Users' samplers on the device: parameters, state and keys of their own in every row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from aleator.core.contract import Purpose
from aleator.core.errors import ParameterError
from aleator.core.philox import stream, uniform64
from aleator.device.cases import expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.device.device_sampler import Field
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain
from tests.device.inside import inside


class Sharpen:
    """Multiplies logits by 1 + strength * the tokens drawn so far."""

    name = "sharpen"
    device_fields: ClassVar[Any] = {"strength": Field(torch.float32, 0.0)}
    device_state: ClassVar[Any] = {"drawn": Field(torch.float32, 0.0)}

    def __init__(self, strength: float) -> None:
        self.strength, self.drawn = strength, 0

    def apply(self, candidates: Any) -> None:
        factor = np.float32(1) + np.float32(self.strength) * np.float32(self.drawn)
        candidates.logits = candidates.logits * factor

    def accept(self, token: int) -> None:
        self.drawn += 1

    def rollback(self, n: int) -> None:
        self.drawn -= n

    def device_values(self) -> dict[str, float]:
        return {"strength": self.strength}

    def apply_device(self, data: Any) -> None:
        drawn = data.own.state["drawn"]
        factor = 1 + data.own.parameters["strength"] * drawn
        data.logits = data.logits * factor.unsqueeze(1)
        data.own.propose("drawn", drawn + 1)

    def device_bytes(self, batch: int, n_vocab: int) -> int:
        return 0


def test_rows_have_parameters_and_state_of_their_own() -> None:
    made = [
        SamplerChain([S.TopK(top_k=30), Sharpen(strength), S.Dist()], seed=row).clone()
        for row, strength in enumerate((0.1, 0.25, 0.5))
    ]
    device = DeviceChain(made[0], 3, 90, max_tokens=64, kernels="torch")
    chains = [chain.clone() for chain in made]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    assert len(inside(device).program.places) == 3  # one place for all of them
    for step in range(12):
        z = rows_of("normal", 3, 90, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z), step
        if step % 4 == 3:
            for row in range(3):
                chains[row].rollback(row + 1)
                device.rollback(row, row + 1)
        if step == 6:
            device.permute([2, 0, 1])
            chains = [chains[i] for i in (2, 0, 1)]


class Coin:
    """Chooses a token by its own random number."""

    name = "coin"
    selects = True

    def apply(self, candidates: Any) -> None:
        candidates.selected = 0

    def apply_device(self, data: Any) -> None:
        tokens = (data.own.uniform() >> 1) % 64
        data.select(tokens, data.own.active)

    def device_bytes(self, batch: int, n_vocab: int) -> int:
        return 0


def test_random_numbers_are_keyed_by_row_and_position() -> None:
    coin = Coin()
    device = DeviceChain([coin], 3, 64, kernels="torch")
    for row in range(3):
        device.set_row(row, SamplerChain([Coin2(), coin], seed=5 + row, completion=row))
    for position in range(4):
        wanted = [
            (uniform64(5 + row, 0, position, stream(Purpose.USER, 1, row)) >> 1) % 64
            for row in range(3)
        ]
        assert device.sample(torch.zeros(3, 64)).tolist() == wanted


class Coin2(Coin):
    """Another user's sampler before it, with random numbers of its own."""

    name = "coin2"
    selects = False

    def apply_device(self, data: Any) -> None:
        """Nothing."""


class Plain:
    """Without device_values: nothing that differs from row to row is declared."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def apply(self, candidates: Any) -> None:
        candidates.keep(range(self.limit))

    def apply_device(self, data: Any) -> None:
        data.keep(data.ids < self.limit)

    def device_bytes(self, batch: int, n_vocab: int) -> int:
        return 0


def test_objects_without_declared_parameters_have_places_of_their_own() -> None:
    chains = [SamplerChain([Plain(limit), S.Dist()], seed=1) for limit in (3, 40)]
    device = DeviceChain(chains[0], 2, 90, kernels="torch", chains=chains)
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for step in range(5):
        z = rows_of("flat", 2, 90, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


def test_refuses() -> None:
    class Reserved(Sharpen):
        device_fields: ClassVar[Any] = {"seed": Field(torch.int64, 0)}

    class Shapeless(Sharpen):
        device_fields: ClassVar[Any] = {"strength": torch.float32}

    class Unknown(Sharpen):
        def device_values(self) -> dict[str, float]:
            return {"weakness": 1.0}

    for kind, message in (
        (Reserved, "must differ"),
        (Shapeless, "must map names to Field"),
        (Unknown, "names of device_fields"),
    ):
        with pytest.raises(ParameterError, match=message) as caught:
            DeviceChain([kind(0.1), S.Dist()], 1, 9, kernels="torch")
        assert caught.value.parameter == "samplers"
