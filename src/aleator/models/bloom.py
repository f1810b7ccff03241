"""bloom: layer norms, biases, normalised embeddings, attention that falls with the distance (ALiBi)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig, refuse
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.json_config import refuse_features, unrotated_transformer

ALIBI = 8.0
CONTEXT = 2048  # positions of the published models; config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return replace(gguf_config.transformer(gguf, architecture), alibi=ALIBI)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_features(fields)
    refuse(fields, "sums after norms", "apply_residual_connection_post_layernorm")
    layers_key = "n_layer" if "n_layer" in fields else "num_hidden_layers"
    heads_key = "n_head" if "n_head" in fields else "num_attention_heads"
    width_key = "hidden_size" if "hidden_size" in fields else "n_embed"
    n_layers = fields.layers(layers_key)
    n_embd = fields.width(width_key)
    heads = fields.width(heads_key)
    return unrotated_transformer(
        fields,
        architecture,
        (n_layers, n_embd, heads),
        4 * n_embd,
        ("seq_length", CONTEXT),
        n_vocab=fields.length("vocab_size"),
        alibi=ALIBI,
    )


def as_gguf(name: str, tensor: StoredTensor, n_heads: int) -> StoredTensor:
    """A tensor as GGUF files hold it: Hugging Face's have each head's query, key and value together."""
    if ".attn_qkv." not in name or tensor.shape[0] % (3 * n_heads):
        return tensor
    values = tensor.floats().reshape(n_heads, 3, -1, *tensor.shape[1:])
    return StoredTensor.of(np.swapaxes(values, 0, 1).reshape(tensor.shape))


def ours(name: str) -> str:
    """Older files have no "transformer." before names."""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


BLOOM = Architecture(
    "bloom",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("bloom",),
        read_json,
        stack="transformer",
        layers="h",
        outer={
            "transformer.word_embeddings": "token_embd",
            "transformer.word_embeddings_layernorm": "token_embd_norm",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
        },
        layer={
            "input_layernorm": "attn_norm",
            "self_attention.query_key_value": "attn_qkv",
            "self_attention.dense": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        ours=ours,
        convert_heads=as_gguf,
    ),
    norm="layer",
    gated=False,
    activation="gelu",
    embedding_norm=True,
)
