"""nemotron_h: each layer is one part: a state with one decay for each head, attention, or feed-forward.

Nothing is rotated: the states hold the order.  Feed-forward parts have no gate; they use ReLU squared.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, under
from aleator.models.architectures import nemotron_files
from aleator.models.config import GGUFFile, ModelConfig
from aleator.models.state_space import BARE


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file.

    Layers with a feed-forward width are feed-forward parts; of the others, those without KV heads keep a state.
    """
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0)
    ssm = gguf_config.read_heads(gguf.fields, architecture.name)
    return nemotron_files.of_parts(replace(config, ssm=ssm), nemotron_files.parts_in_gguf(config))


NEMOTRON_H = nemotron_files.IN_PARTS(
    "nemotron_h",
    read_gguf=read_gguf,
    hugging_face=nemotron_files.FILES(
        read=nemotron_files.read_json,
        takes=lambda fields: not nemotron_files.has_experts(fields),
        layer=nemotron_files.LAYER,
        bare=under("mixer", BARE),
        gguf_fields=nemotron_files.gguf_fields,
    ),
)
