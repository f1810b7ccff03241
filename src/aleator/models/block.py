"""A layer with attention and a feed-forward part, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aleator.models.layers.attention import attend
from aleator.models.layers.feed_forward import feed_forward
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.parts import Attention
from aleator.models.layers.rms_norm import RMSNorm
from aleator.models.layers.rotary import Rotary


class Block:
    """One layer: attention, then feed-forward, each on the normalised input and added to it."""

    def __init__(self, weights: LayerWeights, windowed: bool, index: int, rotary: Rotary) -> None:
        """Read the layer's tensors.

        Args:
            weights: the file's tensors of this layer.
            windowed: whether its tokens see a window of the latest positions only.
            index: its number among the attention layers with a window, or among those without: each kind
                has a cache of its own.
            rotary: rotates its queries and keys.

        Raises:
            FileFormatError: a tensor is missing, of another shape, or not finite.
        """
        parts = Attention(weights, windowed, index)
        eps = weights.config.rms_eps
        self.windowed, self.layer, self.rotary = windowed, index, rotary
        self.n_heads, self.n_kv_heads = parts.n_heads, parts.n_kv_heads
        self.head_dim, self.head_dim_v = parts.head_dim, parts.head_dim_v
        self.n_rotated = self.n_heads + self.n_kv_heads
        self.scale = parts.scale
        self.sinks = parts.sinks
        self.attn_norm, self.ffn_norm = RMSNorm(parts.attn_norm, eps), RMSNorm(parts.ffn_norm, eps)
        self.qkv, self.output = parts.qkv, parts.output
        self.head_weights: torch.Tensor | None = None
        if parts.q_norm is not None and parts.k_norm is not None:
            heads = (
                parts.q_norm.expand(self.n_heads, -1),
                parts.k_norm.expand(self.n_kv_heads, -1),
            )
            self.head_weights, self.head_eps = torch.cat(heads), eps
        self.post_norms: tuple[RMSNorm, RMSNorm] | None = None
        if parts.post_norms is not None:
            first, second = parts.post_norms
            self.post_norms = RMSNorm(first, eps), RMSNorm(second, eps)
        self.ffn = feed_forward(parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; stores all T keys and values."""
        t = x.shape[0]
        cells = batch.tensors(self.windowed)
        qkv = self.qkv(self.attn_norm(x))
        n_qk = self.n_rotated * self.head_dim
        qk = qkv[:, :n_qk].view(t, self.n_rotated, self.head_dim)
        if self.head_weights is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.head_eps).mul_(self.head_weights)
        qk = qk.float()
        if cells.raw:
            k = qk[:, self.n_heads :] * self.rotary.magnitude_over(self.head_dim)
            q = self.rotary.rotate(qk[:, : self.n_heads].contiguous(), batch.angles(self.rotary))
        else:
            qk = self.rotary.rotate(qk, batch.angles(self.rotary))
            q, k = qk[:, : self.n_heads], qk[:, self.n_heads :]
        cells.write(
            self.layer,
            k,
            qkv[:, n_qk:].view(t, self.n_kv_heads, self.head_dim_v),
        )
        if rows is not None and len(rows) == 0:
            return x[:0]
        q = q.to(cells.device(self.layer))
        attended = attend(q, self.layer, cells, self.scale, batch.fused, self.sinks).to(x)
        if rows is not None:
            x, attended = x.index_select(0, rows), attended.index_select(0, rows)
        if self.post_norms is None:
            x = x + self.output(attended)
            return x + self.ffn(self.ffn_norm(x))
        x = x + self.post_norms[0](self.output(attended))
        return x + self.post_norms[1](self.ffn(self.ffn_norm(x)))
