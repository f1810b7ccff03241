"""Rotary embeddings and windows of config.json, as transformers reads them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.generate import Batch, Context
from aleator.models import build_decoder, index, json_config, open_weights
from aleator.models.files.fields import Fields
from tests.models.builders import model_json
from tests.models.check_transformers import SMALL, check_transformers, like_transformers, relative

transformers: Any = pytest.importorskip("transformers")
SIZES = SMALL | {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 48}
THETA = {"rope_theta": 1e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16} | THETA


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "partial_rotary_factor": 0.5} | THETA,
    {"rope_type": "linear", "factor": 3.0} | THETA,
    YARN,
    YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    YARN | {"attention_factor": 0.8},
    YARN | {"truncate": False, "beta_fast": 8.0},
    {"rope_type": "dynamic", "factor": 2.0} | THETA,
]
test_llama = like_transformers(
    "LlamaConfig", *({"rope_parameters": rope} for rope in ROPES), sizes=SIZES, n=40, n_ctx=48
)


@pytest.mark.parametrize("kind", ["nemotron", "glm4", "glm4_moe", "minimax_m2", "qwen3_next"])
def test_the_share_in_the_rotation_comes_before_the_share_beside_it(kind: str) -> None:
    sizes = model_json(hidden_act=None, head_dim=16, num_hidden_layers=4, norm_eps=1e-5)
    del sizes["model_type"]
    rope = {"rope_type": "default", "partial_rotary_factor": 0.25} | THETA
    for key, outer in itertools.product(("rope_parameters", "rope_scaling"), (None, 0.5, 1.0)):
        given = sizes | {key: dict(rope)}
        if outer is not None:
            given["partial_rotary_factor"] = outer
        config = transformers.AutoConfig.for_model(kind, **given)
        assert config.rope_parameters["partial_rotary_factor"] == 0.25
        fields = Fields("config.json", given | {"model_type": kind})
        assert index.read_json(fields)[1].rope.dim == 4


@pytest.mark.parametrize("kind", ["llama", *json_config.THETAS])
def test_the_base_that_a_file_leaves_out(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind).get_text_config()
    values = config.to_dict() | {"model_type": kind}
    rope = values.pop("rope_parameters")
    found = index.read_json(Fields("config.json", values))[1].rope.theta
    assert found == rope.get("full_attention", rope)["rope_theta"]


def test_dynamic_scaling_goes_by_the_size_of_the_context(tmp_path: Path) -> None:
    """transformers goes by the length of the text: with a text that fills the context both agree."""
    import torch

    rope = {"rope_type": "dynamic", "factor": 2.0} | THETA
    config = transformers.LlamaConfig(**SIZES, rope_parameters=rope)
    model = transformers.LlamaForCausalLM(config)
    check_transformers(model, tmp_path, n=64, n_ctx=64)
    decoder = build_decoder(open_weights(tmp_path))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].numpy()
    rows = {}
    for n_ctx in (48, 64):
        context = Context(decoder, n_ctx=n_ctx, type_k="f32", type_v="f32")
        rows[n_ctx] = np.asarray(context.decode(Batch.one(range(40), logits=True)))
    assert relative(rows[48], expected) < 1e-5
    assert relative(rows[64], expected) > 1e-3


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", "Mistral"])
def test_windows(kind: str, tmp_path: Path) -> None:
    windows: dict[str, Any] = {"sliding_window": 8, "num_hidden_layers": 3}
    if kind != "Mistral":
        windows |= {"use_sliding_window": True, "max_window_layers": 1, "head_dim": 16}
    config = getattr(transformers, f"{kind}Config")(**SIZES | windows)
    check_transformers(getattr(transformers, f"{kind}ForCausalLM")(config), tmp_path)
    window = open_weights(tmp_path).config.window
    assert window is not None
    assert window.layers == ((True,) * 3 if kind == "Mistral" else (False, True, True))
