"""internlm2 against llama.cpp's answers and those of Llama, which it is with other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.check_converted import converted
from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


NAMES = {
    "embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}  # fmt: skip


def tensors(found: dict[str, Any]) -> dict[str, Any]:
    """Llama's tensors by InternLM2's names; the query heads of a KV head, its key and its value together."""
    made, kv = {}, 2
    for name, each in found.items():
        if ".self_attn.q_proj." in name:
            parts = [found[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            heads = [part.reshape(kv, -1, *part.shape[1:]) for part in parts]
            made[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(
                heads, dim=1
            ).flatten(0, 1)
        for ours, theirs in NAMES.items():
            if ours in name:
                made[name.replace(ours, theirs)] = each
        if name == "model.norm.weight":
            made[name] = each
    return made


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({}, []),
        ({"attention_bias": True}, ["biases behind attention"]),
        ({"head_dim": 16}, ["heads of 16 channels, not hidden_size / num_attention_heads"]),
    ],
)
def test_transformers(changes: dict[str, Any], lacks: list[str], tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SMALL | changes)))
    check_transformers(
        model,
        tmp_path,
        change=lambda folder: renamed(
            folder, lambda fields: fields.update(model_type="internlm2"), tensors
        ),
        whole=True,
    )
    assert converted(tmp_path, tmp_path / "m.gguf").llama_cpp_lacks == lacks
