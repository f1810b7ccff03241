"""granitemoe: granite with mixtures of experts, and in some models a shared expert.

An expert's weight is the softmax of the chosen experts' logits.  Hugging Face's files hold gate and up of all
experts in one tensor.
"""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import WITHOUT_MLP, Architecture, HuggingFace
from aleator.models.architectures import granite_factors
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.experts import in_gguf, in_json
from aleator.models.json_config import full_attention


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; normalised weights are the softmax of the chosen experts' logits."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = in_gguf(config, gguf.fields, n_ff=config.n_ff[0], normalised=True, shared=0)
    return granite_factors.in_gguf(config, gguf.fields)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = full_attention(fields, architecture, experts=True)
    shared = fields.width("shared_intermediate_size", 0, low=0)
    config = in_json(config, fields, (8, 2), scores="chosen softmax", n_ff_shared=shared)
    return granite_factors.in_json(config, fields)


GRANITEMOE = Architecture(
    "granitemoe",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("granitemoe", "granitemoeshared"),
        read_json,
        layer=WITHOUT_MLP | granite_factors.MIXTURE,
        config_in_gguf=granite_factors.config_in_gguf,
        gguf_fields=granite_factors.gguf_fields,
    ),
)
