"""Matrices whose columns are stored in another order (GPTQ's act-order): products, models, conversion."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_numerics.blocks import product
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from wide_models import MODELS, write_wide

import aleator._native as _native
from aleator.core.threads import pool
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.column_orders import shared_orders
from aleator.models.fingerprint import fingerprint
from aleator.models.layers.linear import tensor
from aleator.models.weights import separated
from tests.models.check_converted import converted, logits
from tests.models.prequantised import N_EMBD, gptq, ours, write_quantised
from tests.models.test_block_numerics import random_rows

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True}
IDS = list(range(20))
Q, DOWN = "blk.0.attn_q.weight", "blk.1.ffn_down.weight"


def scattered(path: Path) -> dict[str, Any]:
    return write_quantised(path, GPTQ, gptq, scattered=True)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n_in", [1280, 2304])
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "Q4_K"])
def test_activations_are_ordered_before_they_are_rounded(
    kind: str, n_in: int, n_threads: int
) -> None:
    rng = np.random.default_rng(0)
    data = random_rows(kind, 24, n_in)
    x = rng.standard_normal((40, n_in), np.float32) * rng.uniform(0, 9, n_in).astype(np.float32)
    order = rng.permutation(n_in).astype(np.int32)
    matrix = _native.StoredMatrix(data.reshape(-1), kind, 24, n_in, order=order)
    expected = product(kind, data, x[:, order])
    for n in (1, 3, 40):
        y = np.empty((n, 24), np.float32)
        _native.linear(pool(n_threads), matrix, x[:n], y)
        assert y.tobytes() == expected[:n].tobytes()


@pytest.mark.parametrize(
    ("kind", "order", "what"),
    [
        ("Q4_0", np.zeros(32, np.int32), "an order of 32 of 64 columns"),
        ("Q4_0", np.full(64, 64, np.int32), "column 64 of 64"),
        ("Q4_0", np.full(64, -1, np.int32), "column -1 of 64"),
        ("F16", np.zeros(64, np.int32), "an order of the columns of F16, which has no blocks"),
    ],
)
def test_orders_that_are_refused(kind: str, order: Any, what: str) -> None:
    data = np.zeros({"Q4_0": 36, "F16": 128}[kind], np.uint8)
    with pytest.raises(ValueError, match=what):
        _native.StoredMatrix(data, kind, 1, 64, order=order)


def test_the_bits_of_the_model_whose_neurons_have_that_order(tmp_path: Path) -> None:
    """Rows of gate and up in the order of down's columns: down needs none then."""
    scattered(tmp_path / "m")
    named = load_file(tmp_path / "m" / "model.safetensors")
    for layer in (0, 1):
        down = f"model.layers.{layer}.mlp.down_proj."
        order = torch.argsort(named[f"{down}g_idx"], stable=True)
        codes = named[f"{down}qweight"].view(torch.uint8)
        nibbles = torch.stack([codes >> shift & 15 for shift in (0, 4)], -1)
        by_column = (
            nibbles.view(*named[f"{down}qweight"].shape, 8).movedim(-1, 1).flatten(0, 1)[order]
        )
        parts = by_column.view(-1, 8, by_column.shape[1]).movedim(1, -1)
        packed = (parts[..., ::2] | parts[..., 1::2] << 4).contiguous().view(torch.int32)[..., 0]
        named[f"{down}qweight"] = packed.contiguous()
        named[f"{down}g_idx"] = named[f"{down}g_idx"][order]
        for each in ("gate_proj", "up_proj"):
            stem = f"model.layers.{layer}.mlp.{each}."
            named[f"{stem}qweight"] = named[f"{stem}qweight"][:, order].contiguous()
            named[f"{stem}scales"] = named[f"{stem}scales"][:, order].contiguous()
            zeros = named[f"{stem}qzeros"].view(torch.uint8)
            apart = torch.stack([zeros & 15, zeros >> 4], -1).flatten(1)[:, order]
            joined = (apart[:, ::2] | apart[:, 1::2] << 4).contiguous()
            named[f"{stem}qzeros"] = joined.view(torch.int32)
    before = logits(open_weights(tmp_path / "m"), IDS)
    save_file(named, tmp_path / "m" / "model.safetensors")
    weights = open_weights(tmp_path / "m")
    assert weights.stored(DOWN).order is None
    kept = weights.stored(Q).order
    assert kept is not None
    assert not kept.flags.writeable  # native code has checked it
    assert logits(weights, IDS).tobytes() == before.tobytes()


def test_one_token_has_the_bits_of_many(tmp_path: Path) -> None:
    scattered(tmp_path / "m")
    weights = open_weights(tmp_path / "m")
    decoder = build_decoder(weights)
    one, many = (
        Context(decoder, n_ctx=64, n_ubatch=n, n_threads=2, type_k="f32", type_v="f32")
        for n in (1, 64)
    )
    ids = [*IDS, *IDS, *IDS]
    expected = np.array(many.decode(Batch.one(ids, logits=True)))
    rows = [np.array(one.decode(Batch.one([each], i, logits=True))) for i, each in enumerate(ids)]
    assert np.concatenate(rows).tobytes() == expected.tobytes()


def test_the_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """Of the model with these numbers; activations are rounded here."""
    scattered(tmp_path / "m")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m" / "floats", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([IDS])).logits[0].numpy()
    rows = logits(open_weights(tmp_path / "m"), IDS)
    assert 0 < np.abs(rows - expected).max() < 0.03 * np.ptp(expected)


def test_pytorch_has_the_same_numbers(tmp_path: Path) -> None:
    whole = scattered(tmp_path / "m")
    weights = open_weights(tmp_path / "m")
    for stem, expected in whole.items():
        np.testing.assert_array_equal(tensor(weights, ours(stem), torch.float32).numpy(), expected)
    decoder = build_decoder(weights, form="torch")
    context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32")
    rows = np.array(context.decode(Batch.one(IDS, logits=True)))
    expected = logits(weights, IDS)
    assert np.abs(rows - expected).max() < 1e-3 * np.ptp(expected)


def test_a_converted_file_has_the_numbers_in_float16(tmp_path: Path) -> None:
    whole = scattered(tmp_path / "m")
    made = converted(tmp_path / "m", tmp_path / "m.gguf")
    assert made.type_of(DOWN) == "F16"
    stem = next(each for each in whole if ours(each) == DOWN)
    np.testing.assert_array_equal(made.stored(DOWN).floats(), whole[stem].astype(np.float16))


def test_the_order_counts_in_the_fingerprint(tmp_path: Path) -> None:
    scattered(tmp_path / "m")
    weights = open_weights(tmp_path / "m")
    before = fingerprint(weights._parts())
    stored = weights.stored(DOWN)
    assert stored.order is not None
    weights._tensors[DOWN] = replace(stored, order=stored.order[::-1].copy())
    assert fingerprint(weights._parts()) != before


def test_a_remembered_fingerprint_is_that_of_the_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that held the matrices in F16 has remembered another for the same files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scattered(tmp_path / "m")
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**10)
    weights = open_weights(tmp_path / "m")
    kept = dict(weights._tensors)
    weights._tensors |= {name: each.in_order() for name, each in kept.items()}
    older = weights.identity().fingerprint
    weights._tensors |= kept
    made = weights.identity().fingerprint
    assert made == fingerprint(weights._parts()) != older
    monkeypatch.setattr(type(weights), "_parts", lambda _: pytest.fail("it is read again"))
    assert open_weights(tmp_path / "m").identity().fingerprint == made


def test_native_code_refuses_several_orders_of_one_input(tmp_path: Path) -> None:
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS["cohere2"], "Q8_0"))
    order = np.arange(weights.config.n_embd, dtype=np.int32)
    for names, what in ((("ffn_up",), "gate_up"), (("ffn_gate", "ffn_up"), "attn_q and ffn_up")):
        for name in names:
            own = f"blk.0.{name}.weight"
            weights._tensors[own] = replace(weights.stored(own), order=order)
        with pytest.raises(ValueError, match=f"{what} ha.* columns in several orders"):
            logits(weights, IDS)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", ["cohere2", "gemma4", "qwen35"])
def test_every_kind_of_layer_has_the_order_of_its_input(
    tmp_path: Path, name: str, alike: bool
) -> None:
    """``alike``: feed-forward has attention's order; cohere2 takes one input for both."""
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "Q8_0"))
    tensors = {own: weights.stored(own) for own in weights.names()}
    for own, each in tensors.items():
        if each.type == "Q8_0" and len(each.shape) == 2:
            rng = np.random.default_rng([each.shape[1], not alike and ".ffn_" in own])
            tensors[own] = replace(each, order=rng.permutation(each.shape[1]).astype(np.int32))
    weights._tensors |= shared_orders(tensors, weights.config)
    rows = logits(weights, IDS)
    context = Context(build_decoder(weights, form="torch"), n_ctx=64, type_k="f32", type_v="f32")
    expected = np.array(context.decode(Batch.one(IDS, logits=True)))
    # Low bits differ, and then integers of activations; in another order it is more than half.
    assert np.abs(rows - expected).max() < 0.03 * np.ptp(expected)


def test_numbers_that_move_are_rounded_to_float16(tmp_path: Path) -> None:
    """Where files have a matrix's columns as rows, say."""
    scattered(tmp_path / "m")
    stored = open_weights(tmp_path / "m").stored(DOWN)
    made = stored.moved(np.transpose)
    assert (made.type, made.order) == ("F16", None)
    np.testing.assert_array_equal(made.floats(), stored.floats().T.astype(np.float16))


def test_fused_matrices_are_divided(tmp_path: Path) -> None:
    scattered(tmp_path / "m")
    weights = open_weights(tmp_path / "m")
    parts = {
        f"blk.0.attn_{each}.weight": weights.stored(f"blk.0.attn_{each}.weight") for each in "qkv"
    }
    data = np.concatenate([each.data for each in parts.values()])
    rows = sum(each.shape[0] for each in parts.values())
    fused = {"blk.0.attn_qkv.weight": replace(parts[Q], shape=(rows, N_EMBD), data=data)}
    shared = shared_orders(fused, weights.config)
    made = separated(shared, weights.architecture, weights.config)
    for name, expected in parts.items():
        assert made[name].order is not None
        np.testing.assert_array_equal(made[name].floats(), expected.floats())


def test_parts_beside_each_other_share_one_order(tmp_path: Path) -> None:
    """Where attention and feed-forward have the same input, matrices of all have one order, or none."""
    scattered(tmp_path / "m")
    weights = open_weights(tmp_path / "m")
    tensors = {name: weights.stored(name) for name in weights.names()}
    parallel = replace(weights.config, parallel=True)
    made = shared_orders(tensors, parallel)
    first = made[Q].order
    assert first is not None
    assert all(made[f"blk.0.{name}.weight"].order is first for name in ("attn_v", "ffn_up"))
    other = tensors["blk.0.ffn_up.weight"]
    assert other.order is not None
    tensors["blk.0.ffn_up.weight"] = replace(other, order=other.order[::-1].copy())
    made = shared_orders(tensors, parallel)
    assert made[Q].type == made["blk.0.ffn_up.weight"].type == "F16"
    assert made["blk.1.attn_q.weight"].order is not None


def test_orders_are_held_in_memory_as_well_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scattered(tmp_path / "m")
    weights = open_weights(tmp_path / "m")
    stored = [weights.stored(name) for name in weights.names()]
    orders = {id(each.order): each.order.nbytes for each in stored if each.order is not None}
    assert 1 < len(orders) < sum(each.order is not None for each in stored)
    monkeypatch.setattr("aleator.models.weights.lock", lambda data: "")
    whole = sum(each.data.nbytes for each in stored) + sum(orders.values())
    assert weights.lock() == (whole, "")
