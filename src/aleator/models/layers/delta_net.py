"""A layer with a gated delta net (Yang et al. 2024, arXiv:2412.06464), in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from aleator.cache.storage.tensors import as_tensor
from aleator.models.layers.convolution import convolve
from aleator.models.layers.feed_forward import Following
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.norms import norm
from aleator.models.layers.recurrent_parts import DeltaNet


class DeltaNetLayer:
    """Projections, convolution over time, delta rule, gated norm, projection; then feed-forward."""

    def __init__(self, weights: LayerWeights, index: int) -> None:
        self.parts = DeltaNet(weights, index)
        kind, self.eps = weights.architecture.norm, weights.config.rms_eps
        self.norm = norm(kind, self.parts.norm, self.eps)
        self.following = Following(weights, self.parts.ffn_norm, self.parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        parts, net, t = self.parts, self.parts.net, x.shape[0]
        taken = self.norm(x)
        qkv = parts.qkv(taken).float()
        qkv = F.silu(convolve(qkv, parts.conv_weight, None, batch.states, parts.index))
        q, k, v = torch.split(qkv, [net.keys, net.keys, net.values], dim=1)
        q, k = (
            _unit(each.reshape(t, net.n_key_heads, net.head_dim), net.unit_eps) for each in (q, k)
        )
        q = q * net.head_dim**-0.5
        shared = net.n_heads // net.n_key_heads
        if net.tiled:
            q, k = q.repeat(1, shared, 1), k.repeat(1, shared, 1)
        else:
            q, k = q.repeat_interleave(shared, 1), k.repeat_interleave(shared, 1)
        beta = torch.sigmoid(parts.beta(taken).float())
        decay = torch.exp(F.softplus(parts.decay(taken).float() + parts.time_bias) * parts.a)
        heads = v.reshape(t, net.n_heads, net.head_dim_v)
        y = self._scan(q, k, heads, beta, decay, batch)
        y = F.rms_norm(y, y.shape[-1:], parts.head_norm, self.eps).reshape(t, -1)
        y = y * F.silu(parts.gate(taken).float())
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)
        return self.following(x + parts.output(y.to(x)))

    def _scan(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        beta: torch.Tensor,
        decay: torch.Tensor,
        batch: Pass,
    ) -> torch.Tensor:
        net, states = self.parts.net, batch.states
        kept, out = as_tensor(states.ssm[self.parts.index]), torch.empty_like(v)
        shape = (net.n_heads, net.head_dim_v, net.head_dim)
        for run in states.runs:
            at = torch.tensor(run.tokens, device=v.device)
            state = torch.zeros_like(kept[0]) if run.source < 0 else kept[run.source]
            out[at], after = delta_rule(
                q[at],
                k[at],
                v[at],
                beta[at],
                decay[at],
                state.reshape(shape),
                [index for index, _ in run.stores],
            )
            for (_, row), new in zip(run.stores, after, strict=True):
                kept[row] = new.reshape(kept[row].shape)
        return out


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    keep: Sequence[int] = (),
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """S(t) = decay S(t - 1) + beta (v - decay S(t - 1) k) k^T, and y = S(t) q, token after token.

    Args:
        q: queries, float32 [T, H, D].
        k: keys, [T, H, D].
        v: values, [T, H, Dv].
        beta: [T, H].
        decay: [T, H].
        state: S before the first token, [H, Dv, D].
        keep: tokens after which the state is returned, ascending.

    Returns:
        y [T, H, Dv], and the states [H, Dv, D] after the tokens in ``keep``.
    """
    out, kept, wanted = torch.empty_like(v), [], set(keep)
    for t in range(len(q)):
        state = state * decay[t, :, None, None]
        known = (state * k[t, :, None]).sum(-1)
        state = state + ((v[t] - known) * beta[t, :, None])[..., None] * k[t, :, None]
        out[t] = (state * q[t, :, None]).sum(-1)
        if t in wanted:
            kept.append(state)
    return out, kept


def _unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows divided by their length."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)
