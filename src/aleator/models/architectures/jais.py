"""jais: gpt2 with ALiBi, gates with SiLU, and scores divided by the size of a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.architectures import gpt_files
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse_others, unsupported
from aleator.models.files.fields import Value

ALIBI = 8.0
FIXED = {
    "activation_function": "swiglu",
    "position_embedding_type": "alibi",
    "scale_attn_weights": True,
}
"""Fields with a single value that is computed."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    alibi = gguf.fields.number("jais.attention.max_alibi_bias", 0.0, 1e3, 0.0)
    return replace(config, alibi=alibi, attention_scale=1.0 / config.head_dim)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; newer files name factors otherwise (mup_).

    Slopes that are smaller in texts beyond ``train_seq_len`` are left out, as in llama.cpp.
    """
    refuse_others(fields, FIXED)
    newer = {key.removeprefix("mup_"): value for key, value in fields.values.items()}
    own = Fields(fields.path, newer)
    if not own.get("scale_qk_dot_by_d", False):
        raise unsupported(fields.path, "scores that are not divided by the size of a head")
    scaling = Fields(fields.path, fields.get("alibi_scaling", kind=dict) or {})
    refuse_others(scaling, {"factor": 1.0})
    longest = fields.length("n_positions", 1024)
    sizes = fields.changed(
        activation_function="silu",
        n_positions=min(longest, scaling.length("train_seq_len", longest)),
    )
    config = gpt_files.read_json(sizes, architecture)
    return replace(
        config,
        alibi=ALIBI,
        attention_scale=1.0 / config.head_dim,
        embedding_scale=own.number("embeddings_scale", 1e-9, 1e6, 1.0),
        logit_scale=own.number("output_alpha", 1e-9, 1e6, 1.0)
        * own.number("width_scale", 1e-9, 1e6, 1.0),
    )


def usual_name(name: str) -> str:
    """A tensor's usual name; "" for the slopes of ALiBi, which are the paper's."""
    return "" if name.endswith("relative_pe.slopes") else gpt_files.usual_name(name)


def config_in_gguf(config: ModelConfig) -> ModelConfig:
    """The dimensions as GGUF says them, where matrices have the factors."""
    return replace(config, embedding_scale=1.0, logit_scale=1.0)


def gguf_fields(config: ModelConfig, _: Fields) -> Mapping[str, Value | None]:
    return {"attention.max_alibi_bias": config.alibi}


JAIS = Architecture(
    "jais",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("jais",),
        read_json,
        stack="transformer",
        layers="h",
        outer=outside("transformer.wte", "transformer.ln_f"),
        layer=gpt_files.LAYER | {"mlp.c_fc2": "ffn_gate"},
        turned=True,
        usual_name=usual_name,
        config_in_gguf=config_in_gguf,
        gguf_fields=gguf_fields,
    ),
    norm="layer",
)
