"""A decoder in native code, on the CPU: weights stay in the file's memory map, in their stored types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.cache.pools.pool import AnyPool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.models.decoder import Decoder, Progress
from aleator.models.layers.expert_tensors import mixed_experts
from aleator.models.layers.head_parts import FeedForwardAlone
from aleator.models.layers.native_recurrent import Stateful, stateful
from aleator.models.layers.native_ssm import NativeSSM
from aleator.models.layers.native_step import NativeStep
from aleator.models.layers.parts import Attention, gate_of
from aleator.models.layers.per_layer_parts import TABLE, LayerEmbedding, LayerEmbeddings
from aleator.models.layers.stored import (
    Floats,
    StoredLayer,
    StoredWeight,
    stored_weight,
)
from aleator.models.placement import ON_CPU
from aleator.models.step import Step

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class NativeDecoder(Decoder):
    """A decoder in native code; activations are float32.

    Attributes:
        embedding: of tokens, [n_vocab, n_embd].
        head: the output matrix; None: hidden states are given in place of logits.
        output_norm: the last normalisation.
        embedding_norm: that of embeddings, if there is one.
        positions: the vectors of positions, if there are any.
        gate: the activation of feed-forward parts.
        blocks: the layers with attention.
        recurrent: the layers that keep a state.
        feeding: those that are nothing but a feed-forward part.
        layer_embeddings: the embeddings of tokens for each layer, if there are any.
        embedding_table: the table of these.
        embedding_parts: what layers do with them, one for each layer.

    """

    def __init__(self, weights: Weights, progress: Progress | None = None) -> None:
        config = weights.config
        super().__init__(weights, [ON_CPU] * config.n_layers)
        shape = (config.n_vocab, config.n_embd)
        self.embedding = stored_weight(weights, "token_embd", *shape, bias=False)
        self.blocks: list[Attention[list[StoredWeight], Floats]] = []
        self.recurrent: list[Stateful] = []
        self.feeding: list[FeedForwardAlone[list[StoredWeight], Floats]] = []
        self.embedding_parts: list[LayerEmbedding[list[StoredWeight], Floats]] = []
        for layer in range(config.n_layers):
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
        outside = StoredLayer(weights, -1)
        self.layer_embeddings: LayerEmbeddings[list[StoredWeight], Floats] | None = None
        self.embedding_table: StoredWeight | None = None
        if config.per_layer is not None:
            self.layer_embeddings = LayerEmbeddings(outside)
            sizes = config.per_layer.n_vocab, config.n_layers * config.per_layer.width
            self.embedding_table = stored_weight(weights, TABLE, *sizes, bias=False)
        self.gate = gate_of(outside)
        self.output_norm = outside.norm(self.architecture.output_norm)
        self.embedding_norm: Floats | None = None
        if self.architecture.embedding_norm:
            self.embedding_norm = outside.norm("token_embd_norm")
        self.positions: StoredWeight | None = None
        if self.n_positions is not None:
            self.positions = stored_weight(
                weights, "position_embd", self.n_positions, config.n_embd, bias=False
            )
        self.head: StoredWeight | None = self.embedding
        if not config.tied:
            self.head = stored_weight(weights, "output", *shape, bias=False)
        weights.check.start()
        if progress is not None:
            progress(config.n_layers, config.n_layers)

    def use_rotations(self) -> None:
        """See :meth:`Decoder.use_rotations`: steps ask for them when they are made."""

    def drop_head(self) -> None:
        """See :meth:`Decoder.drop_head`."""
        self.head = None

    def over(self, pool: AnyPool, fused: bool = True) -> Step:
        """See :meth:`Decoder.over`."""
        if isinstance(pool, RecurrentPool):
            return NativeSSM(self, pool)
        return NativeStep(self, pool)


def why_not_native(weights: Weights) -> str:
    """What native code does not compute of a model; "" if nothing."""
    config, architecture = weights.config, weights.architecture
    mixed = mixed_experts(weights)
    if mixed:
        return f"experts that are stored in several types ({mixed})"
    states = [config.keeps_state(layer) for layer in range(config.n_layers)]
    attends = any(config.attends(layer) for layer in range(config.n_layers))
    plain = attends or (all(states) and not config.n_ff and not architecture.state_norm)
    return "" if plain else f"the architecture {architecture.name!r}"
