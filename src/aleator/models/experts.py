"""Reads mixtures of experts; fields of config.json that few architectures have are read in their modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aleator.core.errors import UnsupportedModel
from aleator.models.config import ExpertsConfig, ModelConfig, Scores, present
from aleator.models.files.fields import MAX_WIDTH, Fields
from aleator.models.files.gguf import GGUFFile

MAX_EXPERTS = 4096

SIGMOID = 2
SCORES: dict[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "chosen softmax"}
"""``expert_gating_func`` -> the function from the router's logits to weights."""


def in_gguf(
    config: ModelConfig,
    fields: Fields,
    layers: tuple[bool, ...] | None = None,
    *,
    n_ff: int | None = None,
    default_n_ff: int | None = None,
    n_ff_used: int = 0,
    shared: int | None = None,
    scaled: bool = False,
    **facts: Any,
) -> ModelConfig:
    """The dimensions with the mixtures that a GGUF file's metadata describe.

    The width of an expert is ``n_ff``, else the file's, else ``default_n_ff`` or a share of ``n_ff_used``, the
    width of a token's experts together.  A shared expert has the file's width, else ``shared``; None: there is
    none, whatever the file says.  ``scaled``: the factor of the weights (``expert_weights_scale``) counts;
    llama.cpp does not read it for most architectures.  ``layers`` (None: all have experts) and ``facts`` are
    fields of :class:`ExpertsConfig`.
    """
    name, n_layers = config.architecture, config.n_layers
    n_experts = fields.integer(f"{name}.expert_count", 1, MAX_EXPERTS)
    n_groups, n_groups_used = 1, 1
    if fields.get(f"{name}.expert_group_count", 0) > 1:
        key = f"{name}.expert_group_count"
        n_groups = fields.integer(key, 1, n_experts)
        if n_experts % n_groups or n_experts // n_groups < 2:
            raise fields.error(
                key, f"{n_experts} experts do not divide into {n_groups} groups of two or more"
            )
        n_groups_used = fields.integer(f"{name}.expert_group_used_count", 1, n_groups)
    most = n_experts // n_groups * n_groups_used
    wide = f"{name}.expert_shared_feed_forward_length"
    n_used = _of_every_layer(fields, f"{name}.expert_used_count", n_layers, 1, most)
    default = default_n_ff if n_ff is None else n_ff
    if default is None and n_ff_used >= n_used:
        default = n_ff_used // n_used
    factor = fields.number(f"{name}.expert_weights_scale", 0.0, 1e6, 0.0) if scaled else 1.0
    key = f"{name}.expert_feed_forward_length"
    if default is None:
        found = _of_every_layer(fields, key, n_layers, 1, MAX_WIDTH)
    else:
        found = _of_every_layer(fields, key, n_layers, 0, MAX_WIDTH, 0) or default
    mixtures = ExpertsConfig(
        n_experts=n_experts,
        n_used=n_used,
        n_ff=found if n_ff is None else n_ff,
        layers=layers or (True,) * n_layers,
        n_groups=n_groups,
        n_groups_used=n_groups_used,
        n_ff_shared=0 if shared is None else fields.width(wide, 0, low=0) or shared,
        scale=factor or 1.0,
        **facts,
    )
    return replace(config, experts=mixtures)


def with_router(gguf: GGUFFile, n_layers: int) -> tuple[bool, ...]:
    """Which layers of a GGUF file have experts, where only its tensors say it."""
    return tuple(f"blk.{layer}.ffn_gate_inp.weight" in gguf.tensors for layer in range(n_layers))


def has_choice_bias(gguf: GGUFFile, n_layers: int) -> bool:
    """Whether something is added to the scores for the choice; hy_v3's tensor has no ".bias" in its name."""
    names = [f"blk.{layer}.exp_probs_b" for layer in range(n_layers)]
    return any(name in gguf.tensors or f"{name}.bias" in gguf.tensors for name in names)


def after_dense(
    config: ModelConfig,
    gguf: GGUFFile,
    *,
    default: int | None = None,
    scores: Scores | None = None,
    normalised: bool | None = None,
    shared: int | None = None,
    own_width: bool = False,
) -> ModelConfig:
    """The dimensions with the mixtures of a GGUF file, whose first layers may be dense, and a shared expert.

    The shared expert is as wide as ``shared`` others (``expert_shared_count``); ``own_width``: the file may
    give it another width.  ``default`` is that of ``expert_gating_func``; ``scores``, ``normalised`` and
    ``shared`` are what the file says if they are None.
    """
    fields, name, n = gguf.fields, config.architecture, config.n_layers
    first = fields.layers(f"{name}.leading_dense_block_count", 0, low=0)
    if scores is None:
        key = f"{name}.expert_gating_func"
        found = fields.integer(key, 0 if default else 1, max(SCORES), default)
        scores = SCORES[found or default or 1]
    if normalised is None:
        normalised = fields.get(f"{name}.expert_weights_norm", False)
    config = in_gguf(
        config,
        fields,
        tuple(layer >= first for layer in range(n)),
        scores=scores,
        normalised=normalised,
        choice_bias=has_choice_bias(gguf, n),
        scaled=True,
    )
    if shared is None:
        shared = fields.integer(f"{name}.expert_shared_count", 1, MAX_EXPERTS)
    mixtures = present(config.experts)
    width = mixtures.n_ff
    if own_width:
        width = fields.width(f"{name}.expert_shared_feed_forward_length", width, low=0) or width
    return replace(config, experts=replace(mixtures, n_ff_shared=shared * width))


def _of_every_layer(
    fields: Fields, key: str, n_layers: int, low: int, high: int, default: int | None = None
) -> int:
    """Read an integer, or a list with the same integer for each layer."""
    listed = fields.values.get(key)
    if not isinstance(listed, list):
        return fields.integer(key, low, high, default)
    if len(listed) != n_layers:
        raise fields.error(key, f"{key} has {len(listed)} entries for {n_layers} layers")
    if any(value != listed[0] for value in listed):
        raise UnsupportedModel(
            f"{fields.path}: the model needs layers with different experts ({key}), which is not supported"
        )
    return Fields(fields.path, {key: listed[0]}).integer(key, low, high)


def in_json(
    config: ModelConfig,
    fields: Fields,
    defaults: tuple[int, int],
    used: str = "num_experts_per_tok",
    **facts: Any,
) -> ModelConfig:
    """The dimensions with the mixtures that a config.json describes.

    ``defaults`` are the numbers of experts of a layer and of a token if the file has none; ``used`` names the
    field of a token's.  ``facts`` are fields of :class:`ExpertsConfig`: without them all layers have experts,
    as wide as the layers' feed-forward part.
    """
    key = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    n_experts = fields.integer(key, 1, MAX_EXPERTS, defaults[0])
    n_used = fields.integer(used, 1, n_experts, defaults[1])
    usual: dict[str, Any] = {"n_ff": config.n_ff[0], "layers": (True,) * config.n_layers}
    return replace(config, experts=ExpertsConfig(n_experts, n_used, **(usual | facts)))


def sparse_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Which layers of a config.json have experts, by ``decoder_sparse_step`` and ``mlp_only_layers``."""
    step = fields.integer("decoder_sparse_step", 1, MAX_EXPERTS, 1)
    dense = fields.get("mlp_only_layers", kind=list) or []
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers))
