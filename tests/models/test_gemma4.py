"""gemma4 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_models import DENSE
from model_file import write_model

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import open_weights
from aleator.models.architectures.gemma4 import GEMMA4, read_json, usual_name
from aleator.models.files.fields import Fields
from tests.models.check_golden import decoder_of
from tests.models.check_transformers import SMALL, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = SMALL | {
    "num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 0,
    "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


def random_scales(model: Any) -> Any:
    """The model with a factor of its own for each layer's output."""
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.7 + 0.2 * i)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": False,
        },
        {
            "layer_types": None,
            "global_head_dim": 24,
            "attention_bias": True,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1000.0,
                    "partial_rotary_factor": 0.6,
                    "factor": 2.0,
                },
            },
        },
        {
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "attention_k_eq_v": True,
        },
        {
            "num_hidden_layers": 6,
            "layer_types": [
                *("full_attention", "sliding_attention", "sliding_attention"),
                *("sliding_attention", "full_attention", "full_attention"),
            ],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 100,
        },
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Gemma4TextConfig(**(SIZES | changes))
    with torch.no_grad():
        model = random_scales(transformers.Gemma4ForCausalLM(config))
    check_transformers(model, tmp_path)


@pytest.mark.parametrize(
    ("meta", "what"),
    [({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, "rotary scaling of type 'yarn'")],
)
def test_what_is_not_computed_is_refused(meta: dict[str, Any], what: str, tmp_path: Path) -> None:
    spec = DENSE["gemma4"]
    path = write_model(tmp_path / "m.gguf", replace(spec, meta=dict(spec.meta) | meta))
    with pytest.raises(UnsupportedModel, match=what):
        open_weights(path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"per_layer_config": {"1": {"hidden_size": 8}}}, r"per_layer_config\[1\]"),
        ({"per_layer_config": {"1": {"head_dim": 24}}}, "several sizes"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
    ],
)
def test_what_is_not_computed_is_refused_in_json(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedModel, match=what):
        read_json(Fields("config.json", SIZES | {"model_type": "gemma4_text"} | changes), GEMMA4)


def test_layers_without_a_window_may_rotate_whole_heads() -> None:
    plain = {"rope_type": "default", "rope_theta": 5e4}
    ropes = {"full_attention": plain, "sliding_attention": {**plain, "rope_theta": 1e4}}
    fields = SIZES | {"model_type": "gemma4_text", "rope_parameters": ropes}
    config = read_json(Fields("config.json", fields), GEMMA4)
    assert (config.rope.scaling, config.rope.theta) == ("none", 5e4)
    assert config.window is not None
    assert config.window.rope.theta == 1e4


def test_fields_that_contradict_each_other() -> None:
    for changes, what in (
        ({"num_kv_shared_layers": 3}, "no layer before these has keys of their kind"),
        ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 95}, "must be between"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}, "top_k_experts"),
    ):
        fields = Fields("config.json", SIZES | {"model_type": "gemma4_text"} | changes)
        with pytest.raises(FileFormatError, match=what):
            read_json(fields, GEMMA4)


def test_shared_keys_of_other_layers_are_refused_in_gguf(tmp_path: Path) -> None:
    """llama.cpp takes the two layers before the last for them, whatever their kind."""
    spec = DENSE["gemma4-shared-keys"]
    assert spec.gemma4 is not None
    shape = replace(spec.gemma4, windows=(False, True, True, True, False, False))
    with pytest.raises(UnsupportedModel, match=r"shared keys .*gemma4.attention.shared_kv_layers"):
        open_weights(write_model(tmp_path / "m.gguf", replace(spec, gemma4=shape)))


def test_only_layers_with_keys_of_their_own_store_some(tmp_path: Path) -> None:
    decoder = decoder_of("gemma4-shared-keys", tmp_path)
    assert len(decoder.window_shapes) == 2
    assert len(decoder.cache_shapes) == 1
    assert [decoder.cache_index(layer) for layer in range(6)] == [0, 1, 0, 1, 1, 0]


def test_vectors_in_place_of_tokens_are_taken_for_the_first(tmp_path: Path) -> None:
    """Of embeddings for each layer; llama.cpp takes those of token 0 too."""
    rows = []
    for form in ("native", "torch"):
        decoder = decoder_of("gemma4-layer-embeddings", tmp_path, form)
        batch = Batch()
        vector = np.full(decoder.config.n_embd, 0.5, np.float32)
        batch.add_embedding(vector, 0, [0], logits=True)
        rows.append(np.asarray(Context(decoder, n_ctx=64).decode(batch)))
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)


def test_json_with_pictures() -> None:
    """The text part of both kinds, whose defaults differ; fields of before ``per_layer_config``."""
    own = {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
    for kind, size in (("gemma4", 512), ("gemma4_unified", 1024)):
        text = SIZES | own | {"model_type": f"{kind}_text", "sliding_window": None}
        config = read_json(Fields("c", {"model_type": kind, "text_config": text}), GEMMA4)
        assert config.window is not None
        assert config.window.size == size
        assert config.n_kv_heads == (2, 1, 2, 1)
        assert [config.head_dims(i) for i in range(4)] == [(8, 8), (16, 16)] * 2
        assert config.keys_as_values == (False, True) * 2
        assert config.rope.n_rotated == 2


def test_tensors_of_other_parts_are_left_out() -> None:
    named = {
        "model.language_model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
        "model.vision_tower.encoder.layers.0.mlp.up_proj.weight": "",
        "model.audio_tower.layers.0.norm.weight": "",
        "model.embed_vision.embedding_projection.weight": "",
        "model.embed_tokens.weight": "model.embed_tokens.weight",
    }
    assert {name: usual_name(name) for name in named} == named
