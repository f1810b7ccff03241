"""Directories of architectures that transformers lacks give the logits of GGUF files with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.architectures import baichuan
from aleator.models.files.fields import Fields
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.index import read_json
from tests.models.check_directory import Tensors, check_directory

EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 24}
GPT = {
    "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
WIDE = {"n_ff": 256}


def block(kv_heads: int, width: float) -> dict[str, Any]:
    heads = {
        "n_heads_in_group": 4 // kv_heads if kv_heads else None,
        "no_op": not kv_heads,
        "replace_with_linear": False,
    }
    return {"attention": heads, "ffn": {"ffn_mult": width, "no_op": False}}


DIRECTORIES: dict[str, dict[str, Any]] = {
    "maincoder": {"model_type": "maincoder"},
    "pangu-embedded": {"model_type": "PanguEmbedded"},
    "plm": {
        "model_type": "plm", "hidden_act": "relu2", "kv_lora_rank": 32, "q_lora_rank": None,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    },
    "deepseek": EXPERTS | {
        "model_type": "deepseek", "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "scoring_func": "softmax", "norm_topk_prob": False,
    },
    "deepseek2-ocr": {
        "model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"],
        "language_config": EXPERTS | {
            "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 512, "n_routed_experts": 6,
            "n_shared_experts": 2, "first_k_dense_replace": 1, "topk_method": "greedy", "use_mla": False,
            "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-5,
        },
    },
    "bailingmoe": EXPERTS | {
        "model_type": "bailing_moe", "num_experts": 6, "num_shared_experts": 2, "norm_topk_prob": True,
    },
    "deci": {
        "model_type": "nemotron-nas", "sizes": WIDE | {"divisors": False},
        "block_configs": [block(2, 6.0), block(0, 12.0), block(4, 6.0), block(1, 11.9)],
    },
    "baichuan-rotated": {"model_type": "baichuan"},
    "baichuan-alibi": {
        "model_type": "baichuan", "max_position_embeddings": None, "model_max_length": 128,
    },
    "qwen": {
        "model_type": "qwen", "intermediate_size": 192, "layer_norm_epsilon": 1e-5, "kv_channels": 16,
        "rotary_emb_base": 10000, "seq_length": 512, "max_position_embeddings": 1024,
    },
    "codeshell": GPT | {
        "model_type": "codeshell", "num_query_groups": 2, "n_inner": 96, "n_positions": 512,
        "group_query_attention": True, "activation_function": "gelu_pytorch_tanh",
    },
    "jais": GPT | {
        "model_type": "jais", "n_inner": 96, "activation_function": "swiglu",
        "position_embedding_type": "alibi", "mup_embeddings_scale": 4.0, "mup_output_alpha": 2.0,
        "mup_width_scale": 0.25, "mup_scale_qk_dot_by_d": True,
    },
    "openelm": {
        "model_type": "openelm", "num_transformer_layers": 2, "model_dim": 64, "num_query_heads": [4, 4],
        "num_kv_heads": [2, 2], "ffn_multipliers": [1.5, 1.4], "ffn_dim_divisor": 32,
        "max_context_length": 128, "rope_freq_constant": 10000,
    },
    "plamo": {"model_type": "plamo", "n_shared_head": 2, "sizes": {"n_kv_heads": 2}},
    "plamo3": {
        "model_type": "plamo3", "window_size": 6, "sliding_window_pattern": 3, "rope_theta": 1e5,
        "rope_local_theta": 1e4,
    },
    "spark2_5": {
        "model_type": "spark2_5", "hidden_act": "gelu", "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e5, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    },
}  # fmt: skip
"""Fields of config.json, and where the file's sizes differ from those of tools/dense_models.py."""


def of_jais(found: Tensors) -> Tensors:
    factors = {"token_embd.weight": 1 / 4.0, "output.weight": 1 / 0.5}
    return {name: each * np.float32(factors.get(name, 1.0)) for name, each in found.items()}


def of_plamo(found: Tensors) -> Tensors:
    """The two heads of queries that share one of keys are not neighbours."""
    apart = [0, 2, 1, 3]
    made = dict(found)
    for name, each in found.items():
        if "attn_q." in name:
            made[name] = each.reshape(4, 16, -1)[apart].reshape(each.shape)
        if "attn_output." in name:
            made[name] = each.reshape(-1, 4, 16)[:, apart].reshape(each.shape)
    return made


def of_plamo3(found: Tensors) -> Tensors:
    less = {"post_attention_norm": 0.2, "post_ffw_norm": 5**-1.5}
    return {
        name: each - np.float32(less.get(name.rpartition(".")[2], 1.0)) if "norm" in name else each
        for name, each in found.items()
    }


OTHERS = {"jais": of_jais, "plamo": of_plamo, "plamo3": of_plamo3}
"""What the numbers in directories are where they are not those of GGUF files."""


USUAL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
FFN = {"ffn_mult": 6.0}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("deci", {}, "block_configs must have an entry for each of 2 layers"),
        ("deci", {"block_configs": [1, 2]}, "block_configs must be a dict, not 1"),
        ("deci", {"block_configs": [{"attention": {"n_heads_in_group": 3}, "ffn": FFN}] * 2},
         "4 heads do not divide into groups of 3"),
        ("deci", {"block_configs": [{"attention": {"no_op": True}, "ffn": {"no_op": True}}] * 2}, "no_op"),
        ("deci", {"block_configs": [{"attention": {"replace_with_linear": True}, "ffn": FFN}] * 2}, "51B"),
        ("deci", {"block_configs": [{"attention": {"window_length": 8}, "ffn": FFN}] * 2}, "window_length"),
        ("deci", {"block_configs": None, "num_key_value_heads_per_layer": [3, 1]}, "multiple of 3"),
        ("qwen", {"rotary_pct": 0.5}, "rotary_pct"),
        ("codeshell", {"group_query_attention": False}, "group_query_attention"),
        ("jais", {"alibi_scaling": {"type": "linear", "factor": 2.0}}, "factor"),
        ("jais", {"mup_scale_qk_dot_by_d": False}, "not divided by the size of a head"),
        ("jais", {"position_embedding_type": "learned"}, "position_embedding_type"),
        ("jais", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("openelm", {"num_kv_heads": [2]}, "num_kv_heads has 1 entries for 2 layers"),
        ("openelm", {"num_kv_heads": [3, 2]}, "4 heads are not a multiple of 3"),
        ("openelm", {"ffn_with_glu": False}, "ffn_with_glu"),
        ("plamo3", {"scale_embedding": True}, "scale_embedding"),
        ("plamo", {"n_shared_head": 0}, "n_shared_head is 0; it must be between 1 and"),
        ("spark2_5", {"headwise_attn_output_gate": False}, "headwise_attn_output_gate"),
        ("deepseek2-ocr", {"architectures": ["DeepseekVLV2ForCausalLM"]}, "is not supported"),
        ("deepseek2-ocr", {"language_config": {"use_mla": True}}, "compressed keys"),
        ("deepseek2-ocr", {"language_config": {"topk_method": "noaux_tc"}}, "topk_method"),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, fields: dict[str, Any], message: str) -> None:
    given = {key: value for key, value in DIRECTORIES[name].items() if key != "sizes"}
    with pytest.raises((FileFormatError, UnsupportedModel), match=message):
        read_json(Fields("config.json", USUAL | given | fields))


def test_factors_of_jais_within_its_own_length() -> None:
    given = {key: value for key, value in DIRECTORIES["jais"].items() if not key.startswith("mup_")}
    older = {"embeddings_scale": 14.6, "width_scale": 0.111, "scale_qk_dot_by_d": True}
    scaling = {"alibi_scaling": {"type": "linear", "train_seq_len": 64}}
    _, config = read_json(Fields("config.json", USUAL | given | older | scaling))
    assert (config.embedding_scale, config.logit_scale, config.context_length) == (14.6, 0.111, 64)


def test_the_long_rotation_of_plamo3_is_not_in_windows() -> None:
    given = {"model_type": "plamo3", "sliding_window": 40, "rope_global_theta": 2e4}
    longer = {"rope_scaling_factor": 4.0, "initial_context_length": 128}
    _, config = read_json(Fields("config.json", USUAL | given | longer))
    window = config.window
    assert window is not None
    assert (window.size, window.rope.scaling, window.rope.theta) == (40, "none", 1e4)
    assert (config.rope.scaling, config.rope.theta, config.tied) == ("yarn", 2e4, True)


def test_kv_heads_of_decilm() -> None:
    given = {"model_type": "deci", "num_key_value_heads_per_layer": [4, 1]}
    assert read_json(Fields("config.json", USUAL | given))[1].n_kv_heads == (4, 1)


def test_the_output_matrix_of_baichuan_2() -> None:
    """Its rows have length 1, as in its own code; those of others are not changed."""
    for rows, long in ((125696, True), (96, False)):
        stored = StoredTensor.of(np.full((rows, 4), 3.0, np.float32))
        made = baichuan.as_gguf("output.weight", stored).floats()
        assert (made == (0.5 if long else 3.0)).all()
        assert (baichuan.as_gguf("token_embd.weight", stored).floats() == 3.0).all()


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_gives_the_files_logits(name: str, tmp_path: Path) -> None:
    check_directory(name, tmp_path, others=OTHERS.get(name, dict), **DIRECTORIES[name])
