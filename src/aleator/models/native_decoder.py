"""A decoder in native code, on the CPU, and its steps: a micro-batch through all layers in one native call.

Weights stay in the file's memory map, in their stored types.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import aleator._native as _native
from aleator.cache.devices import Device
from aleator.cache.pools.attention import first_of
from aleator.cache.pools.hybrid import HybridBatch, HybridPool, parts_of
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.core.arrays import Floats, Int32s, Int64s
from aleator.core.threads import pool as thread_pool
from aleator.models import adapted
from aleator.models.adapters import Rows
from aleator.models.decoder import Decoder, Progress
from aleator.models.layers.layer_source import Matrix, mixed_experts
from aleator.models.layers.native_layers import Stored, add_attention
from aleator.models.layers.parts import TABLE, Attention, LayerEmbedding, LayerEmbeddings, gate_of
from aleator.models.layers.recurrent_parts import FeedForwardAlone, Stateful, stateful
from aleator.models.layers.stored import StoredLayer, StoredWeight, stored_weight
from aleator.models.placement import ON_CPU
from aleator.models.step import Draw, Inputs, Step

if TYPE_CHECKING:
    from aleator.cache.rows.batch import MicroBatch
    from aleator.models.weights import Weights


class NativeDecoder(Decoder):
    """A decoder in native code; activations are float32.

    Attributes:
        embedding: token embeddings, [n_vocab, n_embd].
        head: the output matrix; None: hidden states instead of logits.
        n_layers: how many of the first layers it computes.
        output_norm: the last norm; None: returns the next layer's input.
        embedding_norm: the norm of embeddings, if there is one.
        positions: the vectors of positions, if there are any.
        gate: the activation of feed-forward parts.
        blocks: the layers with attention.
        recurrent: the layers that keep a state.
        feeding: the layers that are only a feed-forward part.
        layer_embeddings: the embeddings of tokens for each layer, if there are any.
        embedding_table: the table of these embeddings.
        embedding_parts: what each layer does with them.
    """

    adapts = True

    def __init__(
        self, weights: Weights, progress: Progress | None = None, n_layers: int | None = None
    ) -> None:
        """Read the tensors of the first ``n_layers`` layers and those before them; None: of all layers."""
        config = weights.config
        self.n_layers = config.n_layers if n_layers is None else n_layers
        super().__init__(weights, [ON_CPU] * config.n_layers)
        weights.mapped.guard()
        shape = (config.n_vocab, config.n_embd)
        self.embedding = stored_weight(weights, "token_embd", *shape)
        self.blocks: list[Attention[Stored, Floats]] = []
        self.recurrent: list[Stateful[Stored, Floats]] = []
        self.feeding: list[FeedForwardAlone[Stored, Floats]] = []
        self.embedding_parts: list[LayerEmbedding[Stored, Floats]] = []
        for layer in range(self.n_layers):
            if progress is not None:
                progress(layer, config.n_layers)
            source = StoredLayer(weights, layer)
            if self.keeps_state(layer):
                self.recurrent.append(stateful(source, len(self.recurrent)))
            elif not config.attends(layer):
                self.feeding.append(FeedForwardAlone(source))
            if not config.attends(layer):
                continue
            self.blocks.append(Attention(source, self.windowed(layer), self.cache_index(layer)))
            if config.per_layer is not None:
                self.embedding_parts.append(LayerEmbedding(source))
        outside, architecture = StoredLayer(weights, -1), self.architecture
        self.layer_embeddings: LayerEmbeddings[Stored, Floats] | None = None
        self.embedding_table: StoredWeight | None = None
        if config.per_layer is not None:
            self.layer_embeddings = LayerEmbeddings(outside)
            sizes = config.per_layer.n_vocab, config.n_layers * config.per_layer.width
            self.embedding_table = stored_weight(weights, TABLE, *sizes)
        self.gate = gate_of(outside)
        normed = architecture.embedding_norm
        self.embedding_norm = outside.norm("token_embd_norm") if normed else None
        self.positions: StoredWeight | None = None
        if self.n_positions is not None:
            sizes = self.n_positions, config.n_embd
            self.positions = stored_weight(weights, "position_embd", *sizes)
        self.output_norm: Floats | None = None
        self.head: StoredWeight | None = None
        if self.n_layers == config.n_layers:
            if architecture.output_norm:
                self.output_norm = outside.norm(architecture.output_norm)
            self.head = self.embedding
            if not config.tied:
                self.head = stored_weight(weights, "output", *shape)
        weights.check.start()
        if progress is not None:
            progress(config.n_layers, config.n_layers)

    def use_rotations(self) -> None:
        """See :meth:`Decoder.use_rotations`; steps read the rotations when they are made."""

    def tap(self, layers: Sequence[int]) -> None:
        """Have steps give the inputs of these layers too, before anything computes."""
        self.tapped = np.array(layers, np.int64)

    def drop_head(self) -> None:
        self.head = None

    def over(self, pool: Pool, fused: bool = True) -> Step:
        return NativeStep(self, pool)

    def step(self, raw_keys: bool = False) -> _native.DecoderStep:
        """A native step without layers; ``raw_keys``: the cache stores keys unrotated."""
        config, architecture = self.config, self.architecture
        return _native.DecoderStep(
            SimpleNamespace(
                embedding=[self.embedding],
                output=None if self.head is None else [self.head],
                output_norm=self.output_norm,
                rotation=self.rotation,
                window_rotation=self.window_rotation,
                eps=config.rms_eps,
                attention_scale=self.blocks[0].scale if self.blocks else 1.0,
                embedding_scale=self.embedding_scale,
                gate=self.gate,
                raw_keys=raw_keys,
                layer_norm=architecture.norm == "layer",
                head_norm=max((each.head_norm_kind for each in self.blocks), default=""),
                residual_scale=config.residual_scale,
                softcap=config.attention_softcap,
                clamp=config.qkv_clamp,
                parallel=config.parallel,
                norm_sums=architecture.sum_norm,
                embedding_norm=self.embedding_norm,
                slopes=self.slopes,
                position_embedding=None if self.positions is None else [self.positions],
            )
        )

    def adapt(self, step: _native.DecoderStep) -> None:
        """Give a step the adapters of its matrices."""
        for number, adapter in enumerate(self.adapters.loaded):
            for name, added in adapter.matrices.items():
                a = StoredWeight(Matrix(name, added.a, None)).matrix
                b = added.b.data, added.b.type
                if name == adapted.EMBEDDING:
                    step.adapt_embedding(number, a, *b, added.factor)
                elif (matrix := adapted.matrix(self.weights, name)) is not None:
                    step.adapt(matrix.data, number, a, *b, added.factor, added.grows)


inherited: list[object] = []
# Native steps that a forked child inherits.  A thread of the parent may have been inside one: its lock may be
# held and its buffers half made.  So it is neither used nor freed.


class NativeStep(Step):
    """A native decoder over one pool, whose cells and states it reads and writes in place.

    A token's logits have the same bits for any number of threads, beside any other tokens, and on every
    instruction set (docs/numerics.md, part 2).
    """

    def __init__(self, decoder: NativeDecoder, pool: Pool) -> None:
        self._process, config = os.getpid(), decoder.config
        self.n_vocab, self._softcap = config.n_vocab, config.logit_softcap
        self._scale = np.float32(config.logit_scale)
        self._decoder, self._pool = decoder, pool
        self._kinds = {block.windowed for block in decoder.blocks}
        self._build()

    def _build(self) -> None:
        decoder, pool = self._decoder, self._pool
        config = decoder.config
        first = None if isinstance(pool, RecurrentPool) else first_of(pool)
        windows, states = first, pool if isinstance(pool, RecurrentPool) else None
        if isinstance(pool, HybridPool):
            windows, states = pool.window or first, pool.recurrent
        step = decoder.step(raw_keys=first is not None and first.rows.k_storage == "raw")
        if decoder.layer_embeddings is not None and decoder.embedding_table is not None:
            step.set_per_layer(decoder.embedding_table.matrix, decoder.layer_embeddings)
        blocks, spaces = iter(decoder.blocks), iter(decoder.recurrent)
        feeding, kind = iter(decoder.feeding), decoder.architecture.recurrent
        for layer in range(decoder.n_layers):
            attends = config.attends(layer)
            if first is not None and windows is not None and attends:
                block = next(blocks)
                add_attention(step, block, (windows if block.windowed else first).rows)
            if decoder.embedding_parts:
                step.add_per_layer(decoder.embedding_parts[layer])
            if states is not None and kind is not None and decoder.keeps_state(layer):
                space = next(spaces)
                step.add_state(
                    kind, space, states.conv[space.index], states.ssm[space.index], attends
                )
            elif not attends:
                step.add_feed_forward(next(feeding))
        decoder.adapt(step)
        # Together, and last: an interrupt leaves the earlier step, or none that counts as valid.
        self._rows: tuple[Floats, Floats] | None = None
        self._step, self._rows = step, None if states is None else (states.conv[0], states.ssm[0])

    def run(
        self,
        inputs: Inputs,
        positions: Int32s,
        cells: MicroBatch | HybridBatch | RecurrentBatch,
        outputs: Int64s,
        n_threads: int | None = None,
        draw: Draw | None = None,
        adapters: Rows | None = None,
    ) -> Floats:
        self._decoder.check_positions(positions)
        logits = np.empty((len(outputs), self.n_vocab), np.float32)
        vectors = inputs.ndim == 2
        base, window, states = parts_of(cells)
        other = states is not None and not _same_rows(self._rows, states.conv, states.ssm)
        if self._inherits(self._step) or other:
            self._build()
        seen = _nothing_seen(len(positions))
        far = runs = distances = None
        if base is not None and False in self._kinds:
            seen = base.cell_ids, *base.seen
        if window is not None and True in self._kinds:
            far = (window.cell_ids, *window.seen, window.first, window.sunk)
        if states is not None and self._decoder.recurrent:
            runs = (states.starts, states.sources, states.order, states.stores)
        if base is not None and self._decoder.slopes is not None:
            distances = base.seen_positions()
        tapped, taps = self._decoder.tapped, None
        if len(tapped):
            self.taps = np.empty(
                (len(positions), len(tapped), self._decoder.config.n_embd), np.float32
            )
            taps = tapped, self.taps
        self._step.run(
            thread_pool(n_threads),
            None if vectors else np.asarray(inputs, np.int64),
            np.asarray(inputs, np.float32) if vectors else None,
            positions,
            *seen,
            outputs,
            logits,
            far,
            runs,
            distances,
            self._decoder.query_scales(positions),
            adapters,
            taps,
        )
        self._decoder.weights.mapped.check()
        if self._scale != 1:
            logits *= self._scale
        if self._softcap:
            _native.soften_logits(logits, self._softcap)
        return logits

    def _inherits(self, step: object) -> bool:
        """Whether ``step`` was inherited by a fork's child; it is put aside and must be made again."""
        if self._process == os.getpid():
            return False
        inherited.append(step)
        self._process = os.getpid()
        return True

    def joined(self, parts: Sequence[Any], order: Int64s | None, device: Device) -> Any:
        rows: Floats = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if order is not None:
            rows = rows[order]
        if device.type == "cpu":
            return rows
        from aleator.cache.storage.tensors import to_device  # only if a device is asked for

        return to_device(rows, device)


def _nothing_seen(n: int) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Cells and lists of ``n`` tokens if no layer attends."""
    none = np.zeros(n, np.int64)
    return none, np.zeros(0, np.int32), np.zeros(2, np.int64), none.astype(np.int32), none, None


def _same_rows(
    known: tuple[Floats, Floats] | None, convs: list[Floats], states: list[Floats]
) -> bool:
    """Whether a step was made for these rows of the cache; a cache that grows gets new rows."""
    return known is not None and known[0] is convs[0] and known[1] is states[0]


def why_not_native(weights: Weights) -> str:
    """What native code cannot compute of a model; "" if nothing."""
    config, architecture = weights.config, weights.architecture
    mixed = mixed_experts(weights)
    if mixed:
        return f"experts that are stored in several types ({mixed})"
    states = [config.keeps_state(layer) for layer in range(config.n_layers)]
    attends = any(config.attends(layer) for layer in range(config.n_layers))
    plain = attends or (all(states) and not config.n_ff and not architecture.state_norm)
    return "" if plain else f"the architecture {architecture.name!r}"
