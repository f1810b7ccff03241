"""dtype="exact": which form computes it, and what is refused before anything is loaded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from wide_models import MODELS, write_wide

import aleator
from aleator.cache.devices import CPU, Device
from aleator.core.errors import ParameterError
from aleator.generate.device_plan import device_plan
from aleator.models import build_decoder, exact, open_weights, placement
from aleator.models.config import PerLayerConfig, without_attention
from aleator.models.exact import check_device, check_memory, exact_bytes, exact_types, step_bytes
from aleator.models.kernels import attention, fused
from aleator.models.native_decoder import NativeDecoder
from aleator.models.placement import ON_CPU, Place, Placement
from tests.models.heads import write_mtp

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


def test_it_is_the_default_on_a_gpu() -> None:
    assert Placement(CUDA).places(2) == [Place(CUDA, "exact")] * 2
    assert Placement(CUDA, None, 1).places(2) == [ON_CPU, Place(CUDA, "exact")]
    assert Placement(CUDA, "bfloat16").places(1) == [Place(CUDA, "bfloat16")]


def test_no_gpu() -> None:
    if torch.cuda.device_count() == 0:
        for options in ({"dtype": "exact"}, {}):
            refused("device", "finds 0 CUDA devices here; give cpu", device="cuda", **options)


def test_no_such_gpu(gpu: Callable[..., None]) -> None:
    gpu()
    refused("device", "finds 1 CUDA devices here; give cpu or cuda:N, N below 1", device="cuda:1")


def test_no_triton(gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu()
    monkeypatch.setattr(exact, "find_spec", lambda name: None)
    either: tuple[dict[str, Any], ...] = ({"dtype": "exact"}, {})
    for options in either:
        with pytest.raises(ImportError, match=r'needs Triton: pip install "aleator\[torch\]", or'):
            aleator.load(device="cuda", **options)


def test_an_old_gpu(gpu: Callable[..., None]) -> None:
    gpu((7, 5))
    for options in ({"dtype": "exact"}, {}):
        what = "8.0 or above, and cuda has 7.5: give device='cpu'"
        refused("dtype", what, device="cuda", **options)
    check_device(CPU)  # Triton's interpreter


def test_a_model_that_has_no_form(
    gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu()
    monkeypatch.setattr(placement, "_has_cuda", lambda: True)
    monkeypatch.setattr(exact, "why_not_native", lambda weights: "such experts")
    what = "dtype='exact' does not compute such experts on the CPU: "
    refused("dtype", f"{what}give dtype='bfloat16'", n_gpu_layers=2)
    refused("dtype", f"{what}leave dtype out", device="cpu", dtype="exact")


def test_too_little_memory(gpu: Callable[..., None]) -> None:
    gpu(free=200 * MIB)
    refused(
        "device", "takes .* MiB on cuda: weights .* MiB, cache 192 MiB, steps of n_ubatch=512 tokens .* MiB; 2",
        dtype="exact", device="cuda", n_ctx=2**16,
    )  # fmt: skip
    weights = aleator.load().weights
    for on_gpu in (6, 2):
        places = Placement(CUDA, "exact", on_gpu).places(6)
        needed = exact_bytes(weights, places) + step_bytes(weights, places, 512, 4096)
        gpu(free=needed)
        check_memory(weights, places, 0, 512, 4096)
        with pytest.raises(
            ParameterError, match=r"n_ubatch=512 tokens .* a smaller n_ctx, n_ubatch or"
        ):
            check_memory(weights, places, 1, 512, 4096)
        check_memory(weights, places, 1, 256, 4096)


@pytest.mark.parametrize("given", [{}, {"n_rollback": 0}, {"n_rollback": 20}])
def test_states_to_go_back_to_are_counted(
    given: Any, gpu: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the model's contexts have, whether they are asked for or not."""
    path = write_wide(tmp_path / "m.gguf", MODELS["qwen3next"], "Q8_0")
    context = aleator.load(path, device="cpu", n_ctx=64, **given).context()
    gpu()
    counted: list[Any] = []
    monkeypatch.setattr("aleator.language_model.model.check_memory", lambda *of: counted.append(of))
    monkeypatch.setattr("aleator.language_model.model.build_decoder", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        aleator.load(path, device="cuda", n_ctx=64, **given)
    assert counted[0][2] == sum(context.cache.device_bytes.values())


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "deepseek2", "qwen3next", "gemma4"])
def test_steps_take_no_more_than_is_counted(name: str, tmp_path: Path) -> None:
    """Captured steps and others side by side, of as many tokens as make all else small; nor much less."""
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "Q8_0"))
    plan = device_plan(weights, 4096, "f16", "f16", 4096, (1,))
    taken = 2 * max(plan.steps[0].scratch, plan.steps[0].prompt)
    assert taken < plan.scratch < 4 * taken


@pytest.mark.parametrize("name", ["llama", "minicpm3", "qwen3"])
def test_scores_of_a_long_text_are_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token's scores take more than the memory that several share."""
    monkeypatch.setattr(attention, "ROOM", 1)
    monkeypatch.setattr(fused, "PROGRAMS", 1)
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "Q8_0"))
    plan = device_plan(weights, 8192, "f16", "f16", 1, (1,))
    taken = 2 * max(plan.steps[0].scratch, plan.steps[0].prompt)
    assert taken < plan.scratch < 2 * taken


@pytest.mark.parametrize(("type", "n"), [("BF16", 1), ("BF16", 3), ("BF16", 16), ("Q8_0", 4)])
def test_programs_of_products_are_counted(
    type: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a few tokens their memory is most of what a step takes."""
    monkeypatch.setattr(attention, "ROOM", 1)
    llama: Any = MODELS["llama"]
    spec = replace(llama, n_layers=1, n_embd=1024, n_ff=2048)
    weights = open_weights(write_wide(tmp_path / "m.gguf", spec, type))
    plan = device_plan(weights, 64, "f16", "f16", n, (n,))
    taken = 2 * max(plan.steps[0].scratch, plan.steps[0].prompt)
    assert taken < plan.scratch < 4 * taken


def test_memory_of_scores_follows_heads_and_cells(tmp_path: Path) -> None:
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS["llama"], "Q8_0"))
    heads = weights.config.n_heads[0]

    def bytes_of(n_ctx: int, *places: Place) -> int:
        return step_bytes(weights, places, 1, n_ctx)

    n, place = weights.config.n_layers, Place(CUDA, "exact")
    most = attention.ROOM // heads
    lists = 4 * 2 * 4 * most
    assert bytes_of(most, *[place] * n) - bytes_of(1, *[place] * n) == lists - 4 * 2 * 4
    more = bytes_of(most + 1, *[place] * n)
    scores = attention.ROOM + attention.ROOM // attention.HIGHEST
    assert more - bytes_of(most, *[place] * n) == 4 * 2 * scores + lists
    assert bytes_of(2 * most, *[place] * n) == more
    assert more - bytes_of(2 * most, *[ON_CPU] * n) > 4 * 2 * scores


def test_layers_that_predict_further_tokens_are_not_counted(tmp_path: Path) -> None:
    weights = open_weights(write_mtp(tmp_path, "glm4moe"))
    n = weights.config.n_layers
    own = [name for name in weights.names() if not name.startswith(f"blk.{n}.")]
    assert len(own) < len(weights.names())
    places = [Place(CUDA, "exact")] * n
    assert sum(each.tensors for each in exact_types(weights, places).values()) == len(own)
    assert step_bytes(weights, places, 64, 4096) > 0


def test_memory_of_steps_follows_the_model(tmp_path: Path) -> None:
    """Experts count as far as a token takes them; only layers on the GPU do."""

    def bytes_of(n_ubatch: int = 4096, first: int = 0, **changes: Any) -> int:
        spec: Any = replace(MODELS["mixtral"], **changes)
        weights = open_weights(write_wide(tmp_path / "m.gguf", spec, "Q8_0"))
        places = [ON_CPU] * first + [Place(CUDA, "exact")] * (spec.n_layers - first)
        return step_bytes(weights, places, n_ubatch, 4096)

    assert bytes_of() - bytes_of(2048) == pytest.approx(bytes_of(2112) - bytes_of(64), rel=1e-6)
    assert bytes_of(n_experts=12) < 1.01 * bytes_of(n_experts=6)
    assert bytes_of(n_used=4) > bytes_of(n_used=2)
    assert bytes_of(n_layers=3) == bytes_of()
    assert bytes_of(n_ff_expert=512, n_ff=512) > bytes_of()
    assert bytes_of(first=2) < bytes_of(first=1) == bytes_of()


def test_the_first_layers_are_on_the_cpu() -> None:
    weights = aleator.load().weights
    places = Placement(CUDA, "exact", 2).places(6)
    assert places == [ON_CPU] * 4 + [Place(CUDA, "exact")] * 2
    whole, part = (exact_bytes(weights, Placement(CUDA, "exact", n).places(6)) for n in (6, 2))
    assert 0 < part < whole / 2
    assert exact_bytes(weights, Placement(CUDA, "exact", 0).places(6)) == 0


@pytest.mark.parametrize("divided", ["cuda:0=0:3,cpu=3:6", "cpu=0:1,cuda:0=1:3,cpu=3:6"])
def test_what_is_not_on_the_cpu_and_then_on_one_gpu(gpu: Callable[..., None], divided: str) -> None:
    gpu()
    refused(
        "device_map", "the first layers on the CPU and the others on one GPU: give n_gpu_layers of 0 to 6",
        device_map=divided,
    )  # fmt: skip
    refused("offload_kqv", "give offload_kqv=True", dtype="exact", device="cuda", offload_kqv=False)


@pytest.mark.parametrize("broken", ["old", "no triton", "no memory", "cache elsewhere"])
def test_auto_is_the_cpu_where_a_gpu_cannot(
    gpu: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    monkeypatch.setattr(placement, "_has_cuda", lambda: True)
    gpu((7, 5) if broken == "old" else (9, 0), MIB if broken == "no memory" else 2**40)
    if broken == "no triton":
        monkeypatch.setattr(exact, "find_spec", lambda name: None)
    options: dict[str, Any] = {"offload_kqv": False} if broken == "cache elsewhere" else {}
    why = {
        "old": "needs a GPU of compute capability 8.0 or above, and cuda has 7.5",
        "no triton": "needs Triton: pip install",
        "no memory": "1 MiB are free",
        "cache elsewhere": "reads the cache there",
    }
    for device, dtype in (("auto", "exact"), ("auto", None), (None, None)):
        caplog.clear()
        model = aleator.load(device=device, dtype=dtype, **options)
        assert isinstance(model.decoder, NativeDecoder)
        assert re.search(f"device={device!r}: the CPU computes, as .*{why[broken]}", caplog.text)
    with pytest.raises((ParameterError, ImportError), match=why[broken]):
        aleator.load(n_gpu_layers=2, **options)


def test_auto_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "_has_cuda", lambda: False)
    caplog.set_level(logging.INFO, "aleator")
    for options in ({"dtype": "exact"}, {"n_gpu_layers": 3}, {}):
        caplog.clear()
        model = aleator.load(device="auto", **options)
        assert isinstance(model.decoder, NativeDecoder)
        assert "device='auto': the CPU computes, as PyTorch finds no CUDA device" in caplog.text
    refused("dtype", "dtype='float8': give", dtype="float8", device="auto")


def test_forms_that_are_not_exact() -> None:
    weights = aleator.load().weights
    with pytest.raises(ParameterError, match="give form='triton'"):
        build_decoder(weights, dtype="exact", form="torch")
    with pytest.raises(ParameterError, match="give dtype='exact', or leave it out"):
        build_decoder(weights, dtype="float16", form="triton")


def test_steps_ahead_need_layers_that_can_be_rewound(tmp_path: Path) -> None:
    from aleator.generate import Context
    from aleator.generate.multi_step import check_model

    for name, what in (
        ("qwen3moe", ""),
        ("gpt2", ""),
        ("gemma3", "windows"),
        ("qwen2vl", "token ids"),
    ):
        weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "F32"))
        places = [Place(Device("meta"), "exact")] * weights.config.n_layers
        context = Context(build_decoder(weights, places=places), n_ctx=8)
        with pytest.raises(ParameterError, match=what) if what else nullcontext():
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
    assert exact_bytes(weights, decoder.places) == pytest.approx(found, rel=0.02)


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


SIX: dict[str, Any] = {
    "n_layers": 6, "n_vocab": 8, "n_embd": 8, "rms_eps": 1e-5, "context_length": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "first", "remedy"),
    [
        ((), 2, ""), ((0, 1, 2, 3, 4, 5), 3, ""), ((0, 1, 2, 3, 2, 3), 4, "layer 2: give 4 or more, 6 or 0"),
        ((0, 1, 2, 1, 1, 1), 3, "layer 1: give 5 or more, 6 or 0"), ((0, 1, 2, 3, 2, 3), 2, ""),
        ((0, 0, 0, 0, 0, 0), 1, "layer 0: give 6 or 0"),
    ],
)  # fmt: skip
def test_layers_that_read_earlier_keys_stay_with_them(
    keys: tuple[int, ...], first: int, remedy: str
) -> None:
    config = without_attention("gemma4", name="", **SIX)
    config = replace(config, n_kv_heads=(1,) * 6, key_layers=keys)
    if not remedy:
        exact._check_division(config, first)
        return
    with pytest.raises(
        ParameterError, match=f"n_gpu_layers={6 - first} with .* of {remedy}, or dtype='bfloat16'$"
    ):
        exact._check_division(config, first)


def test_embeddings_for_each_layer_are_on_one_device() -> None:
    config = without_attention("gemma4", name="", **SIX)
    config = replace(config, n_kv_heads=(1,) * 6, per_layer=PerLayerConfig(8, 8))
    with pytest.raises(
        ParameterError,
        match=r"every layer takes the tokens' embeddings: give 6 or 0, or dtype='bfloat16'$",
    ):
        exact._check_division(config, 3)
