"""How a router chooses a token's experts, in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from aleator.models.config import ExpertsConfig

LEAST_SUM = 2.0**-14
"""The least sum that weights are divided by, as in llama.cpp."""


def route(
    logits: torch.Tensor, config: ExpertsConfig, choice_bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts tokens go through, and with which weights.

    Args:
        logits: the router's logits, float32 [T, experts].
        config: how experts are chosen.
        choice_bias: [experts], added to the scores only for the choice.

    Returns:
        Experts int64 [T, n_used], best first, ties in order; and their weights, float32 [T, n_used].
    """
    scores = logits
    if config.scores == "softmax":
        scores = logits.softmax(-1)
    elif config.scores == "sigmoid":
        scores = logits.sigmoid()
    keys = scores if choice_bias is None else scores + choice_bias
    if config.n_groups > 1:
        groups = keys.view(len(keys), config.n_groups, -1)
        sums = groups.topk(config.n_group_best, -1).values.sum(-1)
        best = _first_best(sums, config.n_groups_used)
        kept = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, True)
        keys = groups.masked_fill(~kept[:, :, None], -torch.inf).view_as(keys)
    chosen = _first_best(keys, config.n_used)
    weights = scores.gather(1, chosen)
    if config.scores == "chosen softmax":
        weights = weights.softmax(-1)
    elif config.scores == "chosen sigmoid":
        weights = weights.sigmoid()
    if config.normalised:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=LEAST_SUM)
    return chosen, weights * config.scale


def _first_best(keys: torch.Tensor, n: int) -> torch.Tensor:
    """Indices of the n largest of each row, largest first, ties in order."""
    return torch.sort(keys, dim=-1, descending=True, stable=True).indices[:, :n]
