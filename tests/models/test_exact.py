"""dtype="exact": which form computes it, and what is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wide_models import MODELS, write_wide

import aleator
from aleator.cache.devices import CPU, Device
from aleator.core.errors import ParameterError
from aleator.models import build_decoder, exact, open_weights
from aleator.models.exact import check_device, check_memory, exact_bytes
from aleator.models.native_decoder import NativeDecoder
from aleator.models.placement import Place, Placement

CUDA = Device("cuda", 0)
MIB = 2**20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has PyTorch say that there is a GPU."""

    def there(capability: tuple[int, int] = (9, 0), free: int = 2**40) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))

    return there


def refused(name: str, what: str, **options: Any) -> None:
    with pytest.raises(ParameterError, match=what) as caught:
        aleator.load(**options)
    assert caught.value.parameter == name


def test_on_the_cpu_it_is_the_native_form() -> None:
    model = aleator.load(dtype="exact", device="cpu")
    assert isinstance(model.decoder, NativeDecoder)
    plain = aleator.load(device="cpu")
    texts = [each.generate("ROMEO:", max_tokens=8, seed=1).text for each in (model, plain)]
    assert texts[0] == texts[1]
    assert isinstance(build_decoder(model.weights, dtype="exact"), NativeDecoder)
    assert Placement(CUDA, "exact", 0).places(2) == [Place(CPU, "float32")] * 2


def test_on_a_gpu_weights_are_counted_as_they_are_stored() -> None:
    places = Placement(CUDA, "exact").places(2)
    assert places == [Place(CUDA, "exact")] * 2


def test_no_gpu() -> None:
    if torch.cuda.device_count() == 0:
        refused("device", "finds 0 CUDA devices here; give cpu", dtype="exact", device="cuda")


def test_no_triton(gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu()
    monkeypatch.setattr(exact, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'needs Triton: pip install "aleator\[torch\]", or give'):
        aleator.load(dtype="exact", device="cuda")


def test_an_old_gpu(gpu: Callable[..., None]) -> None:
    gpu((7, 5))
    refused(
        "dtype", "8.0 or above, and cuda has 7.5: give device='cpu'", dtype="exact", device="cuda"
    )
    check_device(CPU)  # Triton's interpreter


def test_too_little_memory(gpu: Callable[..., None]) -> None:
    gpu(free=300 * MIB)
    refused(
        "device", "takes .* MiB on cuda: weights .* MiB, cache 192 MiB, 256 MiB for steps; 300 MiB are free",
        dtype="exact", device="cuda", n_ctx=2**16,
    )  # fmt: skip
    weights = aleator.load().weights
    needed = exact_bytes(weights) + 256 * MIB
    gpu(free=needed)
    check_memory(weights, CUDA, 0)
    with pytest.raises(ParameterError):
        check_memory(weights, CUDA, 1)


def test_what_is_not_on_one_device(gpu: Callable[..., None]) -> None:
    gpu()
    refused(
        "n_gpu_layers", "give n_gpu_layers=6 or 0", dtype="exact", device="cuda", n_gpu_layers=2
    )
    refused(
        "device_map", "all layers on one device: give n_gpu_layers=6 or 0 in place of device_map",
        dtype="exact", device_map="cpu=0:3,cuda:0=3:6",
    )  # fmt: skip
    refused("offload_kqv", "give offload_kqv=True", dtype="exact", device="cuda", offload_kqv=False)


def test_forms_that_are_not_exact() -> None:
    weights = aleator.load().weights
    with pytest.raises(ParameterError, match="give form='triton'"):
        build_decoder(weights, dtype="exact", form="torch")
    with pytest.raises(ParameterError, match="give dtype='exact', or leave it out"):
        build_decoder(weights, dtype="float16", form="triton")


def test_steps_are_not_recorded() -> None:
    weights = aleator.load().weights
    from aleator.generate import Context
    from aleator.generate.multi_step import check_model

    context = Context(build_decoder(weights, places=[Place(Device("meta"), "exact")] * 6), n_ctx=8)
    with pytest.raises(
        ParameterError, match="dtype='exact' computes in Triton's: give multi_step=1"
    ):
        check_model(context)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama", "F16"), ("qwen3moe", "Q4_K"), ("mamba", "Q6_K"), ("jamba-experts", "IQ2_XS"),
     ("qwen35", "MXFP4"), ("gemma4", "Q8_0")],
)  # fmt: skip
def test_bytes_are_those_of_the_decoder(tmp_path: Path, name: str, kind: str) -> None:
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], kind))
    decoder = build_decoder(
        weights, places=[Place(Device("meta"), "exact")] * weights.config.n_layers
    )
    found = sum(storages(decoder, {}, set()).values())
    assert exact_bytes(weights) == pytest.approx(found, rel=0.02)


def storages(holder: object, found: dict[int, int], known: set[int]) -> dict[int, int]:
    """Bytes of the memory of every tensor on "meta" that something holds."""
    if id(holder) in known or isinstance(holder, type):
        return found
    known.add(id(holder))
    inner: list[object] = []
    if isinstance(holder, torch.Tensor):
        if holder.device.type == "meta":
            memory = holder.untyped_storage()
            found[memory._cdata] = memory.nbytes()
    elif isinstance(holder, dict):
        inner = list(holder.values())
    elif isinstance(holder, list | tuple):
        inner = list(holder)
    elif closure := getattr(holder, "__closure__", None):
        inner = [cell.cell_contents for cell in closure]
    elif type(holder).__module__.startswith("aleator."):
        slots = [name for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ())]
        inner = [*getattr(holder, "__dict__", {}).values()]
        inner += [getattr(holder, name) for name in slots]
    for each in inner:
        storages(each, found, known)
    return found
