"""Layers that keep a state, on torch tensors.

Each adds what it computes to its input; where the model has it, a feed-forward part follows.
"""

from __future__ import annotations

import torch

from aleator.models.layers.feed_forward import Following
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.norms import Norm
from aleator.models.layers.ops import Deltas, Onto, Scanned
from aleator.models.layers.passes import Pass
from aleator.models.layers.recurrent_parts import DeltaNet, HeadSpace, ShortConvolution, StateSpace


class MambaLayer:
    """A selective state space (Gu and Dao 2023, arXiv:2312.00752).

    Projection, convolution over time, selective scan, gate, projection.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = StateSpace(weights, index)
        self.ops, eps = weights.ops, weights.config.rms_eps
        self.parts = parts
        self.norm = self.ops.norm("rms", parts.norm, eps)
        ssm = parts.ssm
        self.norms = None
        if parts.norms is not None:
            self.norms = [self.ops.norm("rms", weight, eps) for weight in parts.norms]
        elif ssm.norm_eps is not None:
            sizes = (ssm.dt_rank, ssm.d_state, ssm.d_state)
            self.norms = [self.ops.norm("rms", weights.ones(n), ssm.norm_eps) for n in sizes]
        self.following = Following(weights, parts.ffn_norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        tensors, ssm, ops = self.parts, self.parts.ssm, self.ops
        inner, n = ssm.d_inner, ssm.d_state
        projected = ops.product(tensors.project, x, self.norm)
        u, gate = projected[:, :inner].float(), projected[:, inner:]
        u = ops.convolve(u, tensors, batch)
        selected = tensors.select(u.to(x)).float()
        parts = torch.split(selected, [ssm.dt_rank, n, n], dim=1)
        if self.norms is not None:
            parts = tuple(norm(part) for norm, part in zip(self.norms, parts, strict=True))
        step, b, c = parts
        steps = tensors.time_step(step.to(x))
        y = ops.scan(Scanned(u, steps, b, c, gate), tensors, batch)
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)
        return self.following(ops.product(tensors.output, y.to(x), onto=Onto(x)))


class HeadSpaceLayer:
    """A state space whose heads have one decay each (Dao and Gu 2024, arXiv:2405.21060).

    Projection, convolution over time, scan, gate, norm, projection.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = HeadSpace(weights, index)
        config = weights.config
        self.ssm, self.parts, self.ops = parts.ssm, parts, weights.ops
        self.eps, self.residual_scale = config.rms_eps, config.residual_scale
        self.norm = self.ops.norm("rms", parts.norm, config.rms_eps)
        self.following = Following(weights, parts.ffn_norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        taken = x if rows is None else x.index_select(0, rows)
        onto = Onto(taken, self.residual_scale)
        return self.following(self.mixed(x, self.norm, batch, rows, onto))

    def mixed(
        self,
        x: torch.Tensor,
        norm: Norm,
        batch: Pass,
        rows: torch.Tensor | None,
        onto: Onto | None = None,
    ) -> torch.Tensor:
        """What comes of ``x``, [T, n_embd], normalised; added, or to be added to the running sum."""
        ssm, parts, ops = self.ssm, self.parts, self.ops
        inner, n = ssm.d_inner, ssm.groups * ssm.d_state
        projected = ops.product(parts.project, x, norm).float()
        gate, values, steps = torch.split(projected, [inner, ssm.conv_channels, ssm.heads], dim=1)
        values = ops.convolve(values, parts, batch)
        u, b, c = torch.split(values, [inner, n, n], dim=1)
        y = ops.scan(Scanned(u, steps, b, c, gate), parts, batch)
        if rows is not None:
            y = y.index_select(0, rows)
        if parts.gated_norm is not None:
            y = ops.grouped_norm(y, parts.norm_groups, parts.gated_norm, self.eps)
        return ops.product(parts.output, y.to(x), onto=onto)


class ShortConvolutionLayer:
    """``output(C * conv(B * x))`` (lfm2)."""

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = ShortConvolution(weights, index)
        self.parts, self.ops = parts, weights.ops
        self.norm = self.ops.norm("rms", parts.norm, weights.config.rms_eps)
        self.following = Following(weights, parts.ffn_norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        parts = self.parts
        b, c, values = self.ops.product(parts.project, x, self.norm).float().chunk(3, dim=1)
        mixed = c * self.ops.convolve(b * values, parts, batch, False)
        if rows is not None:
            x, mixed = x.index_select(0, rows), mixed.index_select(0, rows)
        return self.following(self.ops.product(parts.output, mixed.to(x), onto=Onto(x)))


class DeltaNetLayer:
    """A gated delta net (Yang et al. 2024, arXiv:2412.06464).

    Projections, convolution over time, delta rule, gated norm, projection.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        self.parts, self.ops = DeltaNet(weights, index), weights.ops
        kind, self.eps = weights.architecture.norm, weights.config.rms_eps
        self.norm = self.ops.norm(kind, self.parts.norm, self.eps)
        self.following = Following(weights, self.parts.ffn_norm, self.parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        parts, net, t, ops = self.parts, self.parts.net, x.shape[0], self.ops
        matrices = [parts.qkv, parts.gate, parts.beta, parts.decay]
        qkv, gate, beta, decay = ops.products(matrices, x, self.norm)
        qkv = ops.convolve(qkv.float(), parts, batch)
        qk, v = torch.split(qkv, [2 * net.keys, net.values], dim=1)
        qk = ops.unit_length(qk, net.head_dim, net.unit_eps, net.n_key_heads)
        q, k = qk.view(t, 2, net.n_key_heads, net.head_dim).unbind(1)
        v = v.view(t, net.n_heads, net.head_dim_v)
        y = ops.delta_scan(Deltas(q, k, v, beta.float(), decay.float()), parts, batch)
        y = ops.gated_norm(y.flatten(1), parts.head_norm, gate, self.eps)
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)
        return self.following(ops.product(parts.output, y.to(x), onto=Onto(x)))
