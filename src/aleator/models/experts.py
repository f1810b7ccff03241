"""Mixtures of experts: how a router's scores choose the feed-forward parts that a token goes through.

This module has the configuration and reads it from GGUF metadata.  Fields of config.json differ between
architectures and are read in their own modules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from aleator.core.errors import UnsupportedModel
from aleator.core.records import dataclass
from aleator.models.files.fields import MAX_WIDTH, Fields
from aleator.models.files.gguf import GGUFFile

MAX_EXPERTS = 4096

Scores = Literal["softmax", "sigmoid", "chosen softmax", "chosen sigmoid"]
"""The function from a router's logits to weights.  "chosen": experts are chosen by their logits, and the
function is applied only to the chosen ones."""


SCORES: dict[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "chosen softmax"}
"""``expert_gating_func`` -> the function from the router's logits to weights."""


@dataclass(frozen=True)
class ExpertsConfig:
    """The mixtures of experts of a model.

    A token goes through the ``n_used`` experts with the largest scores; the first of equal ones wins.  Their
    outputs are summed with their scores as weights (docs/numerics.md, part 2).
    """

    n_experts: int  # experts of a layer
    n_used: int  # experts that a token goes through
    n_ff: int  # width of an expert
    # Whether a layer's feed-forward part is a mixture, one entry per layer
    layers: tuple[bool, ...]
    scores: Scores = "softmax"  # function from the router's logits to weights
    normalised: bool = False  # the weights of a token's experts are divided by their sum
    scale: float = 1.0  # weights are multiplied by it
    # Groups of neighbouring experts; a token's experts are chosen from the ``n_groups_used`` groups whose
    # ``n_group_best`` best scores have the largest sums
    n_groups: int = 1
    n_groups_used: int = 1  # see ``n_groups``
    # 2, or 1 if groups are ranked by their best expert (DeepSeek-V2)
    n_group_best: int = 2
    choice_bias: bool = False  # a tensor is added to the scores only for the choice
    biases: bool = False  # router and experts have biases
    n_ff_shared: int = 0  # width of an expert that every token goes through; 0: there is none
    # That expert's weight is the sigmoid of a product; otherwise it is 1
    shared_router: bool = False
    weighs_input: bool = False  # weights multiply the experts' input, not their output
    # Experts stand beside a dense part; both and the router have norms of their own
    beside: bool = False


def in_gguf(
    fields: Fields,
    name: str,
    layers: tuple[bool, ...] | int,
    *,
    n_ff: int | None = None,
    default_n_ff: int | None = None,
    n_ff_used: int = 0,
    shared: int | None = None,
    scaled: bool = False,
    **facts: Any,
) -> ExpertsConfig:
    """The mixtures that a GGUF file's metadata describe; ``name`` is the prefix of the fields.

    The width of an expert is ``n_ff``, else the file's, else ``default_n_ff`` or a share of ``n_ff_used``, the
    width of a token's experts together.  A shared expert has the file's width, else ``shared``; None: there is
    none, whatever the file says.  ``scaled``: the factor of the weights (``expert_weights_scale``) counts;
    llama.cpp does not read it for most architectures.  ``layers``, or their number if all have experts, and
    ``facts`` are fields of :class:`ExpertsConfig`.
    """
    layers = (True,) * layers if isinstance(layers, int) else layers
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
    n_used = _of_every_layer(fields, f"{name}.expert_used_count", len(layers), 1, most)
    default = default_n_ff if n_ff is None else n_ff
    if default is None and n_ff_used >= n_used:
        default = n_ff_used // n_used
    factor = fields.number(f"{name}.expert_weights_scale", 0.0, 1e6, 0.0) if scaled else 1.0
    key = f"{name}.expert_feed_forward_length"
    if default is None:
        found = _of_every_layer(fields, key, len(layers), 1, MAX_WIDTH)
    else:
        found = _of_every_layer(fields, key, len(layers), 0, MAX_WIDTH, 0) or default
    return ExpertsConfig(
        n_experts=n_experts,
        n_used=n_used,
        n_ff=found if n_ff is None else n_ff,
        layers=layers,
        n_groups=n_groups,
        n_groups_used=n_groups_used,
        n_ff_shared=0 if shared is None else fields.width(wide, 0, low=0) or shared,
        scale=factor or 1.0,
        **facts,
    )


def after_dense(
    gguf: GGUFFile,
    name: str,
    n: int,
    *,
    default: int | None = None,
    scores: Scores | None = None,
    normalised: bool | None = None,
    shared: int | None = None,
) -> ExpertsConfig:
    """The mixtures of the ``n`` layers of a GGUF file, the first of which may be dense, with a shared expert.

    The shared expert is as wide as ``shared`` others (``expert_shared_count``).  ``default`` is that of
    ``expert_gating_func``; ``scores``, ``normalised`` and ``shared`` are what the file says if they are None.
    """
    fields = gguf.fields
    first = fields.layers(f"{name}.leading_dense_block_count", 0, low=0)
    if scores is None:
        key = f"{name}.expert_gating_func"
        found = fields.integer(key, 0 if default else 1, max(SCORES), default)
        scores = SCORES[found or default or 1]
    if normalised is None:
        normalised = fields.get(f"{name}.expert_weights_norm", False)
    mixtures = in_gguf(
        fields,
        name,
        tuple(layer >= first for layer in range(n)),
        scores=scores,
        normalised=normalised,
        choice_bias=any(f"blk.{layer}.exp_probs_b.bias" in gguf.tensors for layer in range(n)),
        scaled=True,
    )
    if shared is None:
        shared = fields.integer(f"{name}.expert_shared_count", 1, MAX_EXPERTS)
    return replace(mixtures, n_ff_shared=shared * mixtures.n_ff)


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
    fields: Fields,
    layers: tuple[bool, ...] | int,
    n_ff: int,
    defaults: tuple[int, int],
    used: str = "num_experts_per_tok",
    **facts: Any,
) -> ExpertsConfig:
    """The mixtures that a config.json describes, with experts ``n_ff`` wide.

    ``defaults`` are the numbers of experts of a layer and of a token if the file has none; ``used`` names the
    field of a token's.  ``layers``, or their number if all have experts, and ``facts`` are fields of
    :class:`ExpertsConfig`.
    """
    layers = (True,) * layers if isinstance(layers, int) else layers
    key = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    n_experts = fields.integer(key, 1, MAX_EXPERTS, defaults[0])
    n_used = fields.integer(used, 1, n_experts, defaults[1])
    return ExpertsConfig(n_experts, n_used, n_ff, layers, **facts)


def sparse_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Which layers of a config.json have experts, by ``decoder_sparse_step`` and ``mlp_only_layers``."""
    step = fields.integer("decoder_sparse_step", 1, MAX_EXPERTS, 1)
    dense = fields.get("mlp_only_layers", kind=list) or []
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers))
