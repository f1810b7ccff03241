"""What gpt2 and starcoder share in Hugging Face's files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aleator.models.architecture import Architecture, outside
from aleator.models.config import Fields, ModelConfig, refuse
from aleator.models.json_config import transformer

OUTER = outside("transformer.wte", "transformer.ln_f") | {"transformer.wpe": "position_embd"}
LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def read_json(fields: Fields, architecture: Architecture, **sizes: Any) -> ModelConfig:
    """The dimensions in config.json; ``sizes`` are further ones, under their usual names."""
    if fields.get("activation_function", "gelu_new") == "gelu_new":  # another name of it
        fields = fields.changed(activation_function="gelu_pytorch_tanh")
    kinds = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    refuse(fields, "attention of another kind", *kinds)
    n_embd = fields.width("n_embd", 768)
    sized = fields.changed(
        num_hidden_layers=fields.layers("n_layer", 12),
        hidden_size=n_embd,
        num_attention_heads=fields.width("n_head", 12),
        intermediate_size=fields.width("n_inner", 4 * n_embd),
        max_position_embeddings=fields.length("n_positions", 1024),
        rms_norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        vocab_size=fields.length("vocab_size", 50257),
        **sizes,
    )
    scale = None if fields.get("scale_attn_weights", True) else 1.0
    config = transformer(sized, architecture, activation="activation_function", tied=True)
    return replace(config, attention_scale=scale)


def usual_name(name: str) -> str:
    """A tensor's name without "transformer.", which older files lack; "" for the masks that they contain."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return ""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
