"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from aleator.models.config import ExpertsConfig
from decoder_numerics.blocks import Floats, fused
from decoder_numerics.floats import ONE, dot16, exponential, sigmoid, total16

LEAST_SUM = np.float32(2.0**-14)
Part = Callable[[Floats], Floats]
"""An expert: [T, n_embd] -> [T, n_embd]."""


def softmax(x: Floats) -> Floats:
    """e^(x - the largest) over their sum, for [n]; the sum goes over 16 lanes and the tree."""
    e = exponential(x - x.max())
    y: Floats = e * (ONE / total16(e))
    return y


def silu_clamped(gate: Floats, up: Floats) -> Floats:
    """gpt-oss's gate: x / (1 + e^(-1.702 x)) * (up + 1), x at most 7, up within -7 and 7."""
    x, y = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
    made: Floats = x / (ONE + exponential(np.float32(-1.702) * x)) * (y + ONE)
    return made


def route(
    logits: Floats,
    config: ExpertsConfig,
    choice_bias: Floats | None = None,
    scales: Floats | None = None,
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Which experts one token goes through, and with what weights.

    Args:
        logits: of the router, [experts].
        config: how experts are chosen.
        choice_bias: [experts], added to the scores for the choice alone.
        scales: [experts] that weights are multiplied by.

    Returns:
        Experts [n_used], best first, of equal ones the first, NaN as -inf; and their weights.
    """
    scores = {"softmax": softmax, "sigmoid": sigmoid}.get(config.scores, np.asarray)(logits)
    keys = scores if choice_bias is None else scores + choice_bias
    keys = np.where(np.isnan(keys), np.float32(-np.inf), keys)
    if config.n_groups > 1:
        groups = keys.reshape(config.n_groups, -1)
        best = -np.sort(-groups, 1)
        numbers = best[:, 0] if config.n_group_best == 1 else best[:, 0] + best[:, 1]
        kept = _first_best(numbers, config.n_groups_used)
        outside = np.setdiff1d(np.arange(config.n_groups), kept)
        groups[outside] = np.nan
        keys = groups.reshape(-1)
    chosen = _first_best(keys, config.n_used)
    weights = scores[chosen]
    if config.scores == "chosen softmax":
        weights = softmax(weights)
    elif config.scores == "chosen sigmoid":
        weights = sigmoid(weights)
    if config.normalised:
        weights = weights / np.maximum(np.float32(total16(weights)), LEAST_SUM)
    weights = weights * np.float32(config.scale)
    return chosen, weights if scales is None else weights * scales[chosen]


def mixture(
    x: Floats,
    chosen: npt.NDArray[np.int64],
    weights: Floats,
    experts: list[Part],
    config: ExpertsConfig,
    shared: Part | None = None,
    shared_router: Floats | None = None,
) -> Floats:
    """What a mixture gives for one token [n_embd]: its experts, best first, added by fused multiply-adds.

    Args:
        x: the token, normalised.
        chosen: see :func:`route`.
        weights: see :func:`route`.
        experts: all of them.
        config: how experts are weighed.
        shared: an expert that every token goes through, added last.
        shared_router: [n_embd], its weight is the sigmoid of the product; None: it is 1.
    """
    y = np.zeros_like(x)
    for expert, weight in zip(chosen, weights, strict=True):
        taken = x * weight if config.weighs_input else x
        given = experts[expert](taken[None])[0]
        y = fused(np.full_like(y, ONE if config.weighs_input else weight), given, y)
    if shared is not None:
        weight = ONE if shared_router is None else sigmoid(dot16(x, shared_router))
        y = fused(np.full_like(y, weight), shared(x[None])[0], y)
    return y


def _first_best(keys: Floats, n: int) -> npt.NDArray[np.int64]:
    """Places of the n largest, largest first, of equal ones the first; never a NaN's."""
    order = np.argsort(-keys, kind="stable")
    return order[:n].astype(np.int64)
