"""deepseek: llama with mixtures of experts after the first layers, and a shared expert (DeepSeekMoE)."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.deepseek_files import ROUTED, mixture_fields, read_json
from aleator.models.config import GGUFFile, ModelConfig
from aleator.models.experts import after_dense


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    return after_dense(config, gguf, scores="softmax", normalised=False)


DEEPSEEK = Architecture(
    "deepseek",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("deepseek",),
        read_json,
        layer=TRANSFORMER | ROUTED,
        expert=EXPERTS,
        gguf_fields=mixture_fields,
    ),
)
