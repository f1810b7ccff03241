"""Architectures whose other tests have models that GGUF cannot hold: the published kind is converted whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aleator.models.files.gguf import GGUFFile
from tests.models.check_converted import check_converted, converted
from tests.models.check_transformers import SMALL, write

transformers: Any = pytest.importorskip("transformers")

SIZES: dict[str, Any] = SMALL | {"intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
GEMMA = SIZES | {"query_pre_attn_scalar": 8, "sliding_window": 8}
LLAMA4 = SIZES | {
    "intermediate_size_mlp": 64,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "interleave_moe_layer_step": 2,
}
LONG = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": True}
TABLES = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96}
GPT_OSS = SIZES | {
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
    "rope_parameters": LONG | {"original_max_position_embeddings": 64},
}  # fmt: skip
NEMOTRON_H = SIZES | {
    "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2,
    "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
}  # fmt: skip
# The table of layers' embeddings has more rows than the vocabulary; the file has as many.
GEMMA4 = SIZES | {
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100, "sliding_window": 8,
}  # fmt: skip


def gemma3_with_pictures() -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    text = transformers.Gemma3TextConfig(**GEMMA).to_dict()
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


@pytest.mark.parametrize(
    ("config", "sizes", "dtype"),
    [
        ("Qwen3Config", SIZES, "float32"),
        ("Gemma2Config", GEMMA, "float32"),
        ("Gemma3TextConfig", GEMMA | {"final_logit_softcapping": 5.0}, "float32"),
        ("Gemma4TextConfig", GEMMA4, "float32"),
        ("Llama4TextConfig", LLAMA4, "float32"),
        ("Olmo3Config", SIZES | {"sliding_window": 8}, "float32"),
        ("NemotronHConfig", NEMOTRON_H, "float32"),
        ("GptOssConfig", GPT_OSS, "float32"),
        ("GptOssConfig", GPT_OSS, "bfloat16"),
        ("GPT2Config", GPT2, "float16"),
        ("BloomConfig", BLOOM, "bfloat16"),
        ("MixtralConfig", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}, "bfloat16"),
        ("", {}, "float32"),  # Gemma 3 that also reads pictures
    ],
)
def test_published_kinds(config: str, sizes: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    if config:
        made = getattr(transformers, config)(**sizes)
        model = transformers.AutoModelForCausalLM.from_config(made)
    else:
        model = gemma3_with_pictures()
    write(model.to(getattr(torch, dtype)), tmp_path)
    path = tmp_path / "config.json"
    # llama.cpp knows no least time step, and transformers needs one when it makes weights.
    path.write_text(path.read_text().replace('"time_step_min": 0.001', '"time_step_min": 0.0'))
    ids = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    check_converted(tmp_path, ids, whole=True)


EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4}
GROUPED = EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Olmo2", SIZES),
        ("Nemotron", SIZES | {"partial_rotary_factor": 0.5}),
        ("Qwen2Moe", SIZES | EXPERTS),
        ("Olmoe", SIZES | EXPERTS),
        ("GptOss", SIZES | EXPERTS),
        ("MiniMaxM2", SIZES | EXPERTS),
        ("Dots1", SIZES | GROUPED | {"first_k_dense_replace": 1}),
        ("ExaoneMoe", SIZES | GROUPED | {"first_k_dense_replace": 1, "sliding_window": 8}),
    ],
)
def test_the_output_matrix_is_written_for_llama_cpp(
    name: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    """It has no other for these architectures, and a tied model's file would not load there."""
    config = getattr(transformers, f"{name}Config")(**sizes, tie_word_embeddings=True)
    write(getattr(transformers, f"{name}ForCausalLM")(config), tmp_path)
    converted(tmp_path, tmp_path / "m.gguf")
    made = GGUFFile(tmp_path / "m.gguf")
    same = made.stored("output.weight"), made.stored("token_embd.weight")
    assert same[0].floats().tobytes() == same[1].floats().tobytes()


@pytest.mark.parametrize(
    ("name", "other", "lacks"),
    [
        ("Nemotron", {"head_dim": 16}, "heads of 16 channels"),
        ("Cohere2", {"head_dim": 16}, "heads of 16 channels"),
        ("Gemma", {"tie_word_embeddings": False}, "an output matrix beside the embedding"),
        ("Cohere", {"tie_word_embeddings": False}, "an output matrix beside the embedding"),
        ("Cohere", {"use_qk_norm": True}, "norms of queries and keys with fewer than 64 layers"),
        ("Qwen3", {"attention_bias": True}, "biases behind attention"),
        ("Ernie4_5", {"use_bias": True}, "biases in feed-forward parts"),
        ("Starcoder2", {"use_bias": False}, "layers without biases"),
        ("Olmoe", {"num_key_value_heads": 2}, "fewer heads of keys than of queries"),
        ("Gemma2", {"final_logit_softcapping": None}, "scores and logits without a cap"),
        ("Llama", {"rope_parameters": LONG | {"beta_fast": 16.0}}, "YaRN with beta_fast=16 and"),
        ("Qwen2", {"rope_parameters": TABLES}, "rotary scaling of type 'longrope'"),
        ("Granite", {"rope_parameters": TABLES}, None),
        ("Ministral3", {"rope_parameters": LONG | {"beta_fast": 16.0}}, None),
    ],
)
def test_what_llama_cpp_does_not_load(
    name: str, other: dict[str, Any], lacks: str | None, tmp_path: Path
) -> None:
    """It does not load the file, or gives other logits."""
    for given, wanted in ({}, []), (other, [lacks] if lacks else []):
        config = getattr(transformers, f"{name}Config")(
            **GEMMA | {"num_key_value_heads": 4} | given
        )
        write(getattr(transformers, f"{name}ForCausalLM")(config), tmp_path)
        found = converted(tmp_path, tmp_path / "m.gguf").llama_cpp_lacks
        assert [each[: len(lacks or "")] for each in found] == wanted
