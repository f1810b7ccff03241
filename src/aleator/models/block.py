"""A layer with attention and a feed-forward part, in PyTorch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from aleator.models.layers.feed_forward import DenseAndExperts, feed_forward
from aleator.models.layers.latent import LatentHeads
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.parts import Attention, Mixture
from aleator.models.layers.passes import Pass
from aleator.models.layers.per_layer import EmbeddingPart
from aleator.models.layers.recurrent import HeadSpaceLayer
from aleator.models.layers.rotary import Rotary


class Block:
    """One layer: attention, then feed-forward, each on the normalised input and added to it."""

    def __init__(
        self,
        weights: LayerWeights,
        windowed: bool,
        index: int,
        rotary: Rotary,
        slopes: npt.NDArray[np.float32] | None = None,
        beside: HeadSpaceLayer | None = None,
    ) -> None:
        """Read the layer's tensors.

        ``index`` is its number among the attention layers with a window, or among those without: each kind
        has a cache of its own.  ``slopes`` [heads] are ALiBi's; what the state space ``beside`` gives is added.
        """
        parts = Attention(weights, windowed, index)
        config, architecture = weights.config, weights.architecture
        kind, eps, norm = architecture.norm, config.rms_eps, weights.ops.norm
        self.ops = weights.ops
        self.windowed, self.layer, self.rotary = windowed, index, rotary
        self.parts, self.config = parts, config
        self.parallel = architecture.parallel
        self.v_norm = norm("rms", parts.v_norm, eps)
        self.embeddings: EmbeddingPart | None = None
        if config.per_layer is not None:
            self.embeddings = EmbeddingPart(weights)
        self.slopes: torch.Tensor | None = None
        if slopes is not None:
            self.slopes = torch.from_numpy(slopes).to(weights.device)
        self.attn_norm = norm(kind, parts.attn_norm, eps)
        self.ffn_norm = norm(kind, parts.ffn_norm, eps)
        self.latent: LatentHeads | None = None
        if parts.latent is not None:
            self.latent = LatentHeads(parts.latent, parts.n_heads, eps, self.ops)
        self.head_norms = norm(kind, parts.q_norm, eps), norm(kind, parts.k_norm, eps)
        first, second = parts.post_norms or (None, None)
        self.post_norms = norm(kind, first, eps), norm(kind, second, eps)
        self.ffn = None if parts.ffn is None else feed_forward(parts.ffn, self.ops)
        self.mixed: DenseAndExperts | None = None
        if isinstance(parts.ffn, Mixture) and parts.ffn.dense is not None:
            self.mixed = DenseAndExperts(parts.ffn, self.ops, eps)
        self.beside = beside

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; stores all T keys and values."""
        taken = self.attn_norm(x)
        q, k, v, gate = self._heads(taken)
        q = self._finished(q, 0, batch, rotate=True)
        if self.parts.grows and batch.query_scales is not None:
            q = q * batch.query_scales[:, None, None]
        if self.parts.stores:
            self._store(k, v, batch)
        mixed = None if self.beside is None else self.beside.mixed(taken, batch, rows)
        if rows is not None and len(rows) == 0:
            return x[:0]
        attended = self.ops.attend(
            q,
            self.layer,
            batch,
            self.windowed,
            self.parts.scale,
            self.config.attention_softcap,
            self.slopes,
            self.parts.sinks,
            0 if self.latent is None else self.latent.values_in_keys,
            self.rotary if self.parts.rotated else None,
        ).to(x)
        if self.latent is not None:
            attended = self.latent.given(attended)
        if gate is not None:
            attended = self.ops.sigmoid_gate(attended, gate)
        if rows is not None:
            x, attended = x.index_select(0, rows), attended.index_select(0, rows)
            taken = taken.index_select(0, rows)
        given = self.post_norms[0](self.parts.output(attended))
        x = x + given * self.config.residual_scale
        if mixed is not None:
            x = x + mixed * self.config.residual_scale
        if self.ffn is None:
            return x
        if not self.parallel:
            taken = self.ffn_norm(x)
        given = self.ffn(taken) if self.mixed is None else self.mixed(x, taken)
        x = x + self.post_norms[1](given) * self.config.residual_scale
        if self.embeddings is not None and batch.embeddings is not None:
            own = batch.embeddings
            x = self.embeddings(x, own if rows is None else own.index_select(0, rows))
        return x if self.parts.output_scale is None else x * self.parts.output_scale.to(x)

    def _store(self, k: torch.Tensor, v: torch.Tensor, batch: Pass) -> None:
        """Write all T keys and values."""
        if batch.raw(self.windowed) and self.parts.rotated:
            k = self._finished(k, 1, batch, rotate=False)
            k = k * self.rotary.magnitude_over(self.parts.head_dim)
        else:
            k = self._finished(k, 1, batch, rotate=True)
        self.ops.store(k, v, self.layer, batch, self.windowed)

    def _heads(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Queries [T, H, D], keys [T, G, D], values [T, G, Dv], and gates [T, H * D] if there are any."""
        if self.latent is not None:
            return *self.latent.heads(x), None
        parts, clamp = self.parts, self.config.qkv_clamp
        if parts.qkv is None:
            raise TypeError("a layer without queries")
        qkv, t = parts.qkv(x), x.shape[0]
        if clamp:
            qkv = qkv.clamp(-clamp, clamp)
        n_q = parts.n_heads * parts.head_dim * (2 if parts.gated else 1)
        n_kv = parts.n_kv_heads if parts.stores else 0
        n_k = n_kv * parts.head_dim
        q, k, v = qkv[:, :n_q], qkv[:, n_q : n_q + n_k], qkv[:, n_q + n_k :]
        if parts.keys_as_values:
            v = k
        gate: torch.Tensor | None = None
        if parts.gated:
            both = q.reshape(t, parts.n_heads, 2, parts.head_dim)
            q, gate = both[:, :, 0], both[:, :, 1].reshape(t, -1)
        if parts.head_norm_kind == "all":
            q, k = self.head_norms[0](q), self.head_norms[1](k)
        return (
            q.reshape(t, parts.n_heads, parts.head_dim),
            k.reshape(t, n_kv, parts.head_dim),
            self.v_norm(v.reshape(t, n_kv, parts.head_dim_v)),
            gate,
        )

    def _finished(self, heads: torch.Tensor, which: int, batch: Pass, rotate: bool) -> torch.Tensor:
        """Queries (0) or keys (1) normalised and rotated, in float32."""
        if self.parts.head_norm_kind in ("head", "each"):
            heads = self.head_norms[which](heads)
        heads = heads.float()
        if rotate and self.parts.rotated:
            heads = self.ops.rotate(heads, self.rotary, batch)
        if self.parts.head_norm_kind == "rotated head":
            heads = self.head_norms[which](heads)
        return heads.float()
