"""deci: llama whose layers have different heads and widths, or no attention (Nemotron Super 49B)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import (
    Fields,
    GGUFFile,
    ModelConfig,
    check_groups,
    refuse,
    refuse_others,
    unsupported,
)
from aleator.models.files.fields import MAX_WIDTH
from aleator.models.json_config import full_attention

STEP = 256
"""Widths of feed-forward parts are rounded up to multiples of it."""
BLOCKS, KV_HEADS = "block_configs", "num_key_value_heads_per_layer"


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads are feed-forward parts alone."""
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0)
    linear = [
        heads > kv for heads, kv in zip(config.n_heads, config.n_kv_heads, strict=True) if not kv
    ]
    if any(linear):
        raise unsupported(gguf.path, "layers with a product instead of attention (Nemotron 51B)")
    return config


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json: each layer's ``block_configs``, or KV heads alone (DeciLM)."""
    key = BLOCKS if fields.get(BLOCKS) is not None else KV_HEADS
    listed = fields.get(key, kind=list)
    if listed is None:
        return full_attention(fields, architecture)
    if key == BLOCKS:  # each says what the whole does not
        heads = fields.width("num_attention_heads")
        fields = fields.changed(num_key_value_heads=heads, intermediate_size=STEP)
    config = full_attention(fields, architecture)
    each = [Fields(fields.path, {key: value}) for value in listed]
    if len(each) != config.n_layers:
        raise fields.error(key, f"{key} must have an entry for each of {config.n_layers} layers")
    if key == KV_HEADS:
        kv_heads = tuple(of.integer(key, 1, MAX_WIDTH) for of in each)
        check_groups(fields, key, config.n_heads, kv_heads)
        return replace(config, n_kv_heads=kv_heads)
    found = [_layer(Fields(fields.path, of.require(key, dict)), config) for of in each]
    n_heads, kv_heads, widths = zip(*found, strict=True)
    return replace(config, n_heads=n_heads, n_kv_heads=kv_heads, n_ff=widths)


def _layer(block: Fields, config: ModelConfig) -> tuple[int, int, int]:
    """A layer's heads, KV heads and width."""
    attention, ffn = (
        Fields(block.path, block.require(part, dict)) for part in ("attention", "ffn")
    )
    refuse(attention, "a product instead of attention (Nemotron 51B)", "replace_with_linear")
    refuse_others(attention, {"window_length": None, "num_sink_tokens": None, "sparsify": None})
    refuse(
        ffn, "layers without a feed-forward part of two products", "replace_with_linear", "no_op"
    )
    width = int(2 * ffn.number("ffn_mult", 1e-6, 1e6) * config.n_embd / 3)
    width = ffn.changed(ffn_mult=-(-width // STEP) * STEP).width("ffn_mult")
    if attention.get("no_op", False):
        return 0, 0, width
    heads, key = config.n_heads[0], "n_heads_in_group"
    group = attention.integer(key, 1, heads)
    if heads % group:
        raise attention.error(key, f"{heads} heads do not divide into groups of {group}")
    return heads, heads // group, width


DECI = Architecture(
    "deci",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("deci", "nemotron-nas"), read_json),
)
