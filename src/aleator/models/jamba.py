"""jamba: selective state spaces, every few layers attention instead, each followed by a feed-forward layer.

Attention has no rotary embedding: the states know the order (Lieber et al. 2024, arXiv:2403.19887).  Time step,
B and C are normalised with weights.  Mixtures of experts are refused.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.files.gguf import GGUFFile
from aleator.models.gguf_config import read_state_space, transformer


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads keep a state."""
    config = transformer(gguf, architecture, least_kv_heads=0)
    return replace(config, ssm=read_state_space(gguf.fields, architecture.name))


JAMBA = Architecture(
    "jamba", rope_style="none", read_gguf=read_gguf, recurrent="state space", state_norm=True
)
