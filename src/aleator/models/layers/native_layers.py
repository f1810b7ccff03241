"""Layers in native code: how they are appended to the native step of a decoder over one pool.

Rows of the cache are float32: [rows, channels, width - 1] of convolutions, [rows, channels, N] of states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import aleator._native as _native
from aleator.cache.storage.layer import HostLayer
from aleator.core.errors import ParameterError
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.recurrent_parts import (
    DeltaNet,
    FeedForwardAlone,
    HeadSpace,
    ShortConvolution,
    Stateful,
    StateSpace,
)
from aleator.models.layers.stored import Floats, StoredLayer, StoredWeight

if TYPE_CHECKING:
    from aleator.cache.pools.recurrent import RecurrentPool
    from aleator.cache.rows.rows import Rows
    from aleator.cache.storage.storage import Storage
    from aleator.models.layers.parts import Attention, Latent

Stored = list[StoredWeight]
Part = FeedForward[Stored] | Mixture[Stored, Floats]
Matrices = tuple[_native.StoredMatrix, _native.StoredMatrix, _native.StoredMatrix]
Gated = _native.StoredMatrix | None


def stateful(source: StoredLayer, index: int) -> Stateful[Stored, Floats]:
    """The tensors of the ``index``-th layer that keeps a state, of its architecture's kind."""
    kind = source.architecture.recurrent
    if kind == "heads":
        return HeadSpace(source, index)
    if kind == "delta net":
        return DeltaNet(source, index)
    return (ShortConvolution if kind == "short convolution" else StateSpace)(source, index)


def add_attention(step: _native.DecoderStep, block: Attention[Stored, Floats], rows: Rows) -> None:
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
        *_gated(block.ffn),
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
    _add_mixture(step, block.ffn)


def _add_latent(
    step: _native.DecoderStep,
    block: Attention[Stored, Floats],
    latent: Latent[Stored, Floats],
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
        *_gated(block.ffn),
        block.attn_norm,
        block.ffn_norm,
        _memory(rows.keys, block.index),
        None if latent.config.compressed else _memory(rows.values, block.index),
    )
    _add_mixture(step, block.ffn)


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
    step: _native.DecoderStep, layer: Stateful[Stored, Floats], pool: RecurrentPool, beside: bool
) -> None:
    """Append a layer that keeps a state in ``pool``; ``beside``: it belongs to the layer before."""
    conv, state = pool.conv[layer.index], pool.ssm[layer.index]
    feeding = None
    if layer.ffn is not None and layer.ffn_norm is not None:
        feeding = (*_gated(layer.ffn), layer.ffn_norm)
    if isinstance(layer, HeadSpace):
        space = head_space(layer, conv, state)
        if beside:
            step.add_space_beside(space)
            return
        step.add_stateful(space, feeding)
    elif isinstance(layer, ShortConvolution):
        (project,), (output,) = layer.project, layer.output
        short = _native.ShortConvolution(
            project.matrix, output.matrix, layer.norm, *_convolution(layer), conv
        )
        step.add_stateful(short, feeding)
    elif isinstance(layer, DeltaNet):
        step.add_stateful(_delta_net(layer, conv, state), feeding)
    else:
        step.add_stateful(_state_space(layer, conv, state), feeding)
    _add_mixture(step, layer.ffn)


def add_feed_forward(step: _native.DecoderStep, layer: FeedForwardAlone[Stored, Floats]) -> None:
    """Append a layer of nothing but a feed-forward part."""
    step.add_feed_forward((*_gated(layer.ffn), layer.norm))
    _add_mixture(step, layer.ffn)


def _state_space(
    layer: StateSpace[Stored, Floats], conv: Floats, state: Floats
) -> _native.StateSpace:
    (project,), (select,) = layer.project, layer.select
    (time_step,), (output,) = layer.time_step, layer.output
    return _native.StateSpace(
        project.matrix,
        select.matrix,
        time_step.matrix,
        output.matrix,
        layer.norm,
        *_convolution(layer),
        layer.a,
        layer.d,
        conv,
        state,
        layer.norms or [],
        layer.ssm.norm_eps,
    )


def head_space(layer: HeadSpace[Stored, Floats], conv: Floats, state: Floats) -> _native.HeadSpace:
    """A layer whose heads have one decay each."""
    (project,), (output,) = layer.project, layer.output
    return _native.HeadSpace(
        project.matrix,
        output.matrix,
        layer.norm,
        *_convolution(layer),
        layer.time_bias,
        layer.a,
        layer.d,
        layer.ssm.groups,
        layer.ssm.least_step,
        layer.gated_norm,
        layer.norm_groups,
        conv,
        state,
    )


def _delta_net(layer: DeltaNet[Stored, Floats], conv: Floats, state: Floats) -> _native.DeltaNet:
    (qkv,), (gate,), (output,) = layer.qkv, layer.gate, layer.output
    (beta,), (decay,) = layer.beta, layer.decay
    return _native.DeltaNet(
        qkv.matrix,
        gate.matrix,
        beta.matrix,
        decay.matrix,
        output.matrix,
        layer.norm,
        *_convolution(layer),
        layer.a,
        layer.time_bias,
        layer.head_norm,
        layer.net.n_key_heads,
        layer.net.tiled,
        layer.net.unit_eps,
        conv,
        state,
    )


def _convolution(layer: Stateful[Stored, Floats]) -> tuple[Floats, Floats]:
    """Weights [width, channels] and biases of a layer's convolution; those that there are not are 0."""
    weight, bias = layer.conv_weight, layer.conv_bias
    own = np.zeros(len(weight), np.float32) if bias is None else bias
    return np.ascontiguousarray(weight.T), own


def _gated(part: Part | None) -> tuple[Gated, Gated, Gated]:
    """Gate, up and down of a layer, the only matrix in place of a gate that there is not.

    Of a mixture, which ``_native.DecoderStep.add_mixture`` takes, those of the part beside it; None where
    there is no such part.
    """
    if isinstance(part, Mixture):
        part = part.dense
    if part is None:
        return None, None, None
    if part.gated:
        return _matrices(part)
    (up,), (down,) = part.gate_up, part.down
    return up.matrix, None, down.matrix


def _matrices(part: FeedForward[Stored]) -> Matrices:
    gate, up = part.gate_up
    (down,) = part.down
    return gate.matrix, up.matrix, down.matrix


def _add_mixture(step: _native.DecoderStep, part: Part | None) -> None:
    """The feed-forward part of the layer before, where it is a mixture of experts."""
    if not isinstance(part, Mixture):
        return
    config, norms = part.config, part.norms
    (router,) = part.router
    step.add_mixture(
        router.matrix,
        [_matrices(expert) for expert in part.experts],
        None if part.shared is None else _matrices(part.shared),
        part.choice_bias,
        part.shared_router,
        config.n_used,
        config.scores,
        config.normalised,
        config.scale,
        config.n_groups,
        config.n_groups_used,
        config.n_group_best,
        config.weighs_input,
        part.gate,
        part.scales,
        [] if norms is None else [norms.router, norms.expert, norms.dense_post, norms.expert_post],
    )


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
