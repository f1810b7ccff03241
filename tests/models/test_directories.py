"""Directories of architectures that transformers lacks give the logits of GGUF files with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

from tests.models.check_directory import Tensors, check_directory

EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 24}
GPT = {
    "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
WIDE = {"n_ff": 256}


def block(kv_heads: int, width: float) -> dict[str, Any]:
    heads = {"n_heads_in_group": 4 // kv_heads if kv_heads else None, "no_op": not kv_heads}
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
    "refact": GPT | {"model_type": "gpt_refact", "sizes": WIDE, "multi_query": True},
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


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_gives_the_files_logits(name: str, tmp_path: Path) -> None:
    check_directory(name, tmp_path, others=OTHERS.get(name, dict), **DIRECTORIES[name])
