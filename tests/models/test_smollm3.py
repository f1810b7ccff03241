"""smollm3 against llama.cpp's answers and transformers' logits.

Until a shift only: llama.cpp then rotates the keys of layers without rotation.
"""

from __future__ import annotations

from typing import Any

import pytest

from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.check_transformers import SMALL, like_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = SMALL | {"num_hidden_layers": 4, "bos_token_id": 1, "eos_token_id": 2}

test_transformers = like_transformers(
    "SmolLM3Config", {}, {"no_rope_layers": [0, 1, 1, 0], "attention_bias": True}, sizes=SIZES
)


def test_default_windows_of_transformers() -> None:
    """A config.json that names no kinds of layers."""
    changes = {"use_sliding_window": True, "sliding_window": 7}
    config = transformers.SmolLM3Config(**(SIZES | changes))
    values = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    window = read_json(Fields("config.json", values))[1].window
    assert window is not None
    assert window.layers == tuple(kind == "sliding_attention" for kind in config.layer_types)
    assert any(window.layers)
