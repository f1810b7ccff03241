"""A decoder over its cache, in PyTorch: embedding, layers, norm and output matrix."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.builder import Layers
from aleator.cache.devices import checked_device
from aleator.cache.pools.recurrent_batch import RecurrentBatch
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.rows.batch import MicroBatch
from aleator.cache.rows.rows import LayerShape
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.block import Block
from aleator.models.layers.layer import Layer, LayerWeights, Pass, RecurrentLayer
from aleator.models.layers.linear import embedding, linear
from aleator.models.layers.native_linear import StoredLinear, identity
from aleator.models.layers.parameters import parameter
from aleator.models.layers.rms_norm import RMSNorm
from aleator.models.layers.rotary import Rotary

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class Decoder:
    """Weights and what to compute with them; holds no state between calls.

    Attributes:
        config: the model's dimensions.
        device: where the weights are and the work is done.
        dtype: type of weights and activations; attention, states and logits are float32.
        blocks: the layers with attention.
        recurrent: the layers that keep a state.
        layers: all of them, in order.

    """

    def __init__(
        self,
        weights: Weights,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        config, architecture = weights.config, weights.architecture
        if config.rope.scaling == "longrope":
            raise UnsupportedModel(f"{weights.path}: rope scaling 'longrope' is not supported")
        self.architecture, self.config = architecture, config
        self.device, self.dtype = device, dtype
        self.rotary = self.window_rotary = Rotary(config.rope, device, _divisors(weights))
        if config.window is not None:
            self.window_rotary = Rotary(config.window.rope, device)
        shape = (config.n_vocab, config.n_embd)
        self.embedding = embedding(weights, shape, device, dtype)
        self.embedding_scale = math.sqrt(config.n_embd) if architecture.scaled_embedding else 1.0
        self.blocks: list[Block] = []
        self.recurrent: list[RecurrentLayer] = []
        self.layers: list[Layer] = []
        for layer in range(config.n_layers):
            if progress is not None:
                progress(layer, config.n_layers)
            self.layers.append(self._layer(LayerWeights(weights, layer, device, dtype)))
        self.output_norm = RMSNorm(
            parameter(weights, "output_norm.weight", shape[1:], device, dtype), config.rms_eps
        )
        self.head = linear(
            weights,
            ["token_embd" if config.tied else "output"],
            config.n_embd,
            [config.n_vocab],
            device,
            dtype,
        )
        if progress is not None:
            progress(config.n_layers, config.n_layers)

    def hidden(self) -> Decoder:
        """A decoder over the same weights that gives hidden states after the last norm in place of logits.

        Its output matrix is the identity, so native code needs to know nothing of it.
        """
        made = copy.copy(self)
        n = self.config.n_embd
        made.config = replace(self.config, n_vocab=n, logit_softcap=0.0)
        made.head = identity(n) if isinstance(self.head, StoredLinear) else _as_it_is
        return made

    def _layer(self, weights: LayerWeights) -> Layer:
        """The next layer, noted in the list of its kind."""
        config, layer = self.config, weights.layer
        if self.architecture.recurrent is not None and config.keeps_state(layer):
            recurrent = self.architecture.recurrent(weights, len(self.recurrent))
            self.recurrent.append(recurrent)
            return recurrent
        windowed = config.window is not None and config.window.layers[layer]
        index = sum(block.windowed == windowed for block in self.blocks)
        rotary = self.window_rotary if windowed else self.rotary
        block = Block(weights, windowed, index, rotary)
        self.blocks.append(block)
        return block

    @property
    def cache_shapes(self) -> list[LayerShape]:
        """What each layer that sees everything stores in the KV cache."""
        return [block.shape for block in self.blocks if not block.windowed]

    @property
    def window_shapes(self) -> list[LayerShape]:
        """What each layer with a window stores in its own."""
        return [block.shape for block in self.blocks if block.windowed]

    @property
    def recurrent_shapes(self) -> list[RecurrentShape]:
        """What each layer with a state keeps of a sequence."""
        return [layer.shape for layer in self.recurrent]

    @property
    def cache_layers(self) -> Layers:
        """What the layers keep, for a cache to be made."""
        config = self.config
        return Layers(
            config.architecture,
            config.n_layers,
            checked_device("device", self.device),
            self.cache_shapes,
            None if config.window is None else config.window.size,
            self.window_shapes,
            self.recurrent_shapes,
            self.shift_keys,
            self.shift_window_keys,
        )

    def shift_keys(self, layer: int, keys: Any, deltas: Any) -> Any:
        """Rotate stored keys of layers that see everything, in place.

        Args:
            layer: not used: their rotation is one for all.
            keys: float32 [n, G, D].
            deltas: int64 [n], positions to rotate by.

        Returns:
            ``keys``.
        """
        return _shifted(self.rotary, keys, deltas)

    def shift_window_keys(self, layer: int, keys: Any, deltas: Any) -> Any:
        """Rotate stored keys of layers with a window, see :meth:`shift_keys`."""
        return _shifted(self.window_rotary, keys, deltas)

    def forward(
        self,
        inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        cells: MicroBatch | RecurrentBatch,
        wanted: npt.NDArray[np.int64],
        fused: bool = True,
    ) -> torch.Tensor:
        """Compute one micro-batch of T tokens.

        Args:
            inputs: token ids [T], or input vectors [T, n_embd].
            positions: [T].
            cells: where the tokens are stored and what they attend to.
            wanted: ascending indices of the tokens whose logits are computed.
            fused: whether attention may use torch's fused kernel.

        Returns:
            Logits, float32 [len(wanted), n_vocab], on the decoder's device.

        """
        batch = Pass(
            torch.from_numpy(positions).to(self.device), int(positions.max()), cells, fused
        )
        rows = None
        if len(wanted) < len(inputs):
            rows = torch.from_numpy(wanted).to(self.device)
        return self.compute(torch.from_numpy(inputs).to(self.device), batch, rows)

    def compute(
        self, inputs: torch.Tensor, batch: Pass, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute one micro-batch from tensors on the decoder's device, without waiting for it.

        Args:
            inputs: token ids int64 [T], or input vectors [T, n_embd].
            batch: what layers share.
            rows: ascending indices of the tokens whose logits are computed; None: all.

        Returns:
            Logits, float32 [len(rows), n_vocab], on the device.

        """
        if inputs.dim() == 2:
            x = inputs.to(self.dtype)
        else:
            x = self.embedding(inputs)
            if self.embedding_scale != 1.0:
                x = x * self.embedding_scale
        for layer in self.layers[:-1]:
            x = layer(x, batch, None)
        # After the last layer has stored what it must only the wanted rows matter.
        x = self.layers[-1](x, batch, rows)
        logits = self.head(self.output_norm(x)).float()
        cap = self.config.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _shifted(rotary: Rotary, keys: Any, deltas: Any) -> Any:
    """Keys as arrays or tensors, rotated in place."""
    if isinstance(deltas, np.ndarray):
        deltas = torch.from_numpy(deltas)
    if isinstance(keys, np.ndarray):
        return rotary.shift(torch.from_numpy(keys), deltas).numpy()
    return rotary.shift(keys, deltas.to(keys.device))


def _divisors(weights: Weights) -> npt.NDArray[np.float64] | None:
    """The file's per-pair divisors of the rotary frequencies, if it has them."""
    name = "rope_freqs.weight"
    if name not in weights or weights.config.rope.style == "none":
        return None
    weights.expect(name, (weights.config.rope.dim // 2,))
    divisors = weights.tensor(name, torch.float64).numpy()
    if not (divisors > 0).all():
        raise FileFormatError(weights.path, f"tensor {name} must be positive", field=name)
    return divisors


def build_decoder(
    weights: Weights,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """Make the decoder of a model file, its weights read and checked.

    Args:
        weights: the file.
        device: where the work is done.
        dtype: type of weights and activations.
        progress: called with (layers done, layers).

    Raises:
        UnsupportedModel: rotary scaling that is not supported.
        FileFormatError: a tensor is missing, of the wrong shape, or not finite; names it.
    """
    return Decoder(weights, torch.device(device), dtype, progress)
