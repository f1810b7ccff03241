"""neo-bert: an encoder with norms before each part, a rotary embedding and SwiGLU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures.bert import ENCODER, usual_name
from aleator.models.config import Fields, ModelConfig, refuse_others
from aleator.models.conversions import heads_apart
from aleator.models.json_config import transformer

THETA = 10000.0


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; feed-forward has two thirds of its width, in multiples of 8."""
    refuse_others(
        fields,
        {
            "hidden_act": "SwiGLU",
            "rms_norm": True,
            "rope": True,
            "ngpt": False,
            "rope_theta": THETA,
        },
    )
    sizes = fields.changed(
        hidden_act=None,
        intermediate_size=-(fields.width("intermediate_size", 3072) * 2 // 3 // -8) * 8,
        max_position_embeddings=fields.length("max_length", 1024),
        norm_eps=fields.number("norm_eps", 0.0, 1.0, 1e-6),
    )
    return replace(transformer(sizes, architecture, tied=True, eps="norm_eps"), tied=True)


NEO_BERT = ENCODER(
    "neo-bert",
    rope_style="norm",
    hugging_face=HuggingFace(
        ("neobert",),
        read_json,
        stack="",
        layers="transformer_encoder",
        outer={
            "encoder": "token_embd",
            "layer_norm": "enc.output_norm",
            "dense": "cls",
            "classifier": "cls.output",
        },
        layer={
            "attention_norm": "attn_norm",
            "qkv": "attn_qkv",
            "wo": "attn_output",
            "ffn_norm": "ffn_norm",
            "ffn.w12": "ffn_up",
            "ffn.w3": "ffn_down",
        },
        usual_name=partial(usual_name, prefixes=("model.",)),
        move_rows=heads_apart,
        rope_style="norm",
    ),
    norm="rms",
    pre_norm=True,
    sum_norm=False,
    embedding_norm=False,
    output_norm="enc.output_norm",
    fused_gate=True,
)
