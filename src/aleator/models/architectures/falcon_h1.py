"""falcon-h1: attention and a state with one decay for each head side by side in every layer.

Both take the same input, and their outputs are added.  Hugging Face's files have factors besides the weights;
they are multiplied into the weights here, in float32, as conversion to GGUF does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aleator.models import gguf_config, json_config
from aleator.models.architecture import ATTENTION, GATED, Architecture, HuggingFace, outside, under
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor, refuse, unsupported
from aleator.models.state_space import BARE, MIXER, as_gguf, read_mamba_heads


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    scale = gguf.fields.number(f"{architecture.name}.attention.scale", 0.0, 1e6, 0.0)
    return replace(
        config,
        ssm=gguf_config.read_heads(gguf.fields, architecture.name),
        stateful=(True,) * config.n_layers,
        attention_scale=scale or None,
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.full_attention(fields, architecture)
    refuse(fields, "biases of the projections", "mamba_proj_bias", "projectors_bias")
    if fields.get("mamba_rms_norm", False) and fields.get("mamba_norm_before_gate", True):
        raise unsupported(fields.path, "a norm before the gate (mamba_norm_before_gate)")
    inner = fields.width("mamba_d_ssm", 1024)
    return replace(
        config,
        embedding_scale=fields.number("embedding_multiplier", 0.0, 1e6, 1.0),
        logit_scale=fields.number("lm_head_multiplier", 0.0, 1e6, 1.0),
        stateful=(True,) * config.n_layers,
        ssm=read_mamba_heads(fields, inner),
    )


def with_factors(
    name: str, tensor: StoredTensor, fields: Fields, config: ModelConfig
) -> StoredTensor:
    """Multiply a tensor by its factors in config.json."""

    def factor(key: str) -> float:
        return fields.number(key, -1e6, 1e6, 1.0)

    def factors(key: str, n: int) -> list[float]:
        listed = fields.get(key, kind=list) or [1.0] * n
        if len(listed) != n or not all(isinstance(each, int | float) for each in listed):
            raise fields.error(key, f"{key} must be {n} numbers")
        return [float(each) for each in listed]

    part = name.split(".")[2] if name.startswith("blk.") else ""
    ssm = config.ssm
    rows: Any = 1.0  # a number, or one for each row
    if part in ("attn_q", "attn_v"):
        rows = factor("attention_in_multiplier")
    elif part == "attn_k":
        rows = factor("attention_in_multiplier") * factor("key_multiplier")
    elif part == "attn_output":
        rows = factor("attention_out_multiplier")
    elif part == "ssm_out":
        rows = factor("ssm_out_multiplier")
    elif part in ("ffn_gate", "ffn_down"):
        rows = factors("mlp_multipliers", 2)[part == "ffn_down"]
    elif part == "ssm_in" and ssm is not None:
        shared = ssm.groups * ssm.d_state
        sizes = [ssm.d_inner, ssm.d_inner, shared, shared, ssm.heads]
        each = np.repeat(np.array(factors("ssm_multipliers", 5)), sizes)
        if tensor.shape[:1] != each.shape:
            return tensor  # refused for its shape
        each *= factor("ssm_in_multiplier")
        rows = each[:, None]
    made = np.asarray(rows, np.float32)
    return tensor if (made == 1).all() else StoredTensor.of(tensor.floats() * made)


def config_in_gguf(config: ModelConfig) -> ModelConfig:
    """The dimensions as GGUF says them: the embedding and the output matrix include their factors."""
    tied = config.tied and config.embedding_scale == config.logit_scale
    return replace(config, embedding_scale=1.0, logit_scale=1.0, tied=tied)


FALCON_H1 = Architecture(
    "falcon-h1",
    rope_style="neox",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("falcon_h1",),
        read_json,
        outer=outside(norm="model.final_layernorm"),
        layer=ATTENTION
        | {"pre_ff_layernorm": "ffn_norm"}
        | under("feed_forward", GATED)
        | under("mamba", MIXER),
        bare=under("mamba", BARE),
        convert=as_gguf,
        convert_fields=with_factors,
        config_in_gguf=config_in_gguf,
    ),
    recurrent="heads",
)
