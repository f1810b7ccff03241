"""gemma2: gemma's norms before and after each part, GeGLU, caps on attention's scores and on logits.

Every second layer sees a window of the latest positions.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import NORMS_AROUND, TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse
from aleator.models.conversions import whole_norms
from aleator.models.json_config import full_attention

# Defaults of transformers' Gemma2Config.
DEFAULTS = {
    "vocab_size": 256000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
}
HEAD_DIM, WINDOW, EVERY = 256, 4096, 2
ATTENTION_CAP, LOGIT_CAP = 50.0, 30.0
LAYERS_OF_27B = 46


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; as in llama.cpp, the number of layers marks the 27B model."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    whole = config.n_layers == LAYERS_OF_27B
    width = config.n_embd // config.n_heads[0] if whole else config.head_dim
    return replace(
        config,
        window=gguf_config.read_windows(fields, config, size=WINDOW, every=EVERY),
        attention_scale=1.0 / math.sqrt(width),
        attention_softcap=fields.number("gemma2.attn_logit_softcapping", 0.0, 1e6, ATTENTION_CAP),
        logit_softcap=fields.number("gemma2.final_logit_softcapping", 0.0, 1e6, LOGIT_CAP),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; a cap of null means no cap."""
    caps = [
        fields.number(key, 0.0, 1e6, 0.0 if key in fields else default)
        for key, default in (
            ("attn_logit_softcapping", ATTENTION_CAP),
            ("final_logit_softcapping", LOGIT_CAP),
        )
    ]
    fields = fields.over(DEFAULTS)
    refuse(fields, "attention to later tokens", "use_bidirectional_attention")
    config = full_attention(
        fields,
        architecture,
        activation="hidden_activation",
        windows=EVERY,
        window=WINDOW,
        head_dim=HEAD_DIM,
        tied=True,
    )
    scalar = fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0)
    return replace(
        config,
        attention_scale=1.0 / math.sqrt(scalar),
        attention_softcap=caps[0],
        logit_softcap=caps[1],
    )


GEMMA2 = Architecture(
    "gemma2",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("gemma2",),
        read_json,
        layer=TRANSFORMER | NORMS_AROUND,
        convert=whole_norms,
        gguf_fields=lambda config, _: {
            "attn_logit_softcapping": config.attention_softcap,
            "final_logit_softcapping": config.logit_softcap,
        },
    ),
    post_norm=True,
    activation="gelu",
    scaled_embedding=True,
)
