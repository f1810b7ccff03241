"""What a step would launch and read on a GPU, counted on tensors without memory."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from make_models import Spec
from triton.runtime.jit import KernelInterface
from wide_models import MODELS, write_wide

from aleator.cache.devices import Device
from aleator.generate import device_plan as planner
from aleator.generate.context import Batch, Context
from aleator.generate.device_plan import (
    AFTER,
    BEFORE,
    COPIES,
    META,
    DevicePlan,
    Machine,
    device_plan,
)
from aleator.models import open_weights
from aleator.models.exact import exact_bytes
from aleator.models.hub.bundled import bundled_model
from aleator.models.kernels.norms import gelu_table
from aleator.models.placement import EXACT, Place
from tests.drawn import recorded


def plan_of(path: Path, name: str, n_ctx: int = 8, **changes: Any) -> DevicePlan:
    spec = replace(MODELS[name], **changes)
    return device_plan(open_weights(write_wide(path, spec, "Q4_K")), n_ctx, "f16", "f16", 512)


def test_each_step_reads_all_weights_once() -> None:
    weights = open_weights(bundled_model())
    plan = device_plan(weights, 100, "f16", "f16", 512, (1, 16))
    assert plan.weights == exact_bytes(weights, [Place(Device("meta"), EXACT)] * 6)
    for step in plan.steps:
        assert sum(part.weights for part in step.parts.values()) == plan.weights  # the head is tied
        # 6 layers, 2 heads of 64, keys and values of 2 bytes.
        assert sum(part.cached for part in step.parts.values()) == (
            step.sequences * 6 * 2 * 64 * 100 * 2 * 2
        )
        assert step.cache == step.sequences * 6 * 2 * 64 * 100 * 2 * 2
    assert list(plan.steps[0].parts) == [BEFORE, "attention", AFTER, COPIES]
    assert plan.steps[0].parts["attention"].layers == 6


def test_nothing_stays_behind() -> None:
    before = KernelInterface.__getitem__
    device_plan(open_weights(bundled_model()), 1, "f16", "f16", 512, (1,))
    assert KernelInterface.__getitem__ is before


def test_launches_follow_the_layers(tmp_path: Path) -> None:
    few = plan_of(tmp_path / "2.gguf", "llama", n_layers=2).steps[0]
    many = plan_of(tmp_path / "4.gguf", "llama", n_layers=4).steps[0]
    per_layer = (many.total.launches - few.total.launches) / 2
    assert few.parts["attention"].launches == 2 * per_layer
    assert 0 < few.parts["attention"].kernels <= few.parts["attention"].launches
    assert per_layer <= 5


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen3moe", "qwen2moe", "gpt-oss", "granitemoe", "llama4"]
)
def test_mixtures_are_few_launches(name: str, tmp_path: Path) -> None:
    for step in plan_of(tmp_path / "m.gguf", name).steps:
        for kind, part in step.parts.items():
            if "experts" in kind:
                assert part.launches <= 6 * part.layers, (kind, step.sequences)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("deepseek2", 7),
        ("minicpm3", 6),
        ("mamba2", 6),
        ("jamba", 6),
        ("mamba", 4),
        ("qwen3next", 8),
        ("mpt", 5),
        ("mistral3", 5),
    ],
)
def test_other_layers_are_few_launches(name: str, most: int, tmp_path: Path) -> None:
    parts = plan_of(tmp_path / "m.gguf", name).steps[0].parts
    counts = {k: p.launches / p.layers for k, p in parts.items() if p.layers}
    assert max(counts.values()) <= most, counts


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize(
    ("name", "most"),
    [("llama", 6), ("qwen3", 6), ("gemma3", 6), ("mpt", 6), ("gpt-oss", 7), ("qwen3moe", 7), ("falcon-h1", 7)],
)  # fmt: skip
def test_over_1024_cells_a_layer_is_one_launch_more(
    name: str, most: int, kind: str, tmp_path: Path
) -> None:
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "Q4_K"))
    for step in device_plan(weights, 1100, kind, kind, 512, (1, 16)).steps:
        counts = {k: p.launches / p.layers for k, p in step.parts.items() if p.layers}
        assert max(counts.values()) == most, counts


def test_only_the_experts_in_use_are_read(tmp_path: Path) -> None:
    spec = MODELS["qwen3moe"]
    assert isinstance(spec, Spec)
    plan = plan_of(tmp_path / "m.gguf", "qwen3moe", n_experts=16, n_used=2)
    parts = [step.parts["attention, experts"] for step in plan.steps]
    one, four, sixteen = (part.weights for part in parts)
    assert 0 < one < four < sixteen < plan.weights
    assert four - one == pytest.approx((sixteen - four) * (8 - 2) / (16 - 8), rel=1e-9)


def test_kinds_of_layers(tmp_path: Path) -> None:
    windows = plan_of(tmp_path / "w.gguf", "gemma3", 64).steps[0].parts
    near, far = windows["attention in a window"], windows["attention"]
    assert near.cached / near.layers < far.cached / far.layers
    states = plan_of(tmp_path / "s.gguf", "jamba").steps[0].parts
    assert states["state"].cached > 0
    both = plan_of(tmp_path / "b.gguf", "falcon-h1").steps[0].parts
    assert both["attention and state"].layers == 2


@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [("llama", 1), ("llama", 9), ("gemma3", 64), ("jamba", 8), ("qwen3moe", 8), ("deepseek2", 8),
     ("falcon-h1", 5), ("qwen3next", 6)],
)  # fmt: skip
def test_what_is_counted_is_as_recorded(name: str, n_ctx: int, tmp_path: Path) -> None:
    """ALEATOR_RECORD=1 records a change that is meant.  Other versions of PyTorch may launch more, or fewer."""
    version = torch.__version__.partition("+")[0]
    if recorded("device_plan", "torch", version) != version:
        pytest.skip("the record is of another version of PyTorch")
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "Q4_K"))
    gelu_table(torch.device(META))  # made once in a process, whichever test runs first
    told = asdict(device_plan(weights, n_ctx, "q8_0", "f16", 512, (1, 3)))
    assert told == recorded("device_plan", f"{name} {n_ctx}", told)


def test_bytes_and_time_are_those_of_a_full_context(tmp_path: Path) -> None:
    short, long = (plan_of(tmp_path / "m.gguf", "llama", n_ctx).steps[1] for n_ctx in (100, 300))
    config = open_weights(tmp_path / "m.gguf").config
    of_cell = 2 * 2 * config.n_kv_heads[0] * config.head_dim * config.n_layers
    assert long.total.bytes - short.total.bytes == 4 * 200 * of_cell
    assert long.total.launches == short.total.launches
    seconds = [Machine().seconds(each.total.bytes, each.total.launches) for each in (short, long)]
    assert seconds[1] - seconds[0] == pytest.approx(4 * 200 * of_cell / Machine().bandwidth)


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba"])
def test_small_pieces_of_a_long_prompt_are_not_all_computed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    monkeypatch.setattr(planner, "_nothing", lambda *args: launched.append(args))
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "Q4_K"))
    plan = device_plan(weights, 200, "f16", "f16", 1, (1,))
    few = plan.steps[0]
    assert len(launched) <= 3 * few.total.launches
    whole = plan_of(tmp_path / "m.gguf", name, 200).steps[0]
    assert (few.parts, few.scratch) == (whole.parts, whole.scratch)
    assert 0 < few.prompt < whole.prompt


@pytest.mark.parametrize(
    ("n_ubatch", "n"), [(64, 64), (64, 65), (64, 199), (50, 150), (50, 151), (8, 201)]
)
def test_the_prompt_takes_what_all_its_pieces_take(
    n_ubatch: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = bundled_model()
    some = device_plan(open_weights(weights), n, "f16", "f16", n_ubatch, (1,))

    def all_of(context: Context, n: int) -> None:
        context.decode(Batch.one([0] * n, 0, logits=False))

    monkeypatch.setattr(planner, "_prompt", all_of)
    assert some == device_plan(open_weights(weights), n, "f16", "f16", n_ubatch, (1,))


def test_time_is_bytes_and_launches() -> None:
    assert Machine(1e12, 2e-6).seconds(3e9, 10) == pytest.approx(3e-3 + 2e-5)
