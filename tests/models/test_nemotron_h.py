"""Layers of nemotron_h by a pattern."""

from __future__ import annotations

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.test_configurations import NEMOTRON_H


def test_a_pattern_names_the_layers() -> None:
    values = {key: value for key, value in NEMOTRON_H.items() if key != "layers_block_type"}
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
