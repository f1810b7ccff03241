"""gpt-oss against llama.cpp's logits (tools/golden_models.py) and transformers'; sinks beside windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aleator.core.errors import FileFormatError
from aleator.generate import Batch, Context
from aleator.models import open_weights
from tests.models.builders import write_directory
from tests.models.check_converted import check_converted, logits
from tests.models.check_golden import golden_of, tokens_of
from tests.models.check_transformers import SMALL, like_transformers, relative, write
from tests.models.prequantised import mxfp4

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {
    "intermediate_size": 24, "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 6,
    "num_experts_per_tok": 3, "sliding_window": 8,
}  # fmt: skip

test_transformers = like_transformers(
    "GptOssConfig",
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    {},
    {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    sizes=SIZES,
)


def test_experts_in_mxfp4(make_decoder: Any) -> None:
    """llama.cpp rounds activations with scales in float16, which ours keep in float32."""
    decoder = make_decoder("gpt-oss-mxfp4")
    context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32")
    rows = np.asarray(context.decode(Batch.one(tokens_of(decoder), logits=True)))
    assert relative(rows, golden_of("gpt-oss-mxfp4")["prefill"]) < 5e-3


def test_experts_of_a_directory_in_mxfp4(tmp_path: Path) -> None:
    """As OpenAI's own directories have them; biases and all else in floats."""
    sizes = SIZES | {"intermediate_size": 64, "num_experts_per_tok": 6}  # none is chosen
    model = write(
        transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)), tmp_path / "floats"
    )
    named, rng, whole = (
        load_file(tmp_path / "floats" / "model.safetensors"),
        np.random.default_rng(0),
        {},
    )
    for layer in range(sizes["num_hidden_layers"]):
        for part, shape in (("gate_up", (6, 128, 32)), ("down", (6, 32, 64))):
            stem = f"model.layers.{layer}.mlp.experts.{part}_proj"
            tensors, whole[layer, part] = mxfp4(rng, *shape)
            with torch.no_grad():
                model.get_parameter(stem).copy_(torch.from_numpy(whole[layer, part]).mT)
            del named[stem]
            named |= {stem + end: tensor for end, tensor in tensors.items()}
    model.save_pretrained(tmp_path / "floats")
    config = json.loads((tmp_path / "floats" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "m").mkdir()
    write_directory(tmp_path / "m", config, named)
    weights, ids = open_weights(tmp_path / "m"), list(range(30))
    both = weights.stored("blk.1.ffn_gate_up_exps.weight")
    assert both.type == "MXFP4"
    apart = np.concatenate([whole[1, "gate_up"][:, ::2], whole[1, "gate_up"][:, 1::2]], 1)
    np.testing.assert_array_equal(both.floats(), apart)
    np.testing.assert_array_equal(weights.floats("blk.1.ffn_down_exps.weight"), whole[1, "down"])
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    rows = logits(weights, ids)
    assert relative(logits(open_weights(tmp_path / "floats"), ids), expected) < 1e-5
    assert 0 < relative(rows, expected) < 5e-2  # activations are rounded to int8
    check_converted(tmp_path / "m", ids)
    del named["model.layers.0.mlp.experts.down_proj_scales"]
    write_directory(tmp_path / "m", config, named)
    with pytest.raises(FileFormatError, match="down_proj_scales' is missing"):
        open_weights(tmp_path / "m")
