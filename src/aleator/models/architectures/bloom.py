"""bloom: layer norms, biases, normalised embeddings, attention that falls with the distance (ALiBi)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.architectures.gpt_files import usual_name
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse
from aleator.models.conversions import heads_apart
from aleator.models.json_config import transformer

ALIBI = 8.0
CONTEXT = 2048  # positions of the published models; config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return replace(gguf_config.transformer(gguf, architecture), alibi=ALIBI)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "sums after norms", "apply_residual_connection_post_layernorm")
    n_embd = fields.width("hidden_size" if "hidden_size" in fields else "n_embed")
    sizes = fields.changed(
        num_hidden_layers=fields.layers("n_layer" if "n_layer" in fields else "num_hidden_layers"),
        hidden_size=n_embd,
        num_attention_heads=fields.width("n_head" if "n_head" in fields else "num_attention_heads"),
        intermediate_size=4 * n_embd,
        max_position_embeddings=fields.length("seq_length", CONTEXT),
        rms_norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
    )
    return replace(transformer(sizes, architecture, tied=True), alibi=ALIBI)


BLOOM = Architecture(
    "bloom",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("bloom",),
        read_json,
        stack="transformer",
        layers="h",
        outer=outside("transformer.word_embeddings", "transformer.ln_f")
        | {"transformer.word_embeddings_layernorm": "token_embd_norm"},
        layer={
            "input_layernorm": "attn_norm",
            "self_attention.query_key_value": "attn_qkv",
            "self_attention.dense": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        usual_name=usual_name,
        move_rows=heads_apart,
    ),
    norm="layer",
    gated=False,
    activation="gelu",
    embedding_norm=True,
)
