"""A layer of a selective state space (Gu and Dao 2023, arXiv:2312.00752)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from aleator.cache.pools.recurrent_batch import RecurrentBatch
from aleator.cache.storage.tensors import as_tensor
from aleator.models.layers.convolution import convolve
from aleator.models.layers.feed_forward import feed_forward
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.recurrent_parts import StateSpace
from aleator.models.layers.rms_norm import RMSNorm
from aleator.models.layers.selective_scan import selective_scan


class MambaLayer:
    """Projection, convolution over time, selective scan, gate, projection; added to the layer's input.

    Where the model has them, a feed-forward part follows.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = StateSpace(weights, index)
        eps = weights.config.rms_eps
        self.layer, self.ssm = index, parts.ssm
        self.norm = RMSNorm(parts.norm, eps)
        self.project, self.select = parts.project, parts.select
        self.time_step, self.output = parts.time_step, parts.output
        self.conv_weight, self.a, self.d = parts.conv_weight, parts.a, parts.d
        self.conv_bias = parts.conv_bias
        self.norms: list[RMSNorm] | None = None
        if parts.norms is not None:
            self.norms = [RMSNorm(weight, eps) for weight in parts.norms]
        self.ffn_norm: RMSNorm | None = None
        self.ffn: Callable[[torch.Tensor], torch.Tensor] | None = None
        if parts.ffn is not None and parts.ffn_norm is not None:
            self.ffn_norm = RMSNorm(parts.ffn_norm, eps)
            self.ffn = feed_forward(parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        states = batch.states
        inner, n = self.ssm.d_inner, self.ssm.d_state
        projected = self.project(self.norm(x))
        u, gate = projected[:, :inner].float(), projected[:, inner:]
        u = F.silu(convolve(u, self.conv_weight, self.conv_bias, states, self.layer))
        selected = self.select(u.to(x)).float()
        parts = torch.split(selected, [self.ssm.dt_rank, n, n], dim=1)
        eps = self.ssm.norm_eps
        if eps is not None:
            parts = tuple(F.rms_norm(part, part.shape[1:], None, eps) for part in parts)
        if self.norms is not None:
            parts = tuple(norm(part) for norm, part in zip(self.norms, parts, strict=True))
        step, b, c = parts
        y = self._scan(u, F.softplus(self.time_step(step.to(x)).float()), b, c, states)
        if rows is not None:
            x, y, u, gate = (each.index_select(0, rows) for each in (x, y, u, gate))
        y = (y + self.d * u) * F.silu(gate.float())
        x = x + self.output(y.to(x))
        if self.ffn is None or self.ffn_norm is None:
            return x
        return x + self.ffn(self.ffn_norm(x))

    def _scan(
        self,
        u: torch.Tensor,
        dt: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        states: RecurrentBatch,
    ) -> torch.Tensor:
        kept, out = as_tensor(states.ssm[self.layer]), torch.empty_like(u)
        for run in states.runs:
            at = torch.tensor(run.tokens, device=u.device)
            state = torch.zeros_like(kept[0]) if run.source < 0 else kept[run.source]
            y, after = selective_scan(
                u[at], dt[at], self.a, b[at], c[at], state, [index for index, _ in run.stores]
            )
            out[at] = y
            for (_, row), new in zip(run.stores, after, strict=True):
                kept[row] = new
        return out
