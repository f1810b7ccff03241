"""A layer of a selective state space (Gu and Dao 2023, arXiv:2312.00752)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.storage.tensors import as_tensor
from aleator.models.layers.convolution import convolve
from aleator.models.layers.feed_forward import Following
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.norms import RMSNorm
from aleator.models.layers.recurrent_parts import StateSpace
from aleator.models.layers.selective_scan import selective_scan


class MambaLayer:
    """Projection, convolution over time, selective scan, gate, projection; added to the layer's input.

    Where the model has them, a feed-forward part follows.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = StateSpace(weights, index)
        eps = weights.config.rms_eps
        self.layer, self.parts = index, parts
        self.norm = RMSNorm(parts.norm, eps)
        self.norms: list[RMSNorm] | None = None
        if parts.norms is not None:
            self.norms = [RMSNorm(weight, eps) for weight in parts.norms]
        self.following = Following(weights, parts.ffn_norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        tensors, ssm, states = self.parts, self.parts.ssm, batch.states
        inner, n = ssm.d_inner, ssm.d_state
        projected = tensors.project(self.norm(x))
        u, gate = projected[:, :inner].float(), projected[:, inner:]
        u = F.silu(convolve(u, tensors.conv_weight, tensors.conv_bias, states, self.layer))
        selected = tensors.select(u.to(x)).float()
        parts = torch.split(selected, [ssm.dt_rank, n, n], dim=1)
        eps = ssm.norm_eps
        if eps is not None:
            parts = tuple(F.rms_norm(part, part.shape[1:], None, eps) for part in parts)
        if self.norms is not None:
            parts = tuple(norm(part) for norm, part in zip(self.norms, parts, strict=True))
        step, b, c = parts
        y = self._scan(u, F.softplus(tensors.time_step(step.to(x)).float()), b, c, states)
        if rows is not None:
            x, y, u, gate = (each.index_select(0, rows) for each in (x, y, u, gate))
        y = (y + tensors.d * u) * F.silu(gate.float())
        return self.following(x + tensors.output(y.to(x)))

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
                u[at], dt[at], self.parts.a, b[at], c[at], state, [index for index, _ in run.stores]
            )
            out[at] = y
            for (_, row), new in zip(run.stores, after, strict=True):
                kept[row] = new
        return out
