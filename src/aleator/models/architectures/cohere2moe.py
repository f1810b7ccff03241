"""cohere2moe: cohere2 with mixtures of experts after the first layers, and RMS norms in some models.

The first layers rotate without a window.  What a shared expert gives is averaged with the others' sum: the
weights of both are halved.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.deepseek_files import ROUTED, mixture_fields
from aleator.models.architectures.rotating_windows import EVERY, WINDOW
from aleator.models.config import (
    Fields,
    GGUFFile,
    ModelConfig,
    Scores,
    present,
    refuse_others,
    unsupported,
)
from aleator.models.experts import MAX_EXPERTS, SIGMOID, after_dense, in_json
from aleator.models.files.fields import Value

SCORES: dict[str, Scores] = {"softmax": "chosen softmax", "sigmoid": "sigmoid"}
"""``expert_selection_fn`` -> the function from the router's logits to weights."""


def averaged(config: ModelConfig) -> ModelConfig:
    """The dimensions with halved weights if there is a shared expert; the first layers and windows rotate."""
    experts, window = present(config.experts), config.window
    if experts.n_ff_shared:
        experts = replace(experts, scale=experts.scale / 2, shared_halved=True)
    windows = window.layers if window is not None else (False,) * config.n_layers
    kinds = zip(windows, experts.layers, strict=True)
    unrotated = tuple(not windowed and sparse for windowed, sparse in kinds)
    return replace(config, experts=experts, unrotated=unrotated)


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; a scale of 0 means no scale, as in llama.cpp."""
    fields = gguf.fields
    if fields.get("cohere2moe.attention.layer_norm_rms_epsilon", 0.0) > 0.0:
        architecture = replace(architecture, norm="rms")
    config = gguf_config.transformer(gguf, architecture, experts=True)
    fields.require("cohere2moe.attention.sliding_window_pattern", list)
    size = fields.length("cohere2moe.attention.sliding_window")
    window = gguf_config.read_windows(fields, config, size=size, own_base=False)
    config = gguf_config.without_further(fields, config)
    if window is not None:
        window = replace(window, layers=window.layers[: config.n_layers])
    scale = fields.number("cohere2moe.logit_scale", 0.0, 1e6)
    config = replace(config, norm=architecture.norm, logit_scale=scale or 1.0, window=window)
    n_shared = fields.integer("cohere2moe.expert_shared_count", 0, MAX_EXPERTS, 0)
    config = after_dense(config, gguf, default=SIGMOID, shared=n_shared)
    experts = present(config.experts)
    if n_shared:
        wide = "cohere2moe.expert_shared_feed_forward_length"
        width = fields.width(wide, 0, low=0) or experts.n_ff_shared
        config = replace(config, experts=replace(experts, n_ff_shared=width))
    return averaged(config)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_others(fields, {"shared_expert_combination_strategy": "average"})
    rms = fields.get("rms_norm_eps") is not None
    eps = "rms_norm_eps" if rms else "layer_norm_eps"
    config = json_config.transformer(
        fields, architecture, eps=eps, experts=True, head_dim=128, tied=True
    )
    n, first = config.n_layers, fields.layers("first_k_dense_replace", 0, low=0)
    sparse = json_config.listed_kinds(fields, n, ("sparse",), ("dense",), key="mlp_layer_types")
    sparse = sparse or tuple(layer >= first for layer in range(n))
    pattern = fields.layers("prefix_dense_sliding_window_pattern", 1)
    if pattern != 1 and not all(sparse):
        raise unsupported(fields.path, f"prefix_dense_sliding_window_pattern = {pattern}")
    every = fields.layers("sliding_window_pattern", EVERY)
    layers = [layer >= first and (layer - first + 1) % every != 0 for layer in range(n)]
    window = json_config.read_windows(fields, config, layers, size=WINDOW)
    width = config.n_ff[0]
    config = replace(
        config,
        norm="rms" if rms else "layer",
        n_ff=(fields.width("prefix_dense_intermediate_size", width),) * n,
        logit_scale=fields.number("logit_scale", -1e6, 1e6, 0.0625),
        window=window,
    )
    chosen = fields.get("expert_selection_fn", "softmax")
    if chosen not in SCORES:
        raise unsupported(fields.path, f"expert_selection_fn = {chosen!r:.40}")
    mixed = in_json(
        config,
        fields,
        (8, 2),
        layers=sparse,
        n_ff=width,
        n_ff_shared=width * fields.integer("num_shared_experts", 0, MAX_EXPERTS, 0),
        scores=SCORES[chosen],
        normalised=chosen == "sigmoid" and fields.get("norm_topk_prob", True),
    )
    return averaged(mixed)


def gguf_fields(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    """The fields that :func:`read_gguf` reads besides the usual; the shared experts are one wide expert."""
    experts = present(config.experts)
    shared = experts.n_ff_shared > 0
    return mixture_fields(config, fields) | {
        "logit_scale": config.logit_scale,
        "expert_shared_count": int(shared),
        "expert_weights_scale": experts.scale * (2 if shared else 1),
    }


COHERE2MOE = Architecture(
    "cohere2moe",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("cohere2_moe",),
        read_json,
        layer=TRANSFORMER | ROUTED,
        expert=EXPERTS,
        rope_style="norm",
        gguf_fields=gguf_fields,
    ),
    norm="layer",
    ffn_norm="",
    parallel=True,
)
