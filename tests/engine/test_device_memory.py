"""A device that has no memory left for a step: which requests end, and that the cache is as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import aleator
from aleator.core.errors import DeviceOutOfMemory
from aleator.generate import Batch, Context
from aleator.language_model import LanguageModel
from aleator.models import build_decoder
from aleator.models.torch_decoder import TorchDecoder
from tests.engine.engines import wait_until_idle

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SAID = "CUDA out of memory. Tried to allocate 9.00 GiB."


@pytest.fixture
def small(model: LanguageModel) -> LanguageModel:
    """The bundled model in PyTorch."""
    return LanguageModel(model.weights, build_decoder(model.weights, form="torch"), model.tokenizer)


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most tokens of a micro-batch that there is memory for."""
    compute, room = TorchDecoder.compute, [10**9]

    def tried(self: TorchDecoder, inputs: Any, *rest: Any) -> torch.Tensor:
        given = compute(self, inputs, *rest)  # keys and values are stored before the memory ends
        if len(inputs) > room[0]:
            raise torch.OutOfMemoryError(f"{SAID}\nand more")
        return given

    monkeypatch.setattr(TorchDecoder, "compute", tried)
    return room


def test_the_cache_is_as_it_was(small: LanguageModel, most: list[int]) -> None:
    tokens = [1 + i % 50 for i in range(40)]
    context, other = (Context(small, n_ctx=64, n_ubatch=16) for _ in range(2))
    for each in (context, other):
        each.decode(Batch.one(tokens[:5], 0))
    before = context.cache.state_write()
    most[0] = 12
    with pytest.raises(DeviceOutOfMemory) as caught:
        context.decode(Batch.one(tokens[5:], 5))
    assert str(caught.value) == (
        f"cpu has no memory left for a step of 16 tokens ({SAID}): give a smaller n_ubatch or n_ctx, or fewer "
        "layers there with n_gpu_layers"
    )
    assert (caught.value.device, caught.value.tokens) == ("cpu", 16)
    assert isinstance(caught.value, MemoryError)
    assert context.cache.state_write() == before
    context.cache.check()
    most[0] = 16
    rows = [each.decode(Batch.one(tokens[5:], 5)) for each in (context, other)]
    assert np.array_equal(*rows)


def test_the_request_ends_alone(small: LanguageModel, most: list[int]) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "seed": 3, "temperature": 0.8}
    text = small.generate("ROMEO:", **options).text
    with aleator.Engine(small, n_seq_max=3, n_ctx=3 * 512) as engine:
        writer = engine.submit("ROMEO:", **options)
        next(writer)
        most[0] = 1  # more than one token, and so any piece of a prompt beside the writer
        long = engine.submit("First Citizen:\n" * 30, **options)
        with pytest.raises(DeviceOutOfMemory, match="has no memory left for a step"):
            _ = long.text
        assert writer.text == text
        most[0] = 0
        with pytest.raises(DeviceOutOfMemory, match="a step of"):
            _ = engine.submit("JULIET:", **options).text
        wait_until_idle(engine)
        most[0] = 10**9
        assert engine.submit("ROMEO:", **options).text == text
        assert engine.stats.failed == 2


def test_a_run_alone_says_so(small: LanguageModel, most: list[int]) -> None:
    most[0] = 0
    with pytest.raises(DeviceOutOfMemory):
        _ = small.generate("ROMEO:", max_tokens=4, seed=1).text
    most[0] = 10**9
    assert small.generate("ROMEO:", max_tokens=4, seed=1).text
