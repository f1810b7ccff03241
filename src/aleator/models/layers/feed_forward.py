"""The feed-forward part of a layer on torch tensors, as its architecture has it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import Norm, as_it_is
from aleator.models.layers.operands import Activations, Factors, Residual, Routed
from aleator.models.layers.ops import TorchOps
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.passes import Pass
from aleator.models.layers.recurrent_parts import FeedForwardAlone

Part = Callable[[Tensor, Norm, Residual], Activations]
"""x [T, n_embd], its norm, and what the result is added to -> [T, n_embd]."""
Parts = FeedForward[Linear] | Mixture[Linear, Tensor]


def feed_forward(parts: Parts, ops: TorchOps, eps: float) -> Part:
    """One part, a mixture of experts, or both side by side; ``eps`` is for the norms of the last kind."""
    if isinstance(parts, FeedForward):
        return Dense(parts, ops)
    return Experts(parts, ops) if parts.dense is None else DenseAndExperts(parts, ops, eps)


class Dense:
    """``down(f(gate(x)) * up(x))`` (Shazeer 2020, arXiv:2002.05202), or ``down(f(up(x)))``.

    Attributes:
        parts: ``gate_up`` computes gate and up side by side, [T, 2 * n_ff], in one product.
    """

    __slots__ = ("ops", "parts")

    def __init__(self, parts: FeedForward[Linear], ops: TorchOps) -> None:
        self.parts, self.ops = parts, ops

    def __call__(
        self, x: Tensor, norm: Norm = as_it_is, residual: Residual | None = None
    ) -> Tensor:
        """See :data:`Part`; nothing is normalised or added unless asked."""
        parts, ops = self.parts, self.ops
        inner = ops.product(parts.gate_up, x, norm, parts.gate, parts.gated)
        return ops.product(parts.down, inner, residual=residual)

    def after(self, y: Activations, residual: Residual, norm: Norm, then: Residual) -> Activations:
        """The part of the sum that ``y`` makes with ``residual``; ``then`` is how it is added to that sum."""
        parts, ops = self.parts, self.ops
        x, inner = ops.sum_product(y, residual, parts.gate_up, norm, parts.gate, parts.gated)
        then = then._replace(x=x)
        if then.norm is as_it_is:
            return ops.product(parts.down, inner, residual=then)
        return ops.left(ops.product(parts.down, inner), then)


class Experts:
    """A router, its experts, and the shared expert if there is one.

    Attributes:
        route: the router, see :data:`~aleator.models.layers.ops.Router`.
        mixed: the experts, see :data:`~aleator.models.layers.ops.Mixed`.
    """

    def __init__(self, parts: Mixture[Linear, Tensor], ops: TorchOps) -> None:
        gate_up = ops.chosen([expert.gate_up for expert in parts.experts])
        down = ops.chosen([expert.down for expert in parts.experts])
        self.route, self.mixed = ops.router(parts), ops.mixture(parts, gate_up, down)

    def __call__(self, x: Tensor, norm: Norm, residual: Residual) -> Activations:
        """See :data:`Part`."""
        return self.mixed(x, norm, self.route(x, norm), residual, None)


class DenseAndExperts:
    """A dense part and a mixture side by side (gemma4's 26B-A4B).

    Both take the running sum, each with a norm of its own, and so does the router.
    """

    def __init__(self, parts: Mixture[Linear, Tensor], ops: TorchOps, eps: float) -> None:
        if parts.dense is None or parts.norms is None:
            raise TypeError("a mixture without a dense part beside it")
        self.ops, self.parts = ops, parts
        self.dense, self.experts = Dense(parts.dense, ops), Experts(parts, ops)
        norms = parts.norms
        self.router_norm = ops.norm("rms", norms.router, eps)
        self.expert_norm = ops.norm("rms", norms.expert, eps)
        self.dense_post_norm = ops.norm("rms", norms.dense_post, eps)
        self.expert_post_norm = ops.norm("rms", norms.expert_post, eps)

    def __call__(self, x: Tensor, norm: Norm, residual: Residual) -> Activations:
        """See :data:`Part`; the norm is the dense part's."""
        routed, parts = self.experts.route(x, self.router_norm), self.dense.parts
        inner = self.ops.product(parts.gate_up, x, norm, parts.gate, parts.gated)
        return self.ops.left(self._both(x, inner, routed), residual)

    def after(self, y: Activations, residual: Residual, norm: Norm, then: Residual) -> Activations:
        """See :meth:`Dense.after`."""
        norms, of = (norm, self.router_norm), (self.parts, self.dense.parts)
        made = self.ops.dense_and_route(y, residual, *of, norms, self.experts.route)
        return self.ops.left(self._both(*made), then._replace(x=made[0]))

    def _both(self, x: Tensor, inner: Tensor, routed: Routed) -> Activations:
        """The sum of the dense part of ``x`` and the experts, after the norm of each."""
        beside = Residual(x, norm=self.expert_post_norm, own=self.dense_post_norm)
        last = Factors(self.dense.parts.down, inner)
        return self.experts.mixed(x, self.expert_norm, routed, beside, last)


class FeedForwardAfterState:
    """The feed-forward part after a layer's state; it takes the normalised running sum and is added to it."""

    def __init__(self, weights: LayerWeights, weight: Tensor | None, parts: Parts | None) -> None:
        config = weights.config
        self.norm = weights.ops.norm("rms", weight, config.rms_eps)
        self.ffn = None if parts is None else feed_forward(parts, weights.ops, config.rms_eps)
        self.residual_scale, self.ops = config.residual_scale, weights.ops

    def __call__(self, x: Tensor) -> Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        if self.ffn is None:
            return x
        return self.ops.summed(self.ffn(x, self.norm, Residual(x, self.residual_scale)))


class FeedForwardLayer:
    """A layer that is only a feed-forward part."""

    def __init__(self, weights: LayerWeights) -> None:
        parts, self.ops = FeedForwardAlone(weights), weights.ops
        self.part = FeedForwardAfterState(weights, parts.norm, parts.ffn)

    def __call__(self, x: Activations, batch: Pass, rows: Tensor | None) -> Tensor:
        """Compute a micro-batch, see :class:`Layer`."""
        x = self.ops.summed(x)
        return self.part(x if rows is None else x.index_select(0, rows))
