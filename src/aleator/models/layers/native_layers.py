"""Layers in native code: how they are appended to the native step of a decoder over one pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aleator._native as _native
from aleator.cache.storage.host import HostLayer
from aleator.core.errors import ParameterError
from aleator.models.layers.head_parts import HeadSpace, ShortConvolution
from aleator.models.layers.native_feed_forward import gated_matrices, mixture_arguments
from aleator.models.layers.native_recurrent import (
    Part,
    Stateful,
    delta_net,
    feed_forward_arguments,
    head_space,
    short_convolution,
    space_arguments,
)
from aleator.models.layers.parts import Mixture
from aleator.models.layers.recurrent_parts import DeltaNet

if TYPE_CHECKING:
    from aleator.cache.pools.recurrent import RecurrentPool
    from aleator.cache.rows.rows import Rows
    from aleator.cache.storage import Storage
    from aleator.models.layers.parts import Attention, Latent
    from aleator.models.layers.stored import Floats, StoredWeight


def add_attention(
    step: _native.DecoderStep, block: Attention[list[StoredWeight], Floats], rows: Rows
) -> None:
    """Append a layer with attention, whose keys and values are in ``rows``."""
    (o,) = block.output
    if block.latent is not None:
        _add_latent(step, block, block.latent, rows)
        return
    if block.qkv is None:
        raise TypeError("a layer without queries")
    q, *rest = block.qkv
    k = rest[0].matrix if block.stores else None
    v = rest[1].matrix if len(rest) > 1 else None
    first_post, second_post = block.post_norms or (None, None)
    step.add_layer(
        q.matrix,
        k,
        v,
        o.matrix,
        *((None, None, None) if block.ffn is None else gated_matrices(block.ffn)),
        block.attn_norm,
        block.ffn_norm,
        None if block.q_norm is None else block.q_norm.reshape(-1),
        None if block.k_norm is None else block.k_norm.reshape(-1),
        _memory(rows.keys, block.index),
        _memory(rows.values, block.index),
        first_post,
        second_post,
        block.windowed,
        block.rotated,
        block.sinks,
        block.gated,
        block.grows,
        block.v_norm,
        1.0 if block.output_scale is None else float(block.output_scale[0]),
    )
    add_mixture(step, block.ffn)


def _add_latent(
    step: _native.DecoderStep,
    block: Attention[list[StoredWeight], Floats],
    latent: Latent[list[StoredWeight], Floats],
    rows: Rows,
) -> None:
    """Append a layer whose keys and values are compressed."""
    (o,), (query,), (compress,) = block.output, latent.query, latent.compress
    if block.attn_norm is None or block.ffn_norm is None:
        raise TypeError("a layer with compressed keys and no norms")
    if latent.config.compressed:
        _check_blocks(rows.keys, latent.config.rank)
    step.add_latent_layer(
        query.matrix,
        None if latent.query_up is None else latent.query_up[0].matrix,
        compress.matrix,
        None if latent.expand is None else latent.expand[0].matrix,
        [each.matrix for (each,) in latent.key_up],
        [each.matrix for (each,) in latent.value_up],
        latent.query_norm,
        latent.norm,
        block.n_heads,
        latent.config.head_dim - latent.rotated,
        latent.config.head_dim_v,
        o.matrix,
        *((None, None, None) if block.ffn is None else gated_matrices(block.ffn)),
        block.attn_norm,
        block.ffn_norm,
        _memory(rows.keys, block.index),
        None if latent.config.compressed else _memory(rows.values, block.index),
    )
    add_mixture(step, block.ffn)


def _check_blocks(keys: Storage, rank: int) -> None:
    """Raise ParameterError where the compressed keys, which are values too, end within a block."""
    block = max(keys.rotation, keys.type.block)
    if rank % block:
        raise ParameterError(
            "type_k",
            f"type_k={keys.type.name} stores blocks of {block} channels here, and {rank} compressed ones "
            "are not a multiple: use f32, f16 or bf16",
        )


def add_state(
    step: _native.DecoderStep, layer: Stateful, pool: RecurrentPool, beside: bool
) -> None:
    """Append a layer that keeps a state in ``pool``; ``beside``: it belongs to the layer before."""
    conv, state = pool.conv[layer.index], pool.ssm[layer.index]
    if isinstance(layer, HeadSpace):
        space = head_space(layer, conv, state)
        if beside:
            step.add_space_beside(space)
            return
        step.add_head_space(space, feed_forward_arguments(layer.ffn, layer.ffn_norm))
    elif isinstance(layer, ShortConvolution):
        step.add_short_convolution(
            short_convolution(layer, conv), feed_forward_arguments(layer.ffn, layer.ffn_norm)
        )
    elif isinstance(layer, DeltaNet):
        feeding = feed_forward_arguments(layer.ffn, layer.ffn_norm)
        step.add_delta_net(delta_net(layer, conv, state), feeding)
    else:
        step.add_recurrent_layer(*space_arguments(layer, conv, state))
    add_mixture(step, layer.ffn)


def add_mixture(step: _native.DecoderStep, part: Part | None) -> None:
    """The feed-forward part of the layer before, where it is a mixture of experts."""
    if isinstance(part, Mixture):
        step.add_mixture(*mixture_arguments(part))


def _memory(side: Storage, layer: int) -> _native.CacheMemory:
    """A layer's keys or values, shared, not copied."""
    part = side.parts[layer]
    if not isinstance(part, HostLayer):
        raise TypeError("native code computes over caches on the CPU")
    return _native.CacheMemory(
        part.bytes,
        side.type.native,
        side.n_cells,
        *side.shapes[layer],
        side.by_channel,
        side.rotation,
    )
