"""exaone-moe: windows, layers without them that are not rotated, and mixtures of experts (K-EXAONE).

The first layers have no experts.  Layers that predict further tokens are left out.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import rotating_windows
from aleator.models.architectures.deepseek_files import ROUTED, mixture_fields, routed
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.experts import after_dense

WINDOW, EVERY = 128, 4
DEFAULTS = {
    "num_experts": 64,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
"""Of config.json, as in transformers."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; its number of shared experts is not read, as in llama.cpp."""
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    window = gguf_config.read_windows(fields, config, size=WINDOW, every=EVERY, own_base=False)
    config = gguf_config.without_further(fields, config)
    layers = (False,) * config.n_layers
    if window is not None:
        layers = window.layers[: config.n_layers]
        window = replace(window, layers=layers)
    unrotated = tuple(not layer for layer in layers)
    config = replace(config, window=window, unrotated=unrotated)
    return after_dense(config, gguf, shared=1, own_width=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.transformer(fields, architecture, experts=True)
    config = rotating_windows.in_json(fields, config)
    n, given = config.n_layers, fields.over(DEFAULTS)
    named = {
        "n_routed_experts": given.require("num_experts", int),
        "n_shared_experts": given.require("num_shared_experts", int),
    }
    mixtures = routed(given.changed(**named), n)
    sparse = json_config.listed_kinds(fields, n, ("sparse",), ("dense",), key="mlp_layer_types")
    if sparse is not None:
        mixtures = replace(mixtures, layers=sparse)
    return replace(config, experts=mixtures)


EXAONE_MOE = Architecture(
    "exaone-moe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("exaone_moe",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | ROUTED,
        bare={"mlp.e_score_correction_bias": "exp_probs_b.bias"},
        expert=EXPERTS,
        mtp_prefix="mtp.",
        gguf_fields=mixture_fields,
    ),
    head_norm=True,
)
