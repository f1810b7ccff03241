"""A mixture of experts in PyTorch: the definition of what native code computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from aleator.models.layers.norms import RMSNorm

if TYPE_CHECKING:
    from aleator.models.experts import ExpertsConfig
    from aleator.models.layers.linear import Linear
    from aleator.models.layers.parts import BesideNorms, Mixture

Part = Callable[[torch.Tensor], torch.Tensor]
"""[T, n_embd] -> [T, n_embd]."""


LEAST_SUM = 2.0**-14
"""Weights are divided by no smaller sum, as in llama.cpp."""


class Experts:
    """A router, its experts, and the one that every token goes through, if there is one.

    Which experts are wanted is asked of the device once per call: no graph of it can be captured.
    """

    def __init__(
        self, parts: Mixture[Linear, torch.Tensor], experts: Sequence[Part], shared: Part | None
    ) -> None:
        self.config, self.router, self.choice_bias = parts.config, parts.router, parts.choice_bias
        self.experts, self.shared, self.shared_router = experts, shared, parts.shared_router
        self.scales = parts.scales

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return self.mixed(x, self.router(x))

    def mixed(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """What the experts give for ``x`` [T, n_embd], chosen by ``logits`` [T, experts]."""
        chosen, weights = route(logits.float(), self.config, self.choice_bias)
        if self.scales is not None:
            weights = weights * self.scales[chosen]
        weights = weights.to(x)
        given = x.new_empty(*chosen.shape, x.shape[1])
        for expert in sorted(set(chosen.flatten().tolist())):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            taken = x.index_select(0, token)
            if self.config.weighs_input:
                taken = taken * weights[token, place, None]
            given[token, place] = self.experts[expert](taken)
        if not self.config.weighs_input:
            given = given * weights[:, :, None]
        total = given.sum(1)
        if self.shared is None:
            return total
        if self.shared_router is None:
            return total + self.shared(x)
        weight = torch.sigmoid(x.float() @ self.shared_router).to(x)
        return total + weight[:, None] * self.shared(x)


class DenseAndExperts:
    """A dense part and a mixture side by side (gemma4's 26B-A4B).

    Both take the running sum, each with a norm of its own, and so does the router.
    """

    def __init__(
        self, dense: Part, experts: Experts, norms: BesideNorms[torch.Tensor], eps: float
    ) -> None:
        self.dense, self.experts = dense, experts
        self.router_norm, self.expert_norm = RMSNorm(norms.router, eps), RMSNorm(norms.expert, eps)
        self.dense_post_norm = RMSNorm(norms.dense_post, eps)
        self.expert_post_norm = RMSNorm(norms.expert_post, eps)

    def __call__(self, x: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        """What both give for ``x`` [T, n_embd]; ``normed``: as the dense part takes it."""
        dense = self.dense_post_norm(self.dense(normed))
        logits = self.experts.router(self.router_norm(x))
        given = self.experts.mixed(self.expert_norm(x), logits)
        return dense + self.expert_post_norm(given)


def route(
    logits: torch.Tensor, config: ExpertsConfig, choice_bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts tokens go through, and with what weights.

    Args:
        logits: of the router, float32 [T, experts].
        config: how experts are chosen.
        choice_bias: [experts], added to the scores for the choice alone.

    Returns:
        Experts int64 [T, n_used], best first, of equal ones the first; their weights, float32 [T, n_used].
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
    """Places of the n largest of each row, largest first, of equal ones the first."""
    return torch.sort(keys, dim=-1, descending=True, stable=True).indices[:, :n]
