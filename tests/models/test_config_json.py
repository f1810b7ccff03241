"""Configurations that are read from config.json."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import index
from aleator.models.config import ModelConfig, RopeConfig
from aleator.models.files.fields import Fields
from tests.models.builders import model_json


def config_from_json(fields: Fields) -> ModelConfig:
    return index.read_json(fields)[1]


def from_json(**changes: Any) -> ModelConfig:
    return config_from_json(Fields("config.json", model_json(**changes)))


def test_json() -> None:
    config = from_json()
    assert config.architecture == "llama"
    told = config.n_vocab, config.n_layers, config.n_embd, config.context_length
    assert told == (24, 2, 32, 128)
    assert (config.n_heads, config.n_kv_heads, config.n_ff) == ((4, 4), (2, 2), (64, 64))
    assert (config.head_dim, config.head_dim_v, config.tied) == (8, 8, True)
    assert config.rope == RopeConfig(500000.0, 8, "neox", original_context=128)


def test_json_of_each_model_type() -> None:
    assert from_json(model_type="mistral").architecture == "llama"
    assert from_json(model_type="qwen2", sliding_window=64).architecture == "qwen2"
    assert from_json(model_type="qwen3").head_dim == 128
    assert from_json(model_type="qwen3", head_dim=16).head_dim == 16
    assert not from_json(tie_word_embeddings=None).tied


def test_json_rope_of_transformers_5() -> None:
    rope = from_json(
        rope_theta=None, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}
    ).rope
    assert (rope.theta, rope.scaling) == (1e6, "none")


def test_json_llama3_scaling() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    rope = from_json(rope_scaling=scaling).rope
    assert (rope.scaling, rope.factor, rope.original_context) == ("llama3", 8.0, 64)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    for field in ("factor", "low_freq_factor", "high_freq_factor"):
        with pytest.raises(FileFormatError) as caught:
            from_json(rope_scaling={k: v for k, v in scaling.items() if k != field})
        assert caught.value.field == field
    with pytest.raises(FileFormatError, match="must exceed"):
        from_json(rope_scaling=scaling | {"high_freq_factor": 1.0})


def test_json_yarn_scaling() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    rope = from_json(rope_scaling=scaling).rope
    assert (rope.scaling, rope.factor, rope.attn_factor) == ("yarn", 4.0, 1.0)
    # 1 + 0.1 ln 4 is YaRN's own; the field replaces it, RopeConfig multiplies it.
    rope = from_json(rope_scaling=scaling | {"attention_factor": 1.1386294361119891}).rope
    assert rope.attn_factor == pytest.approx(1.0)
    with pytest.raises(FileFormatError, match=r"beta_fast .* must exceed beta_slow"):
        from_json(rope_scaling=scaling | {"beta_fast": 1, "beta_slow": 2})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": None}, "model_type"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": 33}, "head_dim"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"rms_norm_eps": True}, "rms_norm_eps"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"attention_factor": float("nan")}}, "attention_factor"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.4}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 3 + [0.0]}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4}}, "long_factor"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)  # fmt: skip
def test_json_fields_are_checked(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        from_json(**changes)
    assert caught.value.field == field
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"num_experts": 8},
        {"num_local_experts": 8},
        {"quantization_config": {"quant_method": "hqq"}},
        {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
        {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
    ],
)
def test_json_features_not_supported(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json.*not supported"):
        from_json(**changes)


@pytest.mark.parametrize("limit", [[], [0.0], [0.0, 0.5], [0.0, "Infinity", 1]])
def test_json_limits_of_time_steps(limit: list[Any]) -> None:
    fields = {"model_type": "mamba2", "vocab_size": 24, "hidden_size": 32, "num_hidden_layers": 2}
    fields |= {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2}
    assert config_from_json(
        Fields("config.json", fields | {"time_step_limit": [0, "Infinity"]})
    ).ssm
    with pytest.raises(UnsupportedModel, match="time_step_limit"):
        config_from_json(Fields("config.json", fields | {"time_step_limit": limit}))


@pytest.mark.parametrize("kinds", [[["full_attention"]] * 2, [{}, {}], [1, 2]])
@pytest.mark.parametrize("model_type", ["qwen2", "gpt_oss"])
def test_kinds_of_layers_that_are_no_names(model_type: str, kinds: list[Any]) -> None:
    with pytest.raises(FileFormatError, match="layer_types"):
        from_json(model_type=model_type, layer_types=kinds, num_local_experts=None)


@pytest.mark.parametrize(
    ("model_type", "text_type"),
    [("qwen3_vl", "qwen3_vl_text"), ("qwen3_5", "qwen3_5_text"), ("mistral3", "mistral")],
)
def test_of_models_with_pictures_the_text_part_is_read(model_type: str, text_type: str) -> None:
    own: dict[str, Any] = {"num_hidden_layers": 4, "head_dim": 16}
    text = model_json(model_type=text_type, **own)
    whole = {"model_type": model_type, "text_config": text, "vision_config": {"hidden_size": 7}}
    config = config_from_json(Fields("config.json", whole | {"tie_word_embeddings": True}))
    assert (config.n_layers, config.n_embd, config.head_dim, config.tied) == (4, 32, 16, True)
    assert config.query_growth is None
    with pytest.raises(UnsupportedModel, match="a text model of type 'llama'"):
        config_from_json(Fields("config.json", whole | {"text_config": model_json(**own)}))
