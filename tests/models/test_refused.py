"""What is not supported is named, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import open_weights
from aleator.models.architectures import falcon_h1
from aleator.models.files.fields import Fields
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.index import read_json
from tests.models.builders import model_json, model_metadata, model_tensors, write_gguf


@pytest.mark.parametrize(
    ("architecture", "fields", "words"),
    [
        ("llama", {"general.type": "adapter"}, "load the model that it is for.*--lora"),
        ("clip", {"general.type": "mmproj"}, "pictures.*no encoders"),
        ("clip", {}, "pictures.*no encoders"),
        ("t5", {}, "encoder"),
        ("wavtokenizer-dec", {}, "sound"),
    ],
)
def test_gguf(architecture: str, fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", model_metadata(architecture) | fields, architecture=architecture
    )
    with pytest.raises(UnsupportedModel, match=words):
        open_weights(path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "hqq"}, "'hqq'"),
        ({"quant_method": "gptq", "bits": 3}, "'gptq' with bits=3"),
        ({}, "an unknown method"),
    ],
)
def test_quantised_safetensors(config: dict[str, Any], words: str) -> None:
    values = model_json(quantization_config=config)
    with pytest.raises(UnsupportedModel, match=f"{words}.*unquantised safetensors, or a GGUF"):
        read_json(Fields("config.json", values))


DEEPSEEK = {"n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
STATES = {"hybrid_override_pattern": "M*M-", "ssm_state_size": 8, "mamba_num_heads": 8}
STATES |= {"mamba_head_dim": 8, "n_groups": 2, "layer_norm_epsilon": 1e-5, "hidden_act": None}
MOE = {"hybrid_override_pattern": "M*ME", "n_routed_experts": 4}
GELU = {"hidden_act": None, "norm_eps": 1e-5, "rms_norm_eps": None}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def ropes(**changes: Any) -> dict[str, Any]:
    """Rotary embeddings of Gemma 4's two kinds of layers."""
    kinds = ("full_attention", "sliding_attention")
    return {"rope_parameters": {kind: PLAIN | changes.get(kind, {}) for kind in kinds}}


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("bailing_moe", {**MIXTURE, "norm_head": True}, "norm_head"),
        ("deepseek", {**DEEPSEEK, "scoring_func": "sigmoid"}, "scoring_func"),
        ("deepseek", {**DEEPSEEK, "norm_topk_prob": True}, "norm_topk_prob"),
        ("stablelm", {"layer_norm_eps": 1e-5, "qk_layernorm": True}, "qk_layernorm"),
        (
            "stablelm",
            {"layer_norm_eps": 1e-5, "use_parallel_residual": True},
            "use_parallel_residual",
        ),
        ("hy_v3", {**MIXTURE, "route_norm": False}, "route_norm"),
        ("cohere2_moe", {**MIXTURE, "expert_selection_fn": "tanh"}, "expert_selection_fn = 'tanh'"),
        (
            "cohere2_moe",
            {**MIXTURE, "first_k_dense_replace": 1, "prefix_dense_sliding_window_pattern": 2},
            "prefix_dense_sliding_window_pattern = 2",
        ),
        ("hy_v3", {**MIXTURE, "mlp_bias": True}, "biases of feed-forward parts .mlp_bias"),
        ("olmoe", {**MIXTURE, "clip_qkv": 8.0}, "clamped .clip_qkv"),
        ("hunyuan_v1_moe", {**MIXTURE, "num_experts": [4, 8]}, "different experts .num_experts"),
        ("hunyuan_v1_moe", {**MIXTURE, "moe_topk": [1, 2]}, "different experts .moe_topk"),
        ("nemotron_h", {**STATES, "mlp_hidden_act": "silu"}, "the activation 'silu'"),
        ("nemotron_h", {**STATES, **MOE, "moe_latent_size": 16}, "another width .moe_latent_size"),
        ("modernbert", {**GELU, "classifier_activation": "silu"}, "classifier_activation"),
        ("modernbert", {**GELU, "classifier_pooling": "max"}, "classifier_pooling 'max'"),
        (
            "gemma4_text",
            ropes(sliding_attention={"rope_type": "linear", "factor": 2.0}),
            "scaling in window layers",
        ),
        ("gemma4_text", ropes(full_attention={"rope_type": "yarn"}), "scaling of type 'yarn'"),
    ],
)
def test_json(model_type: str, changes: dict[str, Any], words: str) -> None:
    values = {"hidden_act": None} if model_type == "gemma4_text" else {}
    fields = Fields("config.json", model_json(model_type=model_type, **values | changes))
    with pytest.raises(UnsupportedModel, match=rf"config\.json.*{words}.*not supported"):
        read_json(fields)


def test_multipliers_of_falcon_h1_are_counted() -> None:
    tensor = StoredTensor.of(np.ones((2, 4), np.float32))
    config = read_json(Fields("config.json", model_json()))[1]

    def scaled(*factors: Any) -> StoredTensor:
        fields = Fields("config.json", {"mlp_multipliers": list(factors)})
        return falcon_h1.with_factors("blk.0.ffn_down.weight", tensor, fields, config)

    assert (scaled(0.5, 2.0).floats() == 2).all()
    for wrong in ([1.0], [1.0, "2"]):
        with pytest.raises(FileFormatError, match="mlp_multipliers must be 2 numbers"):
            scaled(*wrong)


@pytest.mark.parametrize(
    ("architecture", "fields", "tensor", "words"),
    [
        ("modern-bert", {"hidden_activation": "reglu"}, "", "the activation 'reglu'"),
        ("nemotron_h_moe", {"moe_latent_size": 16}, "", "moe_latent_size"),
        ("mpt", {}, "position_embd.weight", "the tensor position_embd.weight"),
        ("mpt", {}, "blk.0.ffn_act.scales", "the tensor blk.0.ffn_act.scales"),
    ],
)
def test_gguf_of_other_models(
    architecture: str, fields: dict[str, Any], tensor: str, words: str, tmp_path: Path
) -> None:
    about = model_metadata(architecture) | {f"{architecture}.{k}": v for k, v in fields.items()}
    about[f"{architecture}.attention.layer_norm_epsilon"] = 1e-5
    tensors = model_tensors() | ({tensor: np.ones(4, np.float32)} if tensor else {})
    path = write_gguf(tmp_path / "m.gguf", about, tensors, architecture=architecture)
    with pytest.raises(UnsupportedModel, match=words):
        open_weights(path)
