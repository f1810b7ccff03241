"""The feed-forward part of a layer on torch tensors, as its architecture has it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.linear import Linear
from aleator.models.layers.ops import TorchOps
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.passes import Pass
from aleator.models.layers.recurrent_parts import FeedForwardAlone

Part = Callable[[torch.Tensor], torch.Tensor]
"""[T, n_embd] -> [T, n_embd]."""
Parts = FeedForward[Linear] | Mixture[Linear, torch.Tensor]


def feed_forward(parts: Parts, ops: TorchOps) -> Part:
    """One part, or a mixture of several."""
    return Dense(parts, ops) if isinstance(parts, FeedForward) else Experts(parts, ops)


class Dense:
    """``down(f(gate(x)) * up(x))`` (Shazeer 2020, arXiv:2002.05202), or ``down(f(up(x)))``.

    Attributes:
        parts: ``gate_up`` gives gate and up side by side, [T, 2 * n_ff], so that both are one product.
    """

    __slots__ = ("ops", "parts")

    def __init__(self, parts: FeedForward[Linear], ops: TorchOps) -> None:
        self.parts, self.ops = parts, ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return self.parts.down(_activated(self.parts, self.parts.gate_up(x), self.ops))


def _activated(parts: FeedForward[Linear], both: torch.Tensor, ops: TorchOps) -> torch.Tensor:
    """What ``down`` takes of what ``gate_up`` gave, [..., n_ff]."""
    if not parts.gated:
        return ops.activate(parts.gate, both)
    return ops.activate(parts.gate, both[..., : parts.n_ff], both[..., parts.n_ff :])


class Experts:
    """A router, its experts, and the one that every token goes through, if there is one."""

    def __init__(self, parts: Mixture[Linear, torch.Tensor], ops: TorchOps) -> None:
        self.parts, self.ops = parts, ops
        self.first = parts.experts[0]  # all are made alike
        self.gate_up = ops.chosen([expert.gate_up for expert in parts.experts])
        self.down = ops.chosen([expert.down for expert in parts.experts])
        self.shared = None if parts.shared is None else Dense(parts.shared, ops)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return self.mixed(x, self.parts.router(x))

    def mixed(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """What the experts give for ``x`` [T, n_embd], chosen by ``logits`` [T, experts]."""
        parts, ops = self.parts, self.ops
        chosen, weights = ops.route(logits, parts.config, parts.choice_bias, parts.scales)
        weights = weights.to(x)
        taken = x[:, None].expand(-1, chosen.shape[1], -1)
        if parts.config.weighs_input:
            taken = taken * weights[:, :, None]
        both = self.gate_up(taken, chosen)
        given = self.down(_activated(self.first, both, ops), chosen)
        shared = weight = None
        if self.shared is not None:
            shared = self.shared(x)
            if parts.shared_router is not None:
                weight = ops.weighed(x, parts.shared_router)
        own = None if parts.config.weighs_input else weights
        return ops.combine(given, own, shared, weight)


class DenseAndExperts:
    """A dense part and a mixture side by side (gemma4's 26B-A4B).

    Both take the running sum, each with a norm of its own, and so does the router.
    """

    def __init__(self, parts: Mixture[Linear, torch.Tensor], ops: TorchOps, eps: float) -> None:
        if parts.dense is None or parts.norms is None:
            raise TypeError("a mixture without a dense part beside it")
        self.dense, self.experts = Dense(parts.dense, ops), Experts(parts, ops)
        norms = parts.norms
        self.router_norm = ops.norm("rms", norms.router, eps)
        self.expert_norm = ops.norm("rms", norms.expert, eps)
        self.dense_post_norm = ops.norm("rms", norms.dense_post, eps)
        self.expert_post_norm = ops.norm("rms", norms.expert_post, eps)

    def __call__(self, x: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        """What both give for ``x`` [T, n_embd]; ``normed``: as the dense part takes it."""
        dense = self.dense_post_norm(self.dense(normed))
        logits = self.experts.parts.router(self.router_norm(x))
        given = self.experts.mixed(self.expert_norm(x), logits)
        return dense + self.expert_post_norm(given)


class Following:
    """The feed-forward part after a layer's state, on the normalised running sum and added to it."""

    def __init__(
        self, weights: LayerWeights, weight: torch.Tensor | None, parts: Parts | None
    ) -> None:
        config = weights.config
        self.norm = weights.ops.norm("rms", weight, config.rms_eps)
        self.ffn = None if parts is None else feed_forward(parts, weights.ops)
        self.residual_scale = config.residual_scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return x if self.ffn is None else x + self.ffn(self.norm(x)) * self.residual_scale


class FeedForwardLayer:
    """A layer of nothing but a feed-forward part."""

    def __init__(self, weights: LayerWeights) -> None:
        parts = FeedForwardAlone(weights)
        self.part = Following(weights, parts.norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`."""
        return self.part(x if rows is None else x.index_select(0, rows))
