"""A layer with a state space whose heads have one decay each (Dao and Gu 2024), in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.storage.tensors import as_tensor
from aleator.models.layers.convolution import convolve
from aleator.models.layers.feed_forward import Following
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.norms import norm
from aleator.models.layers.recurrent_parts import HeadSpace
from aleator.models.layers.selective_scan import selective_scan


class HeadSpaceLayer:
    """Projection, convolution over time, scan, gate, norm, projection; added to the layer's input.

    Where the model has it, a feed-forward part follows.
    """

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = HeadSpace(weights, index)
        config = weights.config
        self.layer, self.ssm, self.parts = index, parts.ssm, parts
        self.eps, self.residual_scale = config.rms_eps, config.residual_scale
        self.norm = norm("rms", parts.norm, config.rms_eps)
        self.following = Following(weights, parts.ffn_norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        given = self.mixed(self.norm(x), batch, rows)
        if rows is not None:
            x = x.index_select(0, rows)
        return self.following(x + given * self.residual_scale)

    def mixed(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """What is added to the running sum for ``x``, normalised, [T, n_embd]."""
        ssm, parts, states = self.ssm, self.parts, batch.states
        inner, heads, n = ssm.d_inner, ssm.heads, ssm.groups * ssm.d_state
        projected = parts.project(x).float()
        gate, values, steps = torch.split(projected, [inner, ssm.conv_channels, heads], dim=1)
        values = F.silu(convolve(values, parts.conv_weight, parts.conv_bias, states, self.layer))
        u, b, c = torch.split(values, [inner, n, n], dim=1)
        steps = F.softplus(steps + parts.time_bias).clamp_min(ssm.least_step)
        y = self._scan(u, steps, b, c, states)
        if rows is not None:
            y, u, gate = (each.index_select(0, rows) for each in (y, u, gate))
        y = (y + parts.d.repeat_interleave(inner // heads) * u) * F.silu(gate)
        if parts.gated_norm is not None:
            grouped = y.view(len(y), parts.norm_groups, -1)
            y = F.rms_norm(grouped, grouped.shape[2:], None, self.eps).flatten(1) * parts.gated_norm
        return parts.output(y.to(x))

    def _scan(
        self,
        u: torch.Tensor,
        steps: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        states: RecurrentBatch,
    ) -> torch.Tensor:
        """The scan, group by group: heads of one group have the same B and C."""
        ssm = self.ssm
        kept, out = as_tensor(states.ssm[self.layer]), torch.empty_like(u)
        dim, wide = ssm.d_inner // ssm.heads, ssm.d_inner // ssm.groups
        dt = steps.repeat_interleave(dim, dim=1)
        a = self.parts.a.repeat_interleave(dim)[:, None].expand(-1, ssm.d_state)
        for run in states.runs:
            at = torch.tensor(run.tokens, device=u.device)
            state = torch.zeros_like(kept[0]) if run.source < 0 else kept[run.source].clone()
            for group in range(ssm.groups):
                part = slice(group * wide, (group + 1) * wide)
                shared = slice(group * ssm.d_state, (group + 1) * ssm.d_state)
                y, after = selective_scan(
                    u[at, part],
                    dt[at, part],
                    a[part],
                    b[at, shared],
                    c[at, shared],
                    state[part],
                    [index for index, _ in run.stores],
                )
                out[at, part] = y
                for (_, row), new in zip(run.stores, after, strict=True):
                    kept[row, part] = new
        return out
