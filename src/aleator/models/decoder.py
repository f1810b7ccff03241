"""A decoder: a model's weights, and what to compute with them over a cache."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aleator.cache.builder import Layers
from aleator.cache.devices import Device
from aleator.cache.pools.pool import AnyPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.rows.rows import LayerShape
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.layers.parts import state_shape
from aleator.models.layers.rotation import Rotation
from aleator.models.step import Step

if TYPE_CHECKING:
    from aleator.models.weights import Weights

Progress = Callable[[int, int], None]
"""Called with (layers done, layers)."""

ARITHMETIC_VERSION = 2
"""Of docs/numerics.md, part 2: with another one, equal weights and tokens may have other logits."""


class Decoder(ABC):
    """Weights and what to compute with them; holds no state between calls.

    Attributes:
        weights: the file.
        config: the model's dimensions.
        architecture: how its layers are made.
        device: where the weights are and the work is done.
        dtype: type of weights and activations: "float32", "float16" or "bfloat16"; attention, states and logits
            are float32.
        rotation: of queries and keys of layers that see everything.
        window_rotation: of those of layers with a window.
        embedding_scale: what embeddings of tokens are multiplied by.
    """

    def __init__(self, weights: Weights, device: Device, dtype: str) -> None:
        config = weights.config
        if config.rope.scaling == "longrope":
            raise UnsupportedModel(f"{weights.path}: rope scaling 'longrope' is not supported")
        self.weights, self.config, self.architecture = weights, config, weights.architecture
        self.device, self.dtype = device, dtype
        self.rotation = self.window_rotation = Rotation(config.rope, _divisors(weights))
        if config.window is not None:
            self.window_rotation = Rotation(config.window.rope)
        scaled = weights.architecture.scaled_embedding
        self.embedding_scale = math.sqrt(config.n_embd) if scaled else 1.0

    @abstractmethod
    def over(self, pool: AnyPool, fused: bool = True) -> Step:
        """What computes micro-batches over a cache that was made for :attr:`cache_layers`.

        Args:
            pool: of the cache.
            fused: whether attention may use PyTorch's fused kernel.
        """

    def hidden(self) -> Decoder:
        """A decoder over the same weights that gives hidden states after the last norm in place of logits."""
        made = copy.copy(self)
        made.config = replace(self.config, n_vocab=self.config.n_embd, logit_softcap=0.0)
        made.drop_head()
        return made

    @abstractmethod
    def drop_head(self) -> None:
        """Have the output matrix give its input."""

    def keeps_state(self, layer: int) -> bool:
        """Whether a layer keeps a state instead of attending."""
        return self.architecture.recurrent is not None and self.config.keeps_state(layer)

    def windowed(self, layer: int) -> bool:
        """Whether a layer's tokens see a window of positions."""
        window = self.config.window
        return window is not None and window.layers[layer]

    def _attending(self, windowed: bool) -> list[LayerShape]:
        config = self.config
        return [
            LayerShape(config.n_kv_heads[layer], config.head_dim, config.head_dim_v)
            for layer in range(config.n_layers)
            if not self.keeps_state(layer) and self.windowed(layer) == windowed
        ]

    @property
    def cache_shapes(self) -> list[LayerShape]:
        """What each layer that sees everything stores in the KV cache."""
        return self._attending(False)

    @property
    def window_shapes(self) -> list[LayerShape]:
        """What each layer with a window stores in its own."""
        return self._attending(True)

    @property
    def recurrent_shapes(self) -> list[RecurrentShape]:
        """What each layer with a state keeps of a sequence."""
        n = sum(self.keeps_state(layer) for layer in range(self.config.n_layers))
        return [state_shape(self.config)] * n if n else []

    @property
    def cache_layers(self) -> Layers:
        """What the layers keep, for a cache to be made."""
        config = self.config
        return Layers(
            config.architecture,
            config.n_layers,
            self.device,
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
        return self.rotation.shift(keys, deltas)

    def shift_window_keys(self, layer: int, keys: Any, deltas: Any) -> Any:
        """Rotate stored keys of layers with a window, see :meth:`shift_keys`."""
        return self.window_rotation.shift(keys, deltas)


def _divisors(weights: Weights) -> npt.NDArray[np.float64] | None:
    """The file's per-pair divisors of the rotary frequencies, if it has them."""
    name = "rope_freqs.weight"
    if name not in weights or weights.config.rope.style == "none":
        return None
    weights.expect(name, (weights.config.rope.dim // 2,))
    divisors = weights.floats(name).astype(np.float64)
    if not (divisors > 0).all():
        raise FileFormatError(weights.path, f"tensor {name} must be positive", field=name)
    return divisors
