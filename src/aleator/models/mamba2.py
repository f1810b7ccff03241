"""mamba2: a state space whose heads have one decay each in every layer (Dao and Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import MAX_LENGTH, MAX_WIDTH, ModelConfig, unsupported, without_attention
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.state_space import BARE, CONTEXT_LENGTH, MIXER, as_gguf, read_heads


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file."""
    fields, name = gguf.fields, architecture.name
    gguf_config.refuse_features(fields, name)
    n_layers, n_embd = gguf_config.read_size(fields, name)
    return without_attention(
        name,
        name=fields.get("general.name", ""),
        n_vocab=gguf_config.read_n_vocab(gguf, name),
        n_layers=n_layers,
        n_embd=n_embd,
        rms_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        context_length=fields.integer(f"{name}.context_length", 1, MAX_LENGTH),
        tied="output.weight" not in gguf.tensors,
        ssm=gguf_config.read_heads(fields, name),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json."""
    json_config.refuse_features(fields)
    n_layers, n_embd = json_config.read_size(fields)
    if fields.get("use_bias", False):
        raise unsupported(fields.path, "biases of the projections (use_bias)")
    inner = int(fields.number("expand", 0.0, 1e3, 2.0) * n_embd)
    if not 1 <= inner <= MAX_WIDTH:
        raise fields.error("expand", f"{inner} inner channels; they must be 1 to {MAX_WIDTH}")
    return without_attention(
        architecture.name,
        name=fields.get("_name_or_path", ""),
        n_vocab=fields.integer("vocab_size", 1, MAX_LENGTH),
        n_layers=n_layers,
        n_embd=n_embd,
        rms_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        context_length=fields.integer("max_position_embeddings", 1, MAX_LENGTH, CONTEXT_LENGTH),
        tied=fields.get("tie_word_embeddings", False),
        ssm=read_heads(
            fields,
            inner,
            heads="num_heads",
            head_dim="head_dim",
            state="state_size",
            groups="n_groups",
            conv="conv_kernel",
        ),
    )


MAMBA2 = Architecture(
    "mamba2",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mamba2",),
        read_json,
        stack="backbone",
        outer={
            "backbone.embeddings": "token_embd",
            "backbone.norm_f": "output_norm",
            "lm_head": "output",
        },
        layer={"norm": "attn_norm"} | {f"mixer.{name}": gguf for name, gguf in MIXER.items()},
        bare={f"mixer.{name}": gguf for name, gguf in BARE.items()},
        convert=as_gguf,
    ),
    recurrent="heads",
)
