"""mpt: layer norms, attention that falls with the distance (ALiBi), feed-forward without a gate.

Its GELU is the exact one; llama.cpp uses its table of the approximation instead.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.json_config import transformer

ALIBI = 8.0


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    for name in gguf.tensors:
        if name.startswith("position_embd.") or ".ffn_act." in name:
            raise unsupported(gguf.path, f"the tensor {name}")
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    return replace(
        config,
        alibi=fields.number("mpt.attention.max_alibi_bias", 0.0, 1e3, 0.0),
        qkv_clamp=fields.number("mpt.attention.clamp_kqv", 0.0, 1e6, 0.0),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; transformers supports only the paper's ALiBi, and no norms of heads."""
    own = Fields(fields.path, fields.get("attn_config", kind=dict) or {})
    if not own.get("alibi", True):
        raise unsupported(fields.path, "vectors of positions (attn_config.alibi)")
    for key in ("qk_ln", "prefix_lm"):
        if own.get(key, False):
            raise unsupported(fields.path, f"attention of another kind (attn_config.{key})")
    n_embd = fields.width("d_model", 2048)
    sizes = fields.changed(
        num_hidden_layers=fields.layers("n_layers", 24),
        hidden_size=n_embd,
        num_attention_heads=fields.width("n_heads", 16),
        intermediate_size=4 * n_embd,
        max_position_embeddings=fields.length("max_seq_len", 2048),
        rms_norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        vocab_size=fields.length("vocab_size", 50368),
    )
    scale = own.get("softmax_scale", kind=float)
    clip = own.get("clip_qkv", kind=float)
    return replace(
        transformer(sizes, architecture, tied=True),
        attention_scale=None if scale is None else own.number("softmax_scale", 1e-9, 1e6),
        alibi=ALIBI,
        qkv_clamp=0.0 if clip is None else own.number("clip_qkv", 0.0, 1e6),
    )


MPT = Architecture(
    "mpt",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mpt",),
        read_json,
        stack="transformer",
        layers="blocks",
        outer=outside("transformer.wte", "transformer.norm_f"),
        layer={
            "norm_1": "attn_norm",
            "attn.Wqkv": "attn_qkv",
            "attn.out_proj": "attn_output",
            "norm_2": "ffn_norm",
            "ffn.up_proj": "ffn_up",
            "ffn.down_proj": "ffn_down",
        },
        gguf_fields=lambda config, _: {
            "attention.max_alibi_bias": config.alibi,
            "attention.clamp_kqv": config.qkv_clamp or None,
        },
    ),
    norm="layer",
    gated=False,
    activation="gelu_exact",
    head_norm_kind="all",
)
