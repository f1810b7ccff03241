"""gemma4 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import DENSE, write_dense

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from aleator.models.files.fields import Fields
from aleator.models.gemma4 import GEMMA4, ours, read_json
from tests.models.check_dense import check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


@pytest.mark.parametrize("name", ["gemma4", "gemma4-own-values"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, tolerance=1e-4)


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
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Gemma4TextConfig(**(SIZES | changes))
    with torch.no_grad():
        model = random_scales(transformers.Gemma4ForCausalLM(config))
    check_transformers(model, tmp_path)


@pytest.mark.parametrize(
    ("meta", "what"),
    [
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
            "rotary scaling of type 'yarn'",
        ),
    ],
)
def test_what_is_not_computed_is_refused(meta: dict[str, Any], what: str, tmp_path: Path) -> None:
    spec = DENSE["gemma4"]
    path = write_dense(tmp_path / "m.gguf", replace(spec, meta=dict(spec.meta) | meta))
    with pytest.raises(UnsupportedModel, match=what):
        open_weights(path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"per_layer_config": {"1": {"hidden_size": 8}}}, r"per_layer_config\[1\]"),
        ({"per_layer_config": {"1": {"head_dim": 24}}}, "several sizes"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
    ],
)
def test_what_is_not_computed_is_refused_in_json(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedModel, match=what):
        read_json(Fields("config.json", SIZES | {"model_type": "gemma4_text"} | changes), GEMMA4)


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
    assert {name: ours(name) for name in named} == named
