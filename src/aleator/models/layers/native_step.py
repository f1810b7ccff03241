"""A micro-batch through a whole decoder in one native call, for decoders whose weights are on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.pools.hybrid_batch import HybridBatch
from aleator.cache.storage.host import HostLayer
from aleator.core.errors import ParameterError
from aleator.core.threads import pool as thread_pool
from aleator.models.layers.head_parts import HeadSpace, ShortConvolution
from aleator.models.layers.native_feed_forward import gated_matrices, mixture_arguments
from aleator.models.layers.native_recurrent import (
    Part,
    Rows,
    Stateful,
    delta_net,
    feed_forward_arguments,
    head_space,
    same_rows,
    short_convolution,
    space_arguments,
)
from aleator.models.layers.parts import Mixture
from aleator.models.layers.recurrent_parts import DeltaNet
from aleator.models.step import HostStep, Inputs

if TYPE_CHECKING:
    from aleator.cache.pools.pool import AnyPool
    from aleator.cache.pools.recurrent import RecurrentPool
    from aleator.cache.pools.window import WindowPool
    from aleator.cache.rows.batch import MicroBatch
    from aleator.cache.rows.rows import Rows as CacheRows
    from aleator.cache.storage import Storage
    from aleator.models.layers.parts import Attention, Latent
    from aleator.models.layers.stored import Floats, StoredWeight
    from aleator.models.native_decoder import NativeDecoder


class NativeStep(HostStep):
    """The decoder's native form over one pool, whose storage it reads and writes in place.

    A token's logits have the same bits for any number of threads, beside any other tokens, and on every
    instruction set (docs/numerics.md, part 2).
    """

    def __init__(self, decoder: NativeDecoder, pool: AnyPool) -> None:
        super().__init__()
        config = decoder.config
        self.n_vocab, self._softcap = config.n_vocab, config.logit_softcap
        self._scale = np.float32(config.logit_scale)
        self._decoder, self._pool = decoder, pool
        self._build()

    def _build(self) -> None:
        decoder, pool = self._decoder, self._pool
        config, rotation = decoder.config, decoder.rotation
        first = decoder.blocks[0]
        step = _native.DecoderStep(
            decoder.embedding.matrix,
            decoder.head.matrix if decoder.head is not None else None,
            decoder.output_norm,
            config.rms_eps,
            first.scale,
            rotation.frequencies,
            rotation.magnitude,
            rotation.interleaved,
            decoder.embedding_scale,
            decoder.gate,
            decoder.window_rotation.frequencies,
            decoder.window_rotation.magnitude,
            pool.first.rows.k_storage == "raw",
            layer_norm=decoder.architecture.norm == "layer",
            head_norm=max(block.head_norm_kind for block in decoder.blocks),  # "" of layers without
            residual_scale=config.residual_scale,
            softcap=config.attention_softcap,
            clamp=config.qkv_clamp,
            parallel=decoder.architecture.parallel,
            embedding_norm=decoder.embedding_norm,
            slopes=decoder.slopes,
            position_embedding=None if decoder.positions is None else decoder.positions.matrix,
            rotated_from=rotation.offset,
        )
        if decoder.layer_embeddings is not None and decoder.embedding_table is not None:
            (projection,) = decoder.layer_embeddings.projection
            step.set_per_layer(
                decoder.embedding_table.matrix, projection.matrix, decoder.layer_embeddings.norm
            )
        states = pool.recurrent if isinstance(pool, HybridPool) else None
        blocks, spaces = iter(decoder.blocks), iter(decoder.recurrent)
        feeding = iter(decoder.feeding)
        for layer in range(config.n_layers):
            if config.attends(layer):
                self._add(step, next(blocks))
            if decoder.embedding_parts:
                part = decoder.embedding_parts[layer]
                (project,), (output,) = part.project, part.output
                step.add_per_layer(project.matrix, output.matrix, part.norm)
            if states is not None and decoder.keeps_state(layer):
                _add_state(step, next(spaces), states, beside=config.attends(layer))
            elif not config.attends(layer):
                alone = next(feeding)
                step.add_feed_forward((*gated_matrices(alone.ffn), alone.norm))
                _add_mixture(step, alone.ffn)
        # Together, and last: what interrupts leaves the step before, or none that is believed.
        self._rows: tuple[Rows, Rows] | None = None
        self._step, self._rows = step, None if states is None else (states.conv[0], states.ssm[0])

    def _add(self, step: _native.DecoderStep, block: Attention[list[StoredWeight], Floats]) -> None:
        window = _window(self._pool)
        rows = (window if block.windowed and window is not None else self._pool.first).rows
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
        _add_mixture(step, block.ffn)

    def run(
        self,
        inputs: Inputs,
        positions: npt.NDArray[np.int32],
        cells: MicroBatch | HybridBatch,
        wanted: npt.NDArray[np.int64],
        n_threads: int | None = None,
    ) -> npt.NDArray[np.float32]:
        """See :class:`~aleator.models.step.Step`."""
        self._decoder.check_positions(positions)
        logits = np.empty((len(wanted), self.n_vocab), np.float32)
        vectors = inputs.ndim == 2
        window = cells.window if isinstance(cells, HybridBatch) else None
        base = cells.base if isinstance(cells, HybridBatch) else cells
        states = cells.recurrent if isinstance(cells, HybridBatch) else None
        other = states is not None and not same_rows(self._rows, states.conv, states.ssm)
        if self._inherits(self._step) or other:
            self._build()
        self._step.run(
            thread_pool(n_threads),
            None if vectors else inputs.astype(np.int64, copy=False),
            inputs.astype(np.float32, copy=False) if vectors else None,
            positions,
            base.slots,
            *base.seen,
            wanted,
            logits,
            None if window is None else (window.slots, *window.seen, window.first, window.sunk),
            None
            if states is None
            else (states.starts, states.sources, states.order, states.stores),
            None if self._decoder.slopes is None else base.seen_positions(),
            self._decoder.query_scales(positions),
        )
        if self._scale != 1:
            logits *= self._scale
        if self._softcap:
            _native.soften_logits(logits, self._softcap)
        return logits


def _add_latent(
    step: _native.DecoderStep,
    block: Attention[list[StoredWeight], Floats],
    latent: Latent[list[StoredWeight], Floats],
    rows: CacheRows,
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


def _add_state(
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
    _add_mixture(step, layer.ffn)


def _add_mixture(step: _native.DecoderStep, part: Part | None) -> None:
    """The feed-forward part of the layer before, where it is a mixture of experts."""
    if isinstance(part, Mixture):
        step.add_mixture(*mixture_arguments(part))


def _window(pool: AnyPool) -> WindowPool | None:
    """The pool of layers with a window, if there are any."""
    return pool.window if isinstance(pool, HybridPool) else None


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
