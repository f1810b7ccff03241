"""Tensors of Hugging Face's files on their way to GGUF's: stacked, divided, multiplied."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dense_models import DENSE
from model_file import write_model

from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, index, open_weights
from aleator.models.architectures import falcon_h1
from aleator.models.config import LatentConfig
from aleator.models.conversions import (
    axes,
    in_text_model,
    other_pairs,
    router_as_vector,
    whole_norms,
)
from aleator.models.delta_net import _stacked
from aleator.models.files.fields import Fields
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.weights import _divide_latent


def numbers(*shape: int, seed: int = 0) -> StoredTensor:
    return StoredTensor.of(np.random.default_rng(seed).standard_normal(shape, np.float32))


def test_matrices_one_after_the_other() -> None:
    parts = [numbers(2, 5, seed=1), numbers(3, 5, seed=2), numbers(1, 5, seed=3)]
    made = _stacked(parts)
    assert made.shape == (6, 5)
    np.testing.assert_array_equal(made.floats(), np.concatenate([part.floats() for part in parts]))


LATENT = LatentConfig(0, 6, 5, 4, True)  # 5 channels of keys, 2 of them rotated, 4 of values


def in_blocks(kind: str, *shape: int) -> StoredTensor:
    """A matrix of 64 columns, of any codes."""
    rng, size = np.random.default_rng(0), {"Q8_0": 68, "F8_E4M3": 68, "NF4": 36}[kind]
    data = rng.integers(0, 100, (math.prod(shape) // 64, size), dtype=np.uint8)
    return StoredTensor(kind, shape, data.reshape(-1))


@pytest.mark.parametrize(
    "whole",
    [numbers(3 * 7, 64), *(in_blocks(kind, 3 * 7, 64) for kind in ("Q8_0", "F8_E4M3", "NF4"))],
)
def test_keys_and_values_of_compressed_ones_are_divided(whole: StoredTensor) -> None:
    tensors = {"a.attn_kv_b.weight": whole}
    _divide_latent(tensors, "a.", 3, 2, replace(LATENT, rank=64))
    heads = whole.floats().reshape(3, 7, 64)
    assert tensors.keys() == {"a.attn_k_b.weight", "a.attn_v_b.weight"}
    np.testing.assert_array_equal(
        tensors["a.attn_k_b.weight"].floats(), heads[:, :3].transpose(0, 2, 1)
    )
    np.testing.assert_array_equal(tensors["a.attn_v_b.weight"].floats(), heads[:, 3:])


@pytest.mark.parametrize("other", [numbers(3 * 7, 5), numbers(6, 3 * 7), None])
def test_what_is_not_of_that_shape_stays(other: StoredTensor | None) -> None:
    tensors = {} if other is None else {"attn_kv_b.weight": other}
    _divide_latent(tensors, "", 3, 2, LATENT)
    assert tensors == ({} if other is None else {"attn_kv_b.weight": other})


@pytest.mark.parametrize("value", [1e6, -1e6, 0.25])
def test_factors_of_falcon_h1_are_taken_in_their_range(value: float) -> None:
    tensor = numbers(4, 4)
    config: Any = SimpleNamespace(ssm=None)
    given = Fields("config.json", {"key_multiplier": value})
    made = falcon_h1.with_factors("blk.0.attn_k.weight", tensor, given, config)
    np.testing.assert_allclose(made.floats(), tensor.floats() * np.float32(value), rtol=1e-6)
    for name, none in (("attn_k", Fields("c", {})), ("attn_norm", given), ("ffn_up", given)):
        assert falcon_h1.with_factors(f"blk.0.{name}.weight", tensor, none, config) is tensor
    for beyond in (1e6 + 1, -1e6 - 1):
        wrong = Fields("config.json", {"key_multiplier": beyond})
        with pytest.raises(FileFormatError, match="must be between -1e\\+06 and 1e\\+06"):
            falcon_h1.with_factors("blk.0.attn_k.weight", tensor, wrong, config)


GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "sliding_window": 8, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "one"),
    [((8, 16, 8, 16), True), ((8, 16, 12, 16), False), ((8, 16, 8, 24), False), ((16,) * 4, True)],
)
def test_layers_of_a_kind_have_heads_of_one_size(dims: tuple[int, ...], one: bool) -> None:
    sizes = {str(i): {"head_dim": dim} for i, dim in enumerate(dims)}
    fields = Fields("config.json", GEMMA4 | {"per_layer_config": sizes})
    if one:
        config = index.read_json(fields)[1]
        assert config.window is not None
        assert [config.head_dims(layer)[0] for layer in range(4)] == list(dims)
        return
    with pytest.raises(UnsupportedModel, match="heads of several sizes among layers of a kind"):
        index.read_json(fields)


@pytest.mark.parametrize("dim", [16, 14, 12, 2])
def test_axes_have_a_third_of_the_pairs_each_unless_the_file_says_otherwise(dim: int) -> None:
    config: Any = SimpleNamespace(rope=SimpleNamespace(dim=dim))

    def divided(**values: Any) -> Any:
        return axes(config, Fields("config.json", values))["rope.dimension_sections"]

    *sizes, none = divided()
    assert (sum(sizes), none) == (dim // 2, 0)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    given = {"mrope_section": [4, 2, 1]}
    for values in (
        {"rope_scaling": given},
        {"rope_parameters": given},
        {"text_config": {"rope_scaling": given}},
    ):
        assert divided(**values) == [4, 2, 1, 0]
    assert divided(rope_scaling={"mrope_section": [1, 2, 3, 4, 5]}) == [1, 2, 3, 4]
    assert divided(rope_scaling={"mrope_section": [0, 8]}) == [0, 8, 0, 0]
    for wrong in ("sizes", [1, -1], [1.0], [True]):
        with pytest.raises(FileFormatError, match=r"mrope_section is .*; it must be sizes"):
            divided(rope_scaling={"mrope_section": wrong})


def test_rows_that_are_rotated_together_become_neighbours_and_come_apart_again() -> None:
    rows = np.arange(2 * 6 * 5).reshape(12, 5)
    made = other_pairs(rows, 2)
    assert made[:, 0].tolist() == [5 * n for n in (0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11)]
    assert np.array_equal(other_pairs(made, 2, neighbours=False), rows)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("model.layers.0.x", "model.layers.0.x"), ("model.language_model.norm", "model.norm"),
        ("language_model.model.norm", "model.norm"), ("lm_head", "lm_head"), ("vision_tower.x", ""),
        ("model.vision_tower.x", ""), ("model.visual.x", ""), ("multi_modal_projector.x", ""),
    ],
)  # fmt: skip
def test_names_in_models_with_pictures(name: str, ours: str) -> None:
    assert in_text_model(name) == ours


def test_a_router_is_a_vector_and_norms_are_whole() -> None:
    name, two = "blk.0.ffn_gate_inp_shexp.weight", numbers(1, 5)
    assert router_as_vector(name, two).shape == (5,)
    assert router_as_vector(name, numbers(5)).shape == (5,)
    assert router_as_vector("blk.0.ffn_gate_inp.weight", two) is two
    norm = numbers(5)
    np.testing.assert_array_equal(
        whole_norms("output_norm.weight", norm).floats(), norm.floats() + 1
    )
    assert whole_norms("output.weight", norm) is norm


def test_compressed_keys_end_with_a_block_of_the_cache(tmp_path: Path) -> None:
    """They are the values too, so that values would begin within a block."""
    names = [n for n, s in DENSE.items() if s.latent and s.latent.compressed and s.latent.rank % 32]
    path = write_model(tmp_path / "m.gguf", DENSE[names[0]])
    decoder = build_decoder(open_weights(path))
    with pytest.raises(ParameterError, match="compressed ones are not a multiple: use f32, f16"):
        Context(decoder, n_ctx=32, type_k="q8_0").decode(Batch.one([1, 2]))
