"""Which device computes which layers, and what is refused about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.cache.devices import CPU, Device, named_device
from aleator.core.errors import ParameterError
from aleator.models import open_weights
from aleator.models import placement as module
from aleator.models.placement import DeviceMap, Place, Placement, placement, weight_bytes
from tests.models.builders import model_tensors, write_gguf

CUDA = Device("cuda", 1)


def test_no_layers_on_a_device_is_the_cpu() -> None:
    assert placement(None, None, 0).places(3) == [Place(CPU, "float32")] * 3
    assert aleator.load(n_gpu_layers=0).decoder.device == CPU


def test_layers_on_a_device_that_is_none() -> None:
    with pytest.raises(ParameterError, match="n_gpu_layers=3 with device='cpu': give 0") as caught:
        placement("cpu", None, 3)
    assert caught.value.parameter == "n_gpu_layers"


def test_the_last_layers_are_on_the_device() -> None:
    def of(n: int | None, dtype: str | None = None) -> list[Place]:
        return Placement(CUDA, dtype, n).places(4)

    host, device = Place(CPU, "float32"), Place(CUDA, "exact")
    assert of(0) == [host] * 4
    assert of(1) == [host, host, host, device]
    assert of(3) == [host, device, device, device]
    assert of(4) == of(99) == of(None) == [device] * 4
    assert of(2, "float16") == [Place(CPU, "float16")] * 2 + [Place(CUDA, "float16")] * 2


@pytest.mark.parametrize(
    "value",
    [
        "cpu=0:2,cuda:1=2:3,cpu=3:5",
        " cuda:1=2:3, cpu=3:5 ,cpu=0:2",
        [("cpu", 0, 2), ("cuda:1", 2, 3), ("cpu", 3, 5)],
        (["cuda:1", 2, 3], ["cpu", 0, 2], ["cpu", 3, 5]),
    ],
)
def test_a_map_as_text_and_as_a_list(value: Any) -> None:
    made = DeviceMap.of(value)
    assert str(made) == "cpu=0:2,cuda:1=2:3,cpu=3:5"
    assert DeviceMap.of(str(made)) == made == DeviceMap.of(made)
    assert made.devices(5) == [CPU, CPU, CUDA, CPU, CPU]


BAD: list[tuple[Any, str]] = [
    ("", "device_map='': give ranges of layers, such as 'cpu=0:20,cuda:0=20:32'"),
    ([], r"device_map=\[\]: give ranges"),
    (5, "device_map=5: give ranges"),
    ({"cpu": (0, 6)}, "give ranges"),
    ("cpu=0", "device_map='cpu=0': give ranges"),
    ("cpu=0:-6", "give ranges"),
    ([("cpu", 0)], "give ranges"),
    ([("cpu", 0, 6.0)], "the range of cpu is 0:6.0: give its first layer, counted from 0"),
    ([("cpu", False, 6)], "the range of cpu is False:6"),
    ([("cpu", -1, 6)], "the range of cpu is -1:6"),
    ("cpu=0:0", "the range of cpu is 0:0: .* the layer after its last, which is larger"),
    ("cpu=1:6", "layer 0 has no device: let the first range begin at 0"),
    ("cpu=0:2,cpu:1=5:6", "layers 2 to 4 have no device: let the range of cpu:1 begin at 2"),
    ("cpu=0:3,cpu:1=2:6", "layer 2 is given to cpu and to cpu:1: .* cpu:1 begin at 3"),
    ("cpu=0:6,cpu:1=2:3", "layer 2 is given to cpu and to cpu:1"),
    ("gpu=0:6", "device_map='gpu' is not supported: give cpu, cuda or cuda:N"),
    ([(None, 0, 6)], "device_map=None: give cpu, cuda or cuda:N"),
    ("cuda:4711=0:6", "device_map='cuda:4711': torch finds .* CUDA devices here; give cpu"),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_maps_that_are_refused_before_a_file_is_opened(value: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        aleator.load("there is no such file.gguf", device_map=value)
    assert caught.value.parameter == "device_map"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cpu=0:5", "the model has 6 layers, 0 to 5, and layer 5 has no device: .* end at 6"),
        ("cpu:0=0:2,cpu:1=2:4", ".* and layers 4 to 5 have no device: let the ranges end at 6"),
        ("cpu=0:6,cpu:1=6:9", ".* and there is no layer 8: let the ranges end at 6"),
    ],
)
def test_maps_of_another_number_of_layers_are_refused_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("aleator.language_model.model.build_decoder", read)
    monkeypatch.setattr("aleator.language_model.model.load_vocabulary", read)
    with pytest.raises(ParameterError, match=f"device_map='{value}': {message}"):
        aleator.load(device_map=value)


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"n_gpu_layers": 2}, {"n_gpu_layers": 0}])
def test_a_map_and_something_else_that_says_where(other: dict[str, Any]) -> None:
    ((name, value),) = other.items()
    with pytest.raises(ParameterError, match=f"{name}={value!r} is given too: leave out one"):
        aleator.load(device_map="cpu=0:6", **other)


def test_parts_and_negative_numbers_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"tensor_split='1,1': .* as device_map="):
        aleator.load(tensor_split="1,1")
    with pytest.raises(ParameterError, match="n_gpu_layers"):
        aleator.load(n_gpu_layers=-1)


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("n_gpu_layers", [None, 0, 1, 9])
@pytest.mark.parametrize("device", [None, "auto", "cpu", "cuda", "cuda:1"])
def test_the_device_that_is_taken(
    device: str | None,
    n_gpu_layers: int | None,
    cuda: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(module, "checked_device", named_device)

    def has_cuda() -> bool:
        asked.append("?")
        return cuda

    monkeypatch.setattr(module, "_has_cuda", has_cuda)
    chosen = (
        ("cuda" if cuda and n_gpu_layers != 0 else "cpu") if device in (None, "auto") else device
    )
    here = device == "auto" and chosen == "cpu"  # then the number of layers does not matter
    if n_gpu_layers is not None and not here and (n_gpu_layers == 0) != (chosen == "cpu"):
        with pytest.raises(ParameterError, match=f"n_gpu_layers={n_gpu_layers} with device="):
            placement(device, None, n_gpu_layers)
        return
    with caplog.at_level("INFO"):
        made = placement(device, None, n_gpu_layers)
    assert ("no CUDA device" in caplog.text) == (here and n_gpu_layers != 0)
    assert str(made.device) == chosen
    assert made.n_gpu_layers == (0 if here else n_gpu_layers)
    assert len(asked) == (device in (None, "auto") and n_gpu_layers != 0)
    kinds = {"cpu": "float32", "cuda": "exact"}
    on = 4 if made.n_gpu_layers is None else min(made.n_gpu_layers, 4)
    places = [Place(CPU, "float32")] * (4 - on) + [Place(made.device, kinds[made.device.type])] * on
    assert made.places(4) == places


@pytest.mark.parametrize(
    ("platform", "drivers", "count", "found"),
    [
        ("linux", True, 1, True), ("linux", True, 0, False), ("linux", False, 1, False),
        ("win32", False, 1, True), ("darwin", True, 1, False), ("linux", True, None, False),
    ],
)  # fmt: skip
def test_a_gpu_is_looked_for_where_its_driver_is(
    platform: str, drivers: bool, count: int | None, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(_: str) -> int:
        if count is None:
            raise ImportError
        return count

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os.path, "exists", lambda path: drivers and path == module.DRIVERS[-1])
    monkeypatch.setattr(module, "cuda_devices", counted)
    assert module._has_cuda() is found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4), ("exact", 4)]
)
def test_bytes_of_weights_on_each_device(dtype: str, size: int, tied: bool, tmp_path: Path) -> None:
    """Embeddings are with the first layer, the last norm and the output matrix with the last."""
    tensors = model_tensors()
    if not tied:
        tensors["output.weight"] = tensors["token_embd.weight"].copy()
    weights = open_weights(write_gguf(tmp_path / "m.gguf", None, tensors))
    numbers = {name: values.size for name, values in tensors.items()}
    blocks = [sum(n for name, n in numbers.items() if name.startswith(f"blk.{i}.")) for i in (0, 1)]
    table, norm = numbers["token_embd.weight"], numbers["output_norm.weight"]
    places = [Place(CPU, "float32"), Place(CUDA, dtype)]
    # The norm goes with the output matrix; of a tied matrix both devices have a copy.
    wanted = {"cpu": 4 * (blocks[0] + table), "cuda:1": size * (blocks[1] + norm + table)}
    assert weight_bytes(weights, places) == wanted
    assert list(weight_bytes(weights, places)) == ["cpu", "cuda:1"]
    whole = sum(numbers.values())
    assert weight_bytes(weights, [Place(CUDA, dtype)] * 2) == {"cuda:1": size * whole}
    half = {"bfloat16": 2, "float16": 2}.get(dtype, 4)
    assert weight_bytes(weights, [Place(CPU, dtype)] * 2) == {"cpu": half * whole}


def test_exact_is_for_the_cpu_and_then_one_gpu() -> None:
    exact = [Place(CPU, "float32"), Place(CUDA, "exact")]
    assert Placement(CUDA, "exact", 1).places(2) == exact
    for value, allowed in (
        ("cpu=0:1,cuda:1=1:3", True), ("cuda:1=0:3", True), ("cpu=0:3", True),
        ("cuda:1=0:1,cpu=1:3", False), ("cpu=0:1,cuda:1=1:2,cuda:0=2:3", False),
    ):  # fmt: skip
        made = Placement(CUDA, "exact", device_map=DeviceMap.of(value))
        if allowed:
            made.places(3)
        else:
            with pytest.raises(ParameterError, match="in place of device_map") as caught:
                made.places(3)
            assert caught.value.parameter == "device_map"
