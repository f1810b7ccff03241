"""Architectures that are others with other names of fields and tensors give the logits of those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from aleator.models.architectures import exaone
from aleator.models.files.gguf import GGUFFile
from tests.models.check_converted import converted
from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


def replaced(name: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name


def joined(found: dict[str, Any], name: str) -> list[Any]:
    """The matrices of queries, keys and values, of which ``name`` is the first."""
    return [found[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]


@pytest.mark.parametrize("tied", [False, True])
def test_xverse(tied: bool, tmp_path: Path) -> None:
    """Llama; llama.cpp wants an output matrix even where it is the embedding."""
    config = transformers.LlamaConfig(**(SMALL | {"tie_word_embeddings": tied}))

    def change(folder: Path) -> None:
        renamed(folder, lambda fields: fields.update(model_type="xverse"))

    check_transformers(transformers.LlamaForCausalLM(config), tmp_path, change=change, whole=True)
    assert "output.weight" in GGUFFile(tmp_path / "converted.gguf").tensors


def test_orion(tmp_path: Path) -> None:
    """StableLM with other fields."""
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 1.0}
    config = transformers.StableLmConfig(**SMALL, rope_parameters=rope)

    def change(folder: Path) -> None:
        other = {"model_type": "orion", "rms_norm_eps": 1e-5, "rope_theta": 1e4}
        unused = ("rope_parameters", "layer_norm_eps", "use_parallel_residual", "qk_layernorm")
        renamed(folder, lambda fields: [fields.update(other), *map(fields.pop, unused)])

    model = transformers.StableLmForCausalLM(config)
    check_transformers(model, tmp_path, change=change, whole=True)


@pytest.mark.parametrize("tied", [True, False])
def test_minicpm(tied: bool, tmp_path: Path) -> None:
    """Granite with other fields."""
    multipliers = {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 1.4 / 2**0.5,
        "attention_multiplier": 8**-0.5,
        "logits_scaling": 2.0,
    }
    config = transformers.GraniteConfig(**SMALL, tie_word_embeddings=tied, **multipliers)

    def fields(values: dict[str, Any]) -> None:
        for key in (*multipliers, *(["tie_word_embeddings"] if tied else [])):
            del values[key]
        values |= {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
        values["model_type"] = "minicpm"

    model = transformers.GraniteForCausalLM(config)
    check_transformers(model, tmp_path, change=lambda folder: renamed(folder, fields), whole=True)


INTERNLM2 = {
    "embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}  # fmt: skip


def as_internlm2(folder: Path) -> None:
    """Make a directory of llama's internlm2's.

    The query heads of a KV head, its key and its value stand together.
    """

    def tensors(found: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for name, each in found.items():
            if ".q_proj." in name:
                parts = joined(found, name)
                heads = [
                    part.reshape(SMALL["num_key_value_heads"], -1, *part.shape[1:])
                    for part in parts
                ]
                each = torch.cat(heads, dim=1).flatten(0, 1)
                name = name.replace("self_attn.q_proj", "attention.wqkv")
            if ".k_proj." not in name and ".v_proj." not in name:
                made[replaced(name, INTERNLM2)] = each
        return made

    renamed(folder, lambda fields: fields.update(model_type="internlm2"), tensors)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({}, []),
        ({"attention_bias": True}, ["biases behind attention"]),
        ({"head_dim": 16}, ["heads of 16 channels, not hidden_size / num_attention_heads"]),
    ],
)
def test_internlm2(changes: dict[str, Any], lacks: list[str], tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SMALL | changes)))
    check_transformers(model, tmp_path, change=as_internlm2, whole=True)
    assert converted(tmp_path, tmp_path / "m.gguf").llama_cpp_lacks == lacks


LING: dict[str, Any] = SMALL | {
    "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "head_dim": 8, "use_qk_norm": True,
}  # fmt: skip
LING_NAMES = {
    "embed_tokens": "word_embeddings",
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
}


def fields_of_ling(values: dict[str, Any]) -> None:
    values["num_experts"] = values.pop("n_routed_experts")
    values["num_shared_experts"] = values.pop("n_shared_experts")
    values |= {"model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]}
    values |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True}


@pytest.mark.parametrize("changes", [{}, {"n_group": 4, "topk_group": 2, "n_shared_experts": 2}])
def test_bailingmoe2(changes: dict[str, Any], tmp_path: Path) -> None:
    """GLM-4.5; queries, keys and values are one tensor."""

    def tensors(found: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for name, each in found.items():
            if ".q_proj." in name:
                each = torch.cat(joined(found, name))
                name = name.replace("self_attn.q_proj", "attention.query_key_value")
            if ".k_proj." not in name and ".v_proj." not in name:
                made[replaced(name, LING_NAMES)] = each
        return made

    model = transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**(LING | changes)))
    check_transformers(
        model, tmp_path, change=lambda folder: renamed(folder, fields_of_ling, tensors), whole=True
    )


@pytest.mark.parametrize("key", ["use_qk_norm", "moe_router_enable_expert_bias"])
def test_what_of_bailingmoe2_is_not_computed_is_refused(key: str, tmp_path: Path) -> None:
    transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**LING)).save_pretrained(tmp_path)
    renamed(tmp_path, fields_of_ling)
    renamed(tmp_path, lambda values: values.update({key: False}))
    with pytest.raises(UnsupportedModel, match=key):
        open_weights(tmp_path)


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "rope_parameters": LLAMA3}])
@pytest.mark.parametrize("published", [True, False])
def test_exaone(published: bool, changes: dict[str, Any], tmp_path: Path) -> None:
    """The names of transformers 5 and those of the published files."""
    config = transformers.ExaoneConfig(**(SMALL | changes))
    model = transformers.AutoModelForCausalLM.from_config(config)

    def fields(values: dict[str, Any]) -> None:
        values["model_type"] = "exaone"
        for ours, theirs in exaone.FIELDS.items():
            usual = values.pop(theirs)
            values |= {ours: usual} if published else {theirs: usual, ours: None}

    def tensors(found: dict[str, Any]) -> dict[str, Any]:
        if not published:
            return found
        parts = {usual: part for part, usual in exaone.PARTS.items() if usual != ".self_attn."}
        parts[".self_attn."] = ".attn.attention."
        made = {replaced(name, parts): each for name, each in found.items()}
        assert "transformer.h.1.attn.attention.out_proj.weight" in made
        return made

    check_transformers(
        model, tmp_path, change=lambda folder: renamed(folder, fields, tensors), whole=True
    )
