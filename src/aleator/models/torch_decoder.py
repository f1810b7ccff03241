"""A decoder over its cache in PyTorch: embedding, layers, norm and output matrix.

It computes on devices, and is the readable form of what native decoders compute on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aleator.cache.devices import Device
from aleator.cache.pools.pool import Pool
from aleator.cache.storage.tensors import torch_device
from aleator.core.arrays import Int32s, Int64s
from aleator.core.errors import DeviceOutOfMemory
from aleator.models.adapters import Rows
from aleator.models.block import Block
from aleator.models.decoder import Decoder, Progress
from aleator.models.layers.feed_forward import FeedForwardLayer
from aleator.models.layers.layer import Layer, LayerWeights
from aleator.models.layers.linear import DTYPES, Embedding, Linear
from aleator.models.layers.norms import as_it_is
from aleator.models.layers.operands import Activations, Sum
from aleator.models.layers.passes import Pass
from aleator.models.layers.per_layer import TokenEmbeddings
from aleator.models.layers.recurrent import (
    DeltaNetLayer,
    HeadSpaceLayer,
    MambaLayer,
    ShortConvolutionLayer,
)
from aleator.models.layers.rotary import Rotary
from aleator.models.placement import Place
from aleator.models.step import Draw, Inputs, Step

if TYPE_CHECKING:
    from aleator.models.weights import Weights


Stateful = MambaLayer | HeadSpaceLayer | ShortConvolutionLayer | DeltaNetLayer
STATEFUL: dict[str, type[Stateful]] = {
    "state space": MambaLayer,
    "heads": HeadSpaceLayer,
    "short convolution": ShortConvolutionLayer,
    "delta net": DeltaNetLayer,
}
"""Layers that keep a state, by their names in architectures."""


def in_torch(decoder: Decoder) -> TorchDecoder:
    """Return the decoder if it is in PyTorch, else one in PyTorch of the same model."""
    if isinstance(decoder, TorchDecoder):
        return decoder
    return TorchDecoder(decoder.weights, decoder.places)


class TorchDecoder(Decoder):
    """A decoder in PyTorch.

    Attributes:
        at: each layer's device, as PyTorch names it, and the type of its weights and activations.
        first: the first layer that is computed here; the part before it gives vectors instead of tokens.
        where: that layer's device, which receives the tokens.
        blocks: the layers with attention.
        recurrent: the layers that keep a state.
        layers: all of them, in order.
    """

    source: type[LayerWeights] = LayerWeights
    """The class that reads a layer's tensors and has their operations."""

    def __init__(
        self,
        weights: Weights,
        places: Sequence[Place],
        progress: Progress | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(weights, places)
        config, self.first = weights.config, first
        self.at = [(torch_device(place.device), DTYPES[place.dtype]) for place in places]
        self.where, last = self.at[first][0], self.at[-1]
        self._rotaries = self._made_rotaries()
        outside, after = self.source(weights, -1, *self.at[first]), self.source(weights, -1, *last)
        self.embedding: Embedding | None = None
        if not first:
            shape = config.n_vocab, config.n_embd
            self.embedding = outside.embedding("token_embd", shape)
        self.blocks: list[Block] = []
        self.recurrent: list[Stateful] = []
        self.layers: list[Layer] = []
        for layer in range(first, config.n_layers):
            if progress is not None:
                progress(layer, config.n_layers)
            self.layers.append(self._layer(self.source(weights, layer, *self.at[layer])))
        kind, norm = self.architecture.norm, outside.ops.norm
        self.output_norm = norm(kind, after.norm(self.architecture.output_norm), config.rms_eps)
        self.embedding_norm = norm(
            kind,
            outside.norm("token_embd_norm") if self.architecture.embedding_norm else None,
            config.rms_eps,
        )
        self.layer_embeddings = TokenEmbeddings(outside) if config.per_layer is not None else None
        self.positions: torch.Tensor | None = None
        if self.n_positions is not None and not first:
            self.positions = outside.values("position_embd.weight", self.n_positions, config.n_embd)
        head = "token_embd" if config.tied else "output"
        self.head: Linear = after.matrix([head], config.n_embd, [config.n_vocab])
        weights.check.start()
        if progress is not None:
            progress(config.n_layers, config.n_layers)

    def _layer(self, weights: LayerWeights) -> Layer:
        """Make the next layer and add it to the list of its kind."""
        layer = weights.layer
        attends, beside = self.config.attends(layer), None
        if self.keeps_state(layer):
            kind = self.architecture.recurrent
            index = sum(map(self.keeps_state, range(layer)))
            recurrent = STATEFUL["state space" if kind is None else kind](weights, index)
            self.recurrent.append(recurrent)
            if not attends:
                return recurrent
            beside = recurrent if isinstance(recurrent, HeadSpaceLayer) else None
        elif not attends:
            return FeedForwardLayer(weights)
        windowed, index = self.windowed(layer), self.cache_index(layer)
        rotary = self._rotaries[weights.device, windowed]
        block = Block(weights, windowed, index, rotary, self.slopes, beside)
        self.blocks.append(block)
        return block

    def use_rotations(self) -> None:
        self._rotaries = self._made_rotaries()
        layers, self.layers, self.blocks = self.layers, [], []
        for layer in layers:
            if isinstance(layer, Block):
                layer = layer.with_rotaries(self._rotaries)
                self.blocks.append(layer)
            self.layers.append(layer)

    def _made_rotaries(self) -> dict[tuple[torch.device, bool], Rotary]:
        """The rotations of queries and keys on each device, of layers with and without a window."""
        made: dict[tuple[torch.device, bool], Rotary] = {}
        for device in dict.fromkeys(device for device, _ in self.at):
            made[device, False] = made[device, True] = Rotary(self.rotation, device)
            if self.config.window is not None:
                made[device, True] = Rotary(self.window_rotation, device)
        return made

    def rotary_of(self, windowed: bool) -> Rotary:
        """The rotation of layers with a window or of the others, on the first layer's device."""
        return self._rotaries[self.where, windowed]

    def drop_head(self) -> None:
        self.head = as_it_is

    def over(self, pool: Pool, fused: bool = True) -> TensorStep:
        return TensorStep(self, fused)

    def shift_keys(self, layer: int, keys: Any, deltas: Any, windowed: bool = False) -> Any:
        """Keys may be tensors, on any device."""
        if isinstance(keys, np.ndarray) or not self._rotates(layer, windowed):
            return super().shift_keys(layer, keys, deltas, windowed)
        rotary = self.rotary_of(windowed)
        return rotary.shift(keys, torch.as_tensor(deltas, device=keys.device))

    def compute(
        self, inputs: torch.Tensor, batch: Pass, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute one micro-batch from tensors on the first layer's device, without waiting for it.

        Inputs are as in :meth:`Step.run`.  ``rows``, on the last layer's device, are the ascending indices of
        tokens whose logits are computed; None: all.
        """
        x: Activations = inputs if self.first else self._embedded(inputs, batch)
        own, ops = self.at[self.first :], self.source.ops
        shared = {own[0]: batch}
        for index, (layer, at) in enumerate(zip(self.layers, own, strict=True), 1):
            if at not in shared:
                shared[at] = batch.moved(*at)
            # Once the last layer has stored its keys and values, only the rows of outputs matter.
            x = x if isinstance(x, Sum) else x.to(*at)
            x = layer(x, shared[at], rows if index == len(self.layers) else None)
        logits = ops.taken(x, self.head, self.output_norm)[1].float()
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        cap = self.config.logit_softcap
        return ops.soften(logits, cap) if cap else logits

    def _embedded(self, inputs: torch.Tensor, batch: Pass) -> torch.Tensor:
        """The input of the first layer."""
        if inputs.dim() == 2 or self.embedding is None:
            x = inputs.to(self.at[0][1])
        else:
            x = self.embedding(inputs)
            if self.embedding_scale != 1.0:
                x = x * self.embedding_scale
        if self.positions is not None:
            x = x + self.positions.index_select(0, batch.positions)
        x = self.embedding_norm(x)
        if self.layer_embeddings is not None:
            ids = inputs if inputs.dim() == 1 else None
            batch.embeddings = self.layer_embeddings(ids, x)
        return x


@contextmanager
def named_memory(device: torch.device, tokens: int) -> Iterator[None]:
    """Turn PyTorch's error about missing device memory into the package's, with the number of tokens."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        error.__traceback__ = None  # its frames hold the step's tensors
        raise DeviceOutOfMemory(str(device), tokens, str(error)) from None


class TensorStep(Step):
    """A decoder in PyTorch over any cache; ``fused``: whether attention may use PyTorch's fused kernel."""

    def __init__(self, decoder: TorchDecoder, fused: bool) -> None:
        self._decoder, self._fused = decoder, fused

    @torch.inference_mode()
    def run(
        self,
        inputs: Inputs,
        positions: Int32s,
        cells: Any,
        outputs: Int64s,
        n_threads: int | None = None,
        draw: Draw | None = None,
        adapters: Rows | None = None,
    ) -> torch.Tensor:
        """See :class:`Step`; None leaves PyTorch's own threads.  Logits are on the last layer's device."""
        if n_threads is not None and n_threads != torch.get_num_threads():
            torch.set_num_threads(n_threads)
        decoder, where = self._decoder, self._decoder.where
        decoder.check_positions(positions)
        with named_memory(where, len(inputs)):
            scales = decoder.query_scales(positions)
            of_queries = None if scales is None else torch.from_numpy(scales).to(where)
            at = torch.from_numpy(positions).to(where)
            batch = Pass(at, int(positions.max()), cells, self._fused, of_queries)
            rows = None
            if len(outputs) < len(inputs):
                rows = torch.from_numpy(outputs).to(decoder.at[-1][0])
            return decoder.compute(torch.from_numpy(inputs).to(where), batch, rows)

    @torch.inference_mode()
    def joined(self, parts: Sequence[Any], order: Int64s | None, device: Device) -> Any:
        with named_memory(parts[0].device, sum(map(len, parts))):
            rows: torch.Tensor = parts[0] if len(parts) == 1 else torch.cat(list(parts))
            if order is not None:
                rows = rows[torch.from_numpy(order).to(rows.device)]
        if device.type == "cpu":
            return rows.cpu().numpy()
        return rows.to(torch_device(device))
