"""A layer with attention and a feed-forward part, in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch

from aleator.core.arrays import Floats
from aleator.models.layers.feed_forward import Dense, DenseAndExperts, feed_forward
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import Norm, as_it_is
from aleator.models.layers.operands import (
    Activations,
    Attending,
    EachHead,
    Factors,
    Residual,
    Sum,
)
from aleator.models.layers.ops import TorchOps
from aleator.models.layers.parts import Attention, Latent
from aleator.models.layers.passes import Pass
from aleator.models.layers.per_layer import EmbeddingPart
from aleator.models.layers.recurrent import HeadSpaceLayer
from aleator.models.layers.rotary import Rotary

HeadParts = tuple[torch.Tensor, ...]
"""Heads [T, heads, n] in one or two parts, whose channels lie side by side."""


class Heads(NamedTuple):
    """What a layer's input gives."""

    x: torch.Tensor  # the input, [T, n_embd]
    queries: HeadParts  # [T, H, D]
    keys: HeadParts  # [T, G, D]
    values: HeadParts  # [T, G, Dv]
    gate: torch.Tensor | None = None  # gates [T, H, D]; None: there are none
    projected: torch.Tensor | None = (
        None  # for the state space beside attention; None: there is none
    )


class Block:
    """One layer: attention, then feed-forward; each takes the normalised input and is added to it."""

    def __init__(
        self,
        weights: LayerWeights,
        windowed: bool,
        index: int,
        rotary: Rotary,
        slopes: Floats | None = None,
        beside: HeadSpaceLayer | None = None,
    ) -> None:
        """Read the layer's tensors.

        ``index`` is its number among the attention layers of its kind, with or without a window: each kind
        has its own cache.  ``slopes`` [heads] are ALiBi's; the output of the state space ``beside`` is added.
        """
        parts = Attention(weights, windowed, index)
        config, architecture = weights.config, weights.architecture
        kind, eps, norm = architecture.norm, config.rms_eps, weights.ops.norm
        self.ops, self.device = weights.ops, weights.device
        self.parts, self.config = parts, config
        self.parallel = config.parallel
        self.embeddings = EmbeddingPart(weights) if config.per_layer is not None else None
        self.attn_norm = norm(kind, parts.attn_norm, eps)
        self.ffn_norm = norm(kind, parts.ffn_norm, eps)
        self.latent: LatentHeads | None = None
        if parts.latent is not None:
            self.latent = LatentHeads(parts.latent, parts.n_heads, eps, self.ops)
        self.head_norms = norm(kind, parts.q_norm, eps), norm(kind, parts.k_norm, eps)
        each, compressed = self.head_norms, 0
        if self.latent is not None and self.latent.values_in_keys:
            each, compressed = (as_it_is, self.latent.norm), self.latent.values_in_keys
        self.attending: Attending = Attending(
            layer=index,
            windowed=windowed,
            norms=(*each, norm("rms", parts.v_norm, eps)),
            normed_keys=compressed,
            norm_last=parts.head_norm_kind == "rotated head",
            norm_together=parts.head_norm_kind == "all",
            rotary=rotary if parts.rotated else None,
            grows=parts.grows,
            stores=parts.stores,
            scale=parts.scale,
            softcap=config.attention_softcap,
            slopes=None if slopes is None else torch.from_numpy(slopes).to(weights.device),
            sinks=parts.sinks,
            values_in_keys=compressed,
        )
        first, second = parts.post_norms or (None, None)
        self.post_norms = norm(kind, first, eps), norm(kind, second, eps)
        self.ffn = None if parts.ffn is None else feed_forward(parts.ffn, self.ops, eps)
        self.beside = beside
        if beside is not None and parts.qkv is not None:
            self.products = self.ops.products([parts.qkv, beside.parts.project])

    def with_rotaries(self, rotaries: Mapping[tuple[torch.device, bool], Rotary]) -> Block:
        """The layer with other rotations: ``rotaries`` by device and whether the layer has a window."""
        made, how = copy.copy(self), self.attending
        if how.rotary is not None:
            made.attending = how._replace(rotary=rotaries[self.device, how.windowed])
        return made

    def __call__(self, x: Activations, batch: Pass, rows: torch.Tensor | None) -> Activations:
        """Compute a micro-batch, see :class:`Layer`; stores all T keys and values."""
        of = self._heads(x, batch)
        x, gate = of.x, of.gate
        attended, scanned = self._attended(of, batch, rows is None or len(rows) > 0)
        if attended is None:
            return x[:0]
        attended = attended.to(x)
        if rows is not None:
            x, attended = x.index_select(0, rows), attended.index_select(0, rows)
        gated: Norm = as_it_is
        if gate is not None:
            gated = self.ops.gate(gate if rows is None else gate.index_select(0, rows))
        if scanned is not None and rows is not None:
            scanned = scanned.index_select(0, rows)
        made = self._added(x, attended, gated, scanned)
        own = batch.embeddings
        if self.embeddings is None or own is None:
            return made
        own = own if rows is None else own.index_select(0, rows)
        return self.embeddings(made, own, self.parts.output_scale)

    def _attended(
        self, of: Heads, batch: Pass, wanted: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The results of attention and of the state space beside it; not ``wanted``: they only keep."""
        heads, ops, how = (of.queries, of.keys, of.values), self.ops, self.attending
        if self.beside is not None and of.projected is not None:
            z, values, steps = self.beside.split(of.projected)
            parts = self.beside.parts
            q, values = ops.finish_and_convolve(heads, how, batch, values, parts)
            scanned = self.beside.scanned(z, values, steps)
            if wanted:
                return ops.attend_and_scan(q, how, batch, scanned, parts)
            return None, ops.scan(scanned, parts, batch)
        if self.latent is not None and self.latent.matrices is not None:
            given = of.queries, self.latent.matrices, how, batch, of.x
            return ops.attend_compressed(*given) if wanted else None, None
        if wanted:
            return ops.finish_and_attend(*heads, how, batch), None
        ops.finish(*heads, how, batch)
        return None, None

    def _added(
        self, x: torch.Tensor, attended: torch.Tensor, gated: Norm, scanned: torch.Tensor | None
    ) -> Activations:
        """The sum with the heads' outputs, ``gated`` first, and with what the feed-forward part makes of it."""
        taken, scale = x, self.config.residual_scale
        whole = self.parts.output_scale if self.embeddings is None else None
        first, second = self.post_norms
        residual, factors = Residual(x, scale, first), Factors(self.parts.output, attended, gated)
        comes_next = isinstance(self.ffn, Dense | DenseAndExperts) and not self.parallel
        made: Activations
        if self.beside is not None and scanned is not None:
            made = self.ops.both(factors, self.beside.factors(scanned), residual)
        elif comes_next and first is not as_it_is:
            made = Sum(self.ops.product(*factors), residual)
        else:
            made = self.ops.product(*factors, residual=residual)
        then = Residual(x, scale, second, whole)
        if isinstance(made, Sum) and isinstance(self.ffn, Dense | DenseAndExperts) and comes_next:
            return self.ffn.after(*made, self.ffn_norm, then)
        x = self.ops.summed(made)
        if self.ffn is None:
            return x
        shared = self.parallel and self.parts.ffn_norm is None
        of = taken if self.parallel else x, self.attn_norm if shared else self.ffn_norm
        return self.ffn(*of, then._replace(x=x))

    def _heads(self, x: Activations, batch: Pass) -> Heads:
        """What the layer's input gives attention, and the state space beside it."""
        if self.latent is not None:
            x = self.ops.summed(x)
            return Heads(x, *self.latent.heads(x, self.attn_norm, self.attending, batch))
        parts, clamp = self.parts, self.config.qkv_clamp
        if parts.qkv is None:
            raise TypeError("a layer without queries")
        projected: torch.Tensor | None = None
        if clamp:
            x = self.ops.summed(x)
            qkv = self.ops.clamped(parts.qkv, x, self.attn_norm, clamp)
        elif self.beside is None:
            x, qkv = self.ops.taken(x, parts.qkv, self.attn_norm)
        else:
            x = self.ops.summed(x)
            qkv, projected = self.products(x, self.attn_norm)
        t = x.shape[0]
        n_q = parts.n_heads * parts.head_dim * (2 if parts.gated else 1)
        n_kv = parts.n_kv_heads if parts.stores else 0
        n_k = n_kv * parts.head_dim
        q, k, v = qkv[:, :n_q], qkv[:, n_q : n_q + n_k], qkv[:, n_q + n_k :]
        if parts.keys_as_values:
            v = k
        gate: torch.Tensor | None = None
        if parts.gated:
            both = q.reshape(t, parts.n_heads, 2, parts.head_dim)
            q, gate = both[:, :, 0], both[:, :, 1]
        return Heads(
            x,
            (q.reshape(t, parts.n_heads, parts.head_dim),),
            (k.reshape(t, n_kv, parts.head_dim),),
            (v.reshape(t, n_kv, parts.head_dim_v),),
            gate,
            projected,
        )


class LatentHeads:
    """Computes queries, keys and values from a layer's input.

    Attributes:
        norm: norm of the compressed keys and values.
        matrices: of compressed keys: the product with the first goes with them, of queries' first parts, and
            that with the second is the heads' outputs, of attention's result; None: keys are not compressed.
        values_in_keys: how many first channels of the keys are the values; 0: values are separate.
    """

    def __init__(
        self, parts: Latent[Linear, torch.Tensor], n_heads: int, eps: float, ops: TorchOps
    ) -> None:
        self._parts, self._n_heads, self._ops = parts, n_heads, ops
        self._products = ops.products([parts.query, parts.compress])
        self._query_norm = ops.norm("rms", parts.query_norm, eps)
        self.norm = ops.norm("rms", parts.norm, eps)
        self.matrices: tuple[EachHead, EachHead] | None = None
        if parts.config.compressed:
            self.matrices = ops.each_head(parts.key_up), ops.each_head(parts.value_up)
        self.values_in_keys = parts.config.rank if parts.config.compressed else 0

    def heads(
        self, x: torch.Tensor, norm: Norm, how: Attending, batch: Pass
    ) -> tuple[HeadParts, HeadParts, HeadParts]:
        """Queries [T, H, D], keys [T, G, D] and values [T, G, Dv] of x [T, n_embd], before the rotation.

        Compressed keys are stored, and not given; queries are before the product that goes with them.
        """
        parts, config, t = self._parts, self._parts.config, x.shape[0]
        (q, low), ups = self._products(x, norm), []
        if parts.expand is not None:
            ups.append(Factors(parts.expand, low[:, : config.rank], self.norm))
        if parts.query_up is not None:
            ups.append(Factors(parts.query_up, q, self._query_norm))
        if parts.expand is None:
            key = low[:, None]
            made = self._ops.keep_and_each((key,), (key[:, :, :0],), how, batch, ups)
        else:
            made = self._ops.each(ups)
        q = q if parts.query_up is None else made.pop()
        q = q.view(t, self._n_heads, config.head_dim)
        plain = config.head_dim - parts.rotated
        if parts.expand is None:
            return (q[:, :, :plain], q[:, :, plain:]), (), ()
        both = made[0].view(t, self._n_heads, plain + config.head_dim_v)
        shared = low[:, None, config.rank :].expand(t, self._n_heads, parts.rotated)
        return (q,), (both[:, :, :plain], shared), (both[:, :, plain:],)
