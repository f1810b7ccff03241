"""jina-bert-v2: bert with attention that falls with the distance (ALiBi), and a gate with GELU; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models.architecture import Architecture
from aleator.models.architectures import bert
from aleator.models.config import GGUFFile, ModelConfig

ALIBI = 8.0


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return replace(bert.read_gguf(gguf, architecture), alibi=ALIBI)


JINA_BERT_V2 = bert.ENCODER(
    "jina-bert-v2",
    rope_style="none",
    read_gguf=read_gguf,
    activation="gelu_exact",
    fused_gate=True,
    head_norm_kind="all",
)
