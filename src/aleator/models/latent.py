"""Reads the fields of compressed keys and values, and names their tensors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aleator.models.config import MAX_HEAD_DIM, LatentConfig, ModelConfig, present
from aleator.models.files.fields import Fields
from aleator.models.json_config import rope_fields, transformer

if TYPE_CHECKING:
    from aleator.models.architecture import Architecture

LAYER = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
"""Hugging Face's names of a layer's tensors -> GGUF's."""


def in_gguf(config: ModelConfig, fields: Fields) -> ModelConfig:
    """The dimensions with those of the compressed keys in a GGUF file.

    As in llama.cpp, the cache holds the compressed keys if the file has a head size besides the cache's
    (``attention.key_length_mla``), else every head's keys and values.
    """
    at, rotated = f"{config.architecture}.attention", config.rope.dim
    rank = fields.width(f"{at}.kv_lora_rank")
    q_rank = fields.width(f"{at}.q_lora_rank", 0, low=0)
    compressed = fields.get(f"{at}.key_length_mla", 0) > 0
    head_dim, head_dim_v = config.head_dim, config.head_dim_v
    if compressed:
        head_dim = fields.integer(f"{at}.key_length_mla", 1, MAX_HEAD_DIM)
        head_dim_v = fields.integer(f"{at}.value_length_mla", 1, MAX_HEAD_DIM)
        if (config.head_dim, config.head_dim_v) != (rank + rotated, rank):
            raise fields.error(
                f"{at}.key_length",
                f"the cache's keys and values have {config.head_dim} and {config.head_dim_v} channels; with "
                f"compressed keys they have {rank + rotated} and {rank}",
            )
    heads = (1,) * config.n_layers if compressed else config.n_heads
    if config.n_kv_heads != heads:
        raise fields.error(
            f"{at}.head_count_kv",
            f"{at}.head_count_kv is {config.n_kv_heads[0]}; it must be {heads[0]}",
        )
    if head_dim <= rotated:
        raise fields.error(
            f"{config.architecture}.rope.dimension_count",
            f"{rotated} rotated channels of {head_dim} leave none that are not",
        )
    return _with(config, LatentConfig(q_rank, rank, head_dim, head_dim_v, compressed))


def in_json(fields: Fields, architecture: Architecture, **options: Any) -> ModelConfig:
    """The dimensions in a config.json; the cache holds the compressed keys.

    ``options``: see :func:`~aleator.models.json_config.transformer`.
    """
    rotated = fields.integer("qk_rope_head_dim", 2, MAX_HEAD_DIM)
    plain = fields.integer("qk_nope_head_dim", 1, MAX_HEAD_DIM)
    rank = fields.width("kv_lora_rank")
    q_rank = 0 if fields.get("q_lora_rank") is None else fields.width("q_lora_rank")
    values = {key: value for key, value in fields.values.items() if key != "num_key_value_heads"}
    values["head_dim"] = rotated
    config = transformer(Fields(fields.path, values), architecture, **options)
    head_dim_v = config.n_embd // config.n_heads[0]
    if fields.get("v_head_dim") is not None:
        head_dim_v = fields.integer("v_head_dim", 1, MAX_HEAD_DIM)
    config = replace(
        config,
        n_kv_heads=(1,) * config.n_layers,
        head_dim=rank + rotated,
        head_dim_v=rank,
    )
    made = _with(config, LatentConfig(q_rank, rank, plain + rotated, head_dim_v, True))
    return replace(made, attention_scale=_yarn_scale(fields, made))


def uncompressed(config: ModelConfig) -> ModelConfig:
    """The dimensions of a model whose cache has the keys and values of every head."""
    latent = replace(present(config.latent), compressed=False)
    return _with(
        replace(
            config,
            n_kv_heads=config.n_heads,
            head_dim=latent.head_dim,
            head_dim_v=latent.head_dim_v,
        ),
        latent,
    )


def _yarn_scale(fields: Fields, config: ModelConfig) -> float | None:
    """The factor of the scores; YaRN's ``mscale_all_dim`` increases it, as in transformers."""
    rope = rope_fields(fields)
    share = rope.number("mscale_all_dim", 0.0, 1e6, 0.0)
    if config.rope.scaling == "none" or not share:
        return config.attention_scale
    grown = 1.0 + 0.1 * share * math.log(rope.number("factor", 1.0, 1e6))
    return (config.attention_scale or 1.0) * grown * grown


def _with(config: ModelConfig, latent: LatentConfig) -> ModelConfig:
    return replace(
        config,
        latent=latent,
        attention_scale=1.0 / math.sqrt(latent.head_dim),
        rope=replace(config.rope, offset=config.head_dim - config.rope.dim),
    )
