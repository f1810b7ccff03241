"""bailingmoe2 against llama.cpp's answers and those of GLM-4.5, which it is with other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {
    "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "head_dim": 8, "use_qk_norm": True,
}  # fmt: skip
FIELDS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
NAMES = {
    "embed_tokens": "word_embeddings",
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
}


def fields(values: dict[str, Any]) -> None:
    for theirs, ours in FIELDS.items():
        values[ours] = values.pop(theirs)
    values |= {"model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]}
    values |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True}


def tensors(found: dict[str, Any]) -> dict[str, Any]:
    """The tensors by Ling's names; queries, keys and values are one."""
    made = {}
    for name, each in found.items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        if ".q_proj." in name:
            parts = [found[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            each = torch.cat(parts)
            name = name.replace("self_attn.q_proj", "attention.query_key_value")
        if "_proj." not in name or ".mlp." in name:
            made[name] = each
    return made


@pytest.mark.parametrize("changes", [{}, {"n_group": 4, "topk_group": 2, "n_shared_experts": 2}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**(SIZES | changes)))
    check_transformers(
        model, tmp_path, change=lambda folder: renamed(folder, fields, tensors), whole=True
    )


@pytest.mark.parametrize("key", ["use_qk_norm", "moe_router_enable_expert_bias"])
def test_what_is_not_computed_is_refused(key: str, tmp_path: Path) -> None:
    transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**SIZES)).save_pretrained(tmp_path)
    renamed(tmp_path, fields)
    renamed(tmp_path, lambda values: values.update({key: False}))
    with pytest.raises(UnsupportedModel, match=key):
        open_weights(tmp_path)
