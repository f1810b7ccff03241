"""Which layers of a config.json have windows, as transformers' configuration classes have it."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.builders import model_json
from tests.models.check_transformers import SMALL

transformers: Any = pytest.importorskip("transformers")
N_LAYERS = 30
ON: dict[str, Any] = {"use_sliding_window": True}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Qwen2", ON),
        ("Qwen2", ON | {"sliding_window": 7}),
        ("Qwen2", ON | {"max_window_layers": 3}),
        ("Qwen2", ON | {"sliding_window": None}),
        ("Qwen2", {"sliding_window": 7}),
        ("Qwen3", ON | {"sliding_window": 7}),
        ("Qwen3", ON | {"sliding_window": 7, "max_window_layers": 0}),
        ("Mistral", {}),
        ("Mistral", {"sliding_window": 9, "use_sliding_window": False}),
        ("Mistral", {"sliding_window": None}),
        ("Mixtral", {}),
        ("Llama", ON | {"sliding_window": 7}),
    ],
)
def test_windows_of_config_json(kind: str, fields: dict[str, Any]) -> None:
    theirs = getattr(transformers, f"{kind}Config")(num_hidden_layers=N_LAYERS, **fields)
    size = None if kind == "Llama" else theirs.sliding_window
    # Only Qwen's configuration has kinds of layers: elsewhere one window is that of all.
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * N_LAYERS
    expected = [size is not None and name == "sliding_attention" for name in kinds]
    values = model_json(model_type=kind.lower(), num_hidden_layers=N_LAYERS) | fields
    _, config = read_json(Fields("config.json", values))
    window = config.window
    assert [window is not None and window.layers[i] for i in range(N_LAYERS)] == expected
    if window is not None:
        assert window.size == size


@pytest.mark.parametrize("kind", ["SmolLM3", "Qwen2Moe"])
def test_default_windows_of_transformers(kind: str) -> None:
    """A config.json that names no kinds of layers."""
    changes = {"sliding_window": 7, "max_window_layers": 2}
    config = getattr(transformers, f"{kind}Config")(
        **SMALL | ON | changes | {"num_hidden_layers": 4}
    )
    values = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    window = read_json(Fields("config.json", values))[1].window
    assert window is not None
    assert window.layers == tuple(kind == "sliding_attention" for kind in config.layer_types)
    assert any(window.layers)
