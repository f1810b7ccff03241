"""Architectures whose other tests have models that GGUF cannot hold: the published kind is converted whole."""

from __future__ import annotations

from collections.abc import Callable
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


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES))


def gemma2() -> Any:
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GEMMA))


def gemma3() -> Any:
    config = transformers.Gemma3TextConfig(**GEMMA, final_logit_softcapping=5.0)
    return transformers.Gemma3ForCausalLM(config)


def gemma3_with_pictures() -> Any:
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**GEMMA).to_dict(),
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def gemma4_with_embeddings_of_layers() -> Any:
    """Their table has more rows than the vocabulary; the file has as many."""
    tables = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100}
    config = transformers.Gemma4TextConfig(**SIZES, **tables, sliding_window=8)
    return transformers.Gemma4ForCausalLM(config)


def llama4() -> Any:
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**LLAMA4))


def olmo3() -> Any:
    return transformers.Olmo3ForCausalLM(transformers.Olmo3Config(**SIZES, sliding_window=8))


def nemotron_h() -> Any:
    parts = ["mamba", "attention", "mlp", "mamba"]
    states = {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2}
    config = transformers.NemotronHConfig(**SIZES, **states, layers_block_type=parts)
    return transformers.NemotronHForCausalLM(config)


def gpt_oss() -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
    config = transformers.GptOssConfig(
        **SIZES, **experts, rope_parameters=LONG | {"original_max_position_embeddings": 64}
    )
    return transformers.GptOssForCausalLM(config)


def gpt_oss_in_halves() -> Any:
    return gpt_oss().to(torch.bfloat16)


def gpt2_in_halves() -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).to(torch.float16)


def bloom_in_halves() -> Any:
    sizes = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96}
    return transformers.BloomForCausalLM(transformers.BloomConfig(**sizes)).to(torch.bfloat16)


def mixtral_in_halves() -> Any:
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config).to(torch.bfloat16)


@pytest.mark.parametrize(
    "make",
    [
        qwen3,
        gemma2,
        gemma3,
        gemma3_with_pictures,
        gemma4_with_embeddings_of_layers,
        llama4,
        olmo3,
        nemotron_h,
        gpt_oss,
        gpt_oss_in_halves,
        gpt2_in_halves,
        bloom_in_halves,
        mixtral_in_halves,
    ],
)
def test_published_kinds(make: Callable[[], Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    write(make(), tmp_path)
    config = tmp_path / "config.json"
    # llama.cpp knows no least time step, and transformers needs one when it makes weights.
    config.write_text(config.read_text().replace('"time_step_min": 0.001', '"time_step_min": 0.0'))
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
