"""mamba2: a state space whose heads have one decay each in every layer (Dao and Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, under
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.state_space import (
    BARE,
    MIXER,
    OUTER,
    as_gguf,
    checked_inner,
    read_heads,
    states_alone,
)


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    ssm = gguf_config.read_heads(gguf.fields, architecture.name)
    return gguf_config.states_alone(gguf, architecture, ssm)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    n_embd = fields.width("hidden_size")
    inner = int(fields.number("expand", 0.0, 1e3, 2.0) * n_embd)
    ssm = read_heads(
        fields,
        checked_inner(fields, inner),
        heads="num_heads",
        head_dim="head_dim",
        state="state_size",
        groups="n_groups",
        conv="conv_kernel",
    )
    return states_alone(fields, architecture, ssm, tied=False)


MAMBA2 = Architecture(
    "mamba2",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mamba2",),
        read_json,
        stack="backbone",
        outer=OUTER,
        layer={"norm": "attn_norm"} | under("mixer", MIXER),
        bare=under("mixer", BARE),
        convert=as_gguf,
    ),
    recurrent="heads",
)
