"""Layers that keep a state, on torch tensors.

Each adds its result to its input; in some models a feed-forward part follows.
"""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import torch

from aleator.models.layers import recurrent_parts
from aleator.models.layers.feed_forward import FeedForwardAfterState
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import Norm, as_it_is
from aleator.models.layers.operands import Activations, Factors, Residual
from aleator.models.layers.passes import Pass
from aleator.models.layers.scans import Deltas, Scanned

P = TypeVar("P", bound=recurrent_parts.Stateful[Linear, torch.Tensor])


class StatefulLayer(Generic[P]):
    """A :class:`Layer` that computes with ``parts`` and leaves the states of all T tokens."""

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = self.parts = cast("P", recurrent_parts.stateful(weights, index))
        self.ops, self.eps = weights.ops, weights.config.rms_eps
        self.residual_scale = weights.config.residual_scale
        self.norm = self.ops.norm(weights.architecture.norm, parts.norm, self.eps)
        self.following = FeedForwardAfterState(weights, parts.ffn_norm, parts.ffn)

    def added(
        self, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor | None, norm: Norm = as_it_is
    ) -> torch.Tensor:
        """``y`` normalised, projected and added to ``x``, only for ``rows``, and then the part that follows.

        ``norm`` is for these rows.
        """
        x, y = _rows(x, rows), _rows(y, rows)
        residual = Residual(x, self.residual_scale)
        return self.following(self.ops.product(self.parts.output, y, norm, residual=residual))


class MambaLayer(StatefulLayer[recurrent_parts.StateSpace[Linear, torch.Tensor]]):
    """A selective state space (Gu and Dao 2023, arXiv:2312.00752).

    Projection, convolution over time, selective scan, gate, projection.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        super().__init__(weights, index)
        ssm, norms, eps = self.parts.ssm, self.parts.norms, self.eps
        if norms is None and ssm.norm_eps is not None:
            eps = ssm.norm_eps
            norms = [weights.ones(n) for n in (ssm.dt_rank, ssm.d_state, ssm.d_state)]
        of_step = None if norms is None else norms[0].to(weights.dtype)
        of_both = None if norms is None else torch.stack(norms[1:])
        self.norms = self.ops.norm("rms", of_step, eps), self.ops.norm("rms", of_both, eps)

    def __call__(self, x: Activations, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        x = self.ops.summed(x)
        projected = self.ops.product(self.parts.project, x, self.norm)
        return self.added(x, self.ops.selective(projected, self.parts, batch, self.norms), rows)


class HeadSpaceLayer(StatefulLayer[recurrent_parts.HeadSpace[Linear, torch.Tensor]]):
    """A state space whose heads have one decay each (Dao and Gu 2024, arXiv:2405.21060).

    Projection, convolution over time, scan, gate, norm, projection.
    """

    def __call__(self, x: Activations, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        x = self.ops.summed(x)
        gate, values, steps = self.split(self.ops.product(self.parts.project, x, self.norm))
        values = self.ops.convolve(values, self.parts, batch)
        y = self.ops.scan(self.scanned(gate, values, steps), self.parts, batch)
        residual = Residual(_rows(x, rows), self.residual_scale)
        y = self.ops.product(*self.factors(_rows(y, rows)), residual=residual)
        return self.following(y)

    def split(self, projected: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gates, what is convolved, and steps, of what the first product gives."""
        ssm = self.parts.ssm
        return torch.split(projected.float(), [ssm.d_inner, ssm.conv_channels, ssm.heads], dim=1)

    def scanned(self, gate: torch.Tensor, values: torch.Tensor, steps: torch.Tensor) -> Scanned:
        """What is scanned, with the convolved ``values``."""
        inner, n = self.parts.ssm.d_inner, self.parts.ssm.groups * self.parts.ssm.d_state
        both = values[:, inner:].view(len(values), 2, n)
        return Scanned(values[:, :inner], steps, both, gate)

    def factors(self, y: torch.Tensor) -> Factors:
        """What is made of the scan's result, normalised and projected."""
        parts = self.parts
        norm: Norm = as_it_is
        if parts.gated_norm is not None:
            size = y.shape[1] // parts.norm_groups
            norm = self.ops.part_norm(size, parts.gated_norm, self.eps)
        return Factors(parts.output, y, norm)


class ShortConvolutionLayer(StatefulLayer[recurrent_parts.ShortConvolution[Linear, torch.Tensor]]):
    """``output(C * conv(B * x))`` (lfm2)."""

    def __call__(self, x: Activations, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        x = self.ops.summed(x)
        parts = self.parts
        b, c, values = self.ops.product(parts.project, x, self.norm).float().chunk(3, dim=1)
        return self.added(x, self.ops.convolve(values, parts, batch, False, (b, c)), rows)


class DeltaNetLayer(StatefulLayer[recurrent_parts.DeltaNet[Linear, torch.Tensor]]):
    """A gated delta net (Yang et al. 2024, arXiv:2412.06464).

    Projections, convolution over time, delta rule, gated norm, projection.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        super().__init__(weights, index)
        of = self.parts
        self.products = self.ops.products([of.qkv, of.gate, of.beta, of.decay])

    def __call__(self, x: Activations, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        x = self.ops.summed(x)
        parts, net, t, ops = self.parts, self.parts.net, x.shape[0], self.ops
        qkv, gate, beta, decay = self.products(x, self.norm)
        if parts.gate_up is not None and parts.decay_up is not None:
            ups = Factors(parts.gate_up, gate), Factors(parts.decay_up, decay)
            qkv, (gate, decay) = ops.convolve_and_each(qkv.float(), parts, batch, ups)
        else:
            qkv = ops.convolve(qkv.float(), parts, batch)
        qk, v = torch.split(qkv, [2 * net.keys, net.values], dim=1)
        v = v.view(t, net.n_heads, net.head_dim_v)
        y = ops.delta_scan(Deltas(qk, v, beta.float(), decay.float()), parts, batch)
        kind = "sigmoid" if net.channel_decays else "silu"
        of_heads = ops.part_norm(net.head_dim_v, parts.head_norm, self.eps, _rows(gate, rows), kind)
        return self.added(x, y.flatten(1), rows, of_heads)


def _rows(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """The rows that are wanted; None: all."""
    return x if rows is None else x.index_select(0, rows)
