"""What a converted model's metadata say: read back, they are the dimensions; what differs is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aleator.models.config import (
    ExpertsConfig,
    ModelConfig,
    RopeConfig,
    SSMConfig,
    WindowConfig,
    without_attention,
)
from aleator.models.conversion.gguf_form import config_in_gguf, differences, metadata, sparse_layers
from aleator.models.delta_net import DeltaNetConfig
from aleator.models.index import ARCHITECTURES

PLAIN = ModelConfig(
    "llama", "m", 100, 4, 64, (4,) * 4, (2,) * 4, (96,) * 4, 16, 16, 1e-5, 512, rope=RopeConfig(dim=16),
)  # fmt: skip
FIELDS: Any = None


def changed(**values: Any) -> ModelConfig:
    return replace(PLAIN, **values)


@pytest.mark.parametrize("n", [1, 6, 12])
def test_layers_with_experts_begin_somewhere_and_come_every_few(n: int) -> None:
    """As the readers of ernie4_5-moe have it: from ``first`` on, every ``step``-th."""

    def made(first: int, step: int) -> tuple[bool, ...]:
        return tuple(layer >= first and (layer + 1) % step == 0 for layer in range(n))

    for first in range(n):
        for step in range(1, n + 1):
            layers = made(first, step)
            if not any(layers):
                continue
            told: Any = sparse_layers(changed(experts=ExpertsConfig(4, 2, 8, layers)))
            read = made(told["leading_dense_block_count"], told["interleave_moe_layer_step"])
            assert read == layers, (first, step, told)
    assert sparse_layers(PLAIN) == {"leading_dense_block_count": 0, "interleave_moe_layer_step": 1}


DELTA = DeltaNetConfig(2, 4, 8, 8, 4, 1e-6)


@pytest.mark.parametrize(
    ("states", "interval", "listed"),
    [
        ("sssa", 4, None), ("sasa", 2, None), ("saas", None, [True, False, False, True]), ("aaaa", 1, None),
        ("ssas", 3, None), ("assa", None, [False, True, True, False]),
    ],
)  # fmt: skip
def test_layers_with_a_delta_net(
    states: str, interval: int | None, listed: list[bool] | None
) -> None:
    heads = tuple(0 if state == "s" else 2 for state in states)
    made = metadata(ARCHITECTURES["qwen3next"], changed(n_kv_heads=heads, delta=DELTA), FIELDS)
    given = {key.removeprefix("qwen3next."): value for key, value in made.items()}
    assert given.get("full_attention_interval") == interval
    assert given.get("attention.recurrent_layers") == (None if listed is None else tuple(listed))
    assert given["attention.head_count_kv"] == max(heads)
    told = given["ssm.group_count"], given["ssm.time_step_rank"], given["ssm.inner_size"]
    assert told == (2, 4, 32)


def test_fields_that_are_one_number_or_a_list() -> None:
    llama = ARCHITECTURES["llama"]
    made = metadata(llama, PLAIN, FIELDS)
    assert (made["llama.attention.head_count"], made["llama.feed_forward_length"]) == (4, 96)
    made = metadata(llama, changed(n_kv_heads=(2, 1, 2, 2), n_ff=(96, 0, 0, 0)), FIELDS)
    assert made["llama.attention.head_count_kv"] == (2, 1, 2, 2)
    assert made["llama.feed_forward_length"] == (96, 0, 0, 0)
    alone = without_attention(
        "mamba", name="", n_vocab=9, n_layers=2, n_embd=8, rms_eps=1e-5, context_length=8
    )
    made = metadata(ARCHITECTURES["mamba"], replace(alone, ssm=SSMConfig(16, 4, 8, 2)), FIELDS)
    assert (made["mamba.attention.head_count"], made["mamba.feed_forward_length"]) == (0, 0)
    assert "mamba.attention.head_count_kv" not in made
    assert made["mamba.ssm.time_step_rank"] == 2
    assert "mamba.ssm.group_count" not in made


@pytest.mark.parametrize(("n_groups", "told"), [(1, False), (2, True)])
def test_groups_of_experts_are_told_where_there_are_some(n_groups: int, told: bool) -> None:
    experts = ExpertsConfig(
        4, 2, 8, (True,) * 4, n_groups=n_groups, n_groups_used=1, n_group_best=1
    )
    made = metadata(ARCHITECTURES["deepseek2"], changed(experts=experts), FIELDS)
    assert (
        "deepseek2.expert_group_count" in made,
        "deepseek2.expert_group_used_count" in made,
    ) == (told, told)
    said = config_in_gguf(ARCHITECTURES["deepseek2"], changed(experts=experts)).experts
    assert said is not None
    assert said.n_group_best == (1 if told else 2)


WINDOW = WindowConfig(8, (True, False) * 2, PLAIN.rope)
YARN = RopeConfig(dim=16, scaling="yarn", factor=4.0, original_context=128)
DIFFER: list[tuple[dict[str, Any], dict[str, Any], list[str], list[str]]] = [
    ({}, {}, [], []),
    ({"name": "a"}, {"name": "b"}, [], []),
    ({"rms_eps": 1e-5}, {"rms_eps": 1e-5 * (1 + 5e-7)}, [], []),
    ({"rms_eps": 1e-5}, {"rms_eps": 1e-5 * (1 + 3e-6)}, [], ["rms_eps: 1e-05 would become 1.0000030"]),
    ({"n_vocab": 9}, {"n_vocab": 10}, [], ["n_vocab: 9 would become 10"]),
    ({"attention_scale": 0.25}, {}, [], []),
    ({"attention_scale": 0.5}, {}, [], ["attention_scale: 0.5 would become 0.25"]),
    ({"unrotated": (False,) * 4}, {}, [], []),
    ({"unrotated": (True, False, False, False)}, {}, [], ["unrotated: (True, False, False, False) would"]),
    ({"window": WINDOW}, {}, ["windows of 8 positions: in longer texts"], []),
    ({}, {"window": WINDOW}, [], ["window: nothing would become WindowConfig("]),
    ({"window": WINDOW}, {"window": replace(WINDOW, size=9)}, [], ["window.size: 8 would become 9"]),
    ({"rope": YARN}, {"rope": replace(YARN, truncate=False)}, ["where YaRN's ramp begins and ends"], []),
    (
        {"rope": YARN},
        {"rope": replace(YARN, beta_fast=30.0)},
        [],
        ["rope.beta_fast: 32.0 would become 30.0"],
    ),
    (
        {"rope": YARN},
        {"rope": replace(YARN, original_context=64)},
        [],
        ["rope.original_context: 128 would"],
    ),
    ({"rope": replace(PLAIN.rope, original_context=64, beta_slow=2.0, truncate=False)}, {}, [], []),
    ({"rope": replace(YARN, low_freq_factor=2.0, high_freq_factor=3.0)}, {"rope": YARN}, [], []),
    ({"stateful": (False,) * 4}, {}, [], []),
]  # fmt: skip


@pytest.mark.parametrize(("said", "found", "left_out", "wrong"), DIFFER)
def test_what_a_file_leaves_out_or_says_wrongly(
    said: dict[str, Any], found: dict[str, Any], left_out: list[str], wrong: list[str]
) -> None:
    told = differences(changed(**said), changed(**found))
    for got, wanted in zip(told, (left_out, wrong), strict=True):
        assert len(got) == len(wanted)
        assert all(text.startswith(begins) for text, begins in zip(got, wanted, strict=True)), got


@pytest.mark.parametrize(("n", "shown"), [(80, "x" * 80), (81, "x" * 77 + "...")])
def test_long_values_are_shortened(n: int, shown: str) -> None:
    _, (wrong,) = differences(changed(pooling="x" * n), PLAIN)
    assert wrong == f"pooling: {shown} would become "


def test_what_is_left_out_of_two_rotations_is_told_once() -> None:
    windows = replace(WINDOW, rope=YARN)
    other = replace(YARN, truncate=False)
    told, wrong = differences(
        changed(rope=YARN, window=windows), changed(rope=other, window=replace(windows, rope=other))
    )
    assert (len(told), wrong) == (1, [])
