"""llama: the plain pre-norm transformer (GGUF files use this name for Mistral and others too).

Biases of the projections are used if a file has them.  Mixtral (Jiang et al. 2024, arXiv:2401.04088) is
this architecture with mixtures of experts in every layer; the weights of a token's experts sum to 1.
"""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import (
    MIXTRAL_EXPERT,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    under,
)
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.experts import in_gguf, in_json
from aleator.models.json_config import WINDOW, full_attention

# Fields that transformers ignores in a config.json of these model types.
NOT_READ = ("layer_types", "use_sliding_window", "max_window_layers")


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; experts are as wide as the file's feed-forward part, as in llama.cpp."""
    fields = gguf.fields
    mixed = bool(fields.get(f"{architecture.name}.expert_count", 0))
    config = gguf_config.transformer(gguf, architecture, experts=mixed)
    if not mixed:
        return config
    return in_gguf(config, fields, n_ff=config.n_ff[0], normalised=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; Mistral's and Mixtral's windows have no switch, llama has no windows."""
    kind = fields.get("model_type", "llama")
    values = {key: value for key, value in fields.values.items() if key not in NOT_READ}
    if kind == "mistral":
        values.setdefault("sliding_window", WINDOW)
    fields = Fields(fields.path, values)
    mixed = kind == "mixtral"
    config = full_attention(fields, architecture, windows=kind != "llama", experts=mixed)
    if not mixed:
        return config
    return in_json(config, fields, (8, 2), normalised=True)


LLAMA = Architecture(
    "llama",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("llama", "mistral", "mixtral"),
        read_json,
        layer=TRANSFORMER | {"block_sparse_moe.gate": "ffn_gate_inp"},
        expert=under("block_sparse_moe.experts.{}", MIXTRAL_EXPERT),
    ),
)
