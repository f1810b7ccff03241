"""nemotron_h against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.check_transformers import like_transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "ssm_state_size": 8,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 16,
}  # fmt: skip

# Steps are kept from being shorter than time_step_min: most of them, with this one.
test_transformers = like_transformers(
    "NemotronHConfig", {}, {"time_step_min": 0.7, "mlp_bias": True}, sizes=SIZES, tolerance=1e-4
)


def test_a_pattern_names_the_layers() -> None:
    values = {key: value for key, value in SIZES.items() if key != "layers_block_type"}
    values |= {
        "model_type": "nemotron_h",
        "max_position_embeddings": 64,
        "layer_norm_epsilon": 1e-5,
    }
    _, config = read_json(Fields("config.json", values | {"hybrid_override_pattern": "M-*M"}))
    assert config.stateful == (True, False, False, True)
    assert config.n_ff == (0, 48, 0, 0)
    assert config.n_kv_heads == (0, 0, 2, 0)
    architecture, config = read_json(
        Fields("config.json", values | {"hybrid_override_pattern": "ME*"})
    )
    assert architecture.name == "nemotron_h_moe"
    assert config.experts is not None
    assert config.experts.layers == (False, True, False)
    with pytest.raises(UnsupportedModel, match="with experts and without"):
        read_json(Fields("config.json", values | {"hybrid_override_pattern": "ME-*"}))
