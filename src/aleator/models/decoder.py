"""A decoder: a model's weights, and what to compute with them over a cache."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from aleator.cache.devices import CPU, Device
from aleator.cache.kv_cache import Layers
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.rows.rows import LayerShape
from aleator.core.arrays import Doubles, Floats, Int32s
from aleator.core.digests import new_digest
from aleator.core.errors import FileFormatError, InvalidBatch, ParameterError
from aleator.models.adapters import Adapters
from aleator.models.config import RopeConfig
from aleator.models.layers.recurrent_parts import state_shape
from aleator.models.layers.rotation import Rotation, logarithm
from aleator.models.placement import Place, weight_bytes
from aleator.models.step import Step

if TYPE_CHECKING:
    from aleator.models.weights import Weights

Progress = Callable[[int, int], None]
"""Called with (layers done, layers)."""


class Decoder(ABC):
    """Weights and the computation with them; holds no state between calls.

    Attributes:
        weights: the file.
        config: the model's dimensions.
        architecture: how its layers are made.
        places: each layer's device and type: "float32", "float16", "bfloat16" or "exact"; attention, states
            and logits are float32.  Embeddings are with the first layer, the last norm and the output matrix
            with the last one.
        device: the last layer's device, where logits are.
        dtype: the type of the last layer's weights and activations.
        rotation: rotation of queries and keys in layers that see everything.
        window_rotation: the same in layers with a window.
        embedding_scale: factor of token embeddings.
        slopes: ALiBi's slopes, float32 [heads]; None: scores do not depend on distances.
        n_positions: positions that have an embedding; None: every position can be computed.
        adapters: adapters that can be added to its matrices.
        tapped: layers whose inputs a step gives besides logits, int64; n_layers: the last layer's output.
    """

    adapts = False
    """Whether this form computes adapters."""

    def __init__(self, weights: Weights, places: Sequence[Place]) -> None:
        config = weights.config
        self.weights, self.config, self.architecture = weights, config, weights.architecture
        self.places, last = list(places), places[-1]
        self.device = CPU if last.device.type == "cpu" else last.device
        self.dtype = last.dtype
        self._make_rotations(0)
        scaled = weights.architecture.scaled_embedding
        self.embedding_scale = math.sqrt(config.n_embd) if scaled else config.embedding_scale
        self.adapters = Adapters()
        self.tapped = np.zeros(0, np.int64)
        self.slopes = alibi_slopes(config.n_heads[0], config.alibi) if config.alibi else None
        self.n_positions: int | None = None
        if weights.architecture.position_embedding:
            self.n_positions = weights.stored("position_embd.weight").shape[0]

    @abstractmethod
    def over(self, pool: Pool, fused: bool = True) -> Step:
        """A step over ``pool``; ``fused``: attention may use PyTorch's fused kernel."""

    def take(self, adapters: Adapters) -> None:
        """Add adapters, before anything computes; raise ParameterError if this form has none."""
        if adapters and not self.adapts:
            raise ParameterError(
                "adapters",
                f"adapters are computed in native code on the CPU, and this model is not ({self.device}, "
                f"{self.dtype}): load it with device='cpu' and dtype='float32', or merge the adapter into it",
            )
        self.adapters = adapters

    @property
    def n_input(self) -> int:
        """Numbers of an input vector."""
        return self.config.n_embd + self.config.wide

    def in_context(self, n_ctx: int) -> Decoder:
        """A decoder over the same weights with the rotation for contexts of ``n_ctx`` positions.

        Longrope has one table of frequencies for contexts up to the trained length and another for longer
        ones.  Dynamic scaling has a base that grows with the context.  As in llama.cpp, the size of the context
        decides, not the number of tokens in it, so keys need no new rotation as the sequence grows.
        """
        if not self._stretches:
            return self
        made = copy.copy(self)
        made._make_rotations(n_ctx)
        made.use_rotations()
        return made

    def _make_rotations(self, n_ctx: int) -> None:
        rope, window = self.config.rope, self.config.window
        self.rotation = self.window_rotation = _rotation(self.weights, rope, n_ctx)
        if window is not None:
            same = window.rope == rope
            self.window_rotation = _rotation(self.weights, window.rope, n_ctx, file=same)

    @property
    def rotation_identity(self) -> str:
        """A key that tells apart rotations for other context sizes; "": the size does not matter."""
        if not self._stretches:
            return ""
        digest = new_digest(8)
        for rotation in (self.rotation, self.window_rotation):
            digest.update(
                np.append(rotation.frequencies, rotation.magnitude).astype("<f8").tobytes()
            )
        return digest.hexdigest()

    @property
    def _stretches(self) -> bool:
        """Whether the rotation depends on the context's size."""
        config, window = self.config, self.config.window
        ropes = [config.rope] if window is None else [config.rope, window.rope]
        return any(rope.scaling in ("longrope", "dynamic") for rope in ropes)

    @abstractmethod
    def use_rotations(self) -> None:
        """Start to use the current :attr:`rotation` and :attr:`window_rotation`."""

    def hidden(self) -> Decoder:
        """A decoder over the same weights that gives hidden states after the last norm instead of logits."""
        made = copy.copy(self)
        made.config = replace(
            self.config, n_vocab=self.config.n_embd, logit_softcap=0.0, logit_scale=1.0
        )
        made.drop_head()
        return made

    @abstractmethod
    def drop_head(self) -> None:
        """Make the output matrix return its input."""

    @property
    def uses_positions(self) -> bool:
        """Whether positions do more than rotate queries and keys: vectors, distances, or growing queries."""
        grows = self.config.query_growth is not None
        return self.n_positions is not None or self.slopes is not None or grows

    def check_positions(self, positions: Int32s) -> None:
        """Raise InvalidBatch for the first position that the model has no embedding for."""
        if self.n_positions is None:
            return
        for i in np.flatnonzero(positions >= self.n_positions)[:1]:
            raise InvalidBatch(
                int(i),
                f"position {positions[i]}: the model has embeddings of positions 0 to "
                f"{self.n_positions - 1} only (position_embd.weight); start a new sequence",
            )

    def query_scales(self, positions: Int32s) -> Floats | None:
        """Factors of growing queries at ``positions`` [T], float32 [T]; None: queries do not grow."""
        if self.config.query_growth is None:
            return None
        growth = self.config.query_growth
        times, which = np.unique((positions + growth.ahead) // growth.context, return_inverse=True)
        scales = [1.0 + growth.rate * logarithm(1.0 + int(n)) for n in times]
        return np.array(scales).astype(np.float32)[which]

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes of the weights on each device by name; on the CPU in float32 the bytes of the mapped file."""
        return weight_bytes(self.weights, self.places)

    def keeps_state(self, layer: int) -> bool:
        """Whether a layer keeps a state."""
        return self.architecture.recurrent is not None and self.config.keeps_state(layer)

    def windowed(self, layer: int) -> bool:
        """Whether a layer's tokens see a window of positions."""
        window = self.config.window
        return window is not None and window.layers[layer]

    def _attending(self, windowed: bool) -> list[LayerShape]:
        config = self.config
        return [
            LayerShape(
                config.n_kv_heads[layer],
                *config.stored_head_dims(layer),
                rope=int(config.rotated(layer)),
            )
            for layer in self._storing(windowed)
        ]

    def _storing(self, windowed: bool) -> list[int]:
        """The layers that store keys and values, with a window or without."""
        config = self.config
        return [
            layer
            for layer in range(config.n_layers)
            if config.stores_keys(layer) and self.windowed(layer) == windowed
        ]

    def _devices(self, layers: Iterable[int]) -> list[Device]:
        return [self.places[layer].device for layer in layers]

    def cache_index(self, layer: int) -> int:
        """The index of the keys that a layer attends to, among the layers of its kind."""
        config, kind = self.config, self.windowed(layer)
        before = range(config.keys_of(layer))
        return sum(config.stores_keys(i) and self.windowed(i) == kind for i in before)

    @property
    def cache_shapes(self) -> list[LayerShape]:
        """What each layer that sees everything stores in the KV cache."""
        return self._attending(False)

    @property
    def window_shapes(self) -> list[LayerShape]:
        """What each layer with a window stores in the cache of its kind."""
        return self._attending(True)

    @property
    def recurrent_shapes(self) -> list[RecurrentShape]:
        """What each layer with a state keeps of a sequence."""
        n = sum(self.keeps_state(layer) for layer in range(self.config.n_layers))
        return [state_shape(self.config)] * n if n else []

    @property
    def cache_layers(self) -> Layers:
        """What the layers keep, for making a cache."""
        config = self.config
        return Layers(
            config.architecture,
            config.n_layers,
            self.cache_shapes,
            self._devices(self._storing(False)),
            None if config.window is None else config.window.size,
            config.window is not None and config.window.chunked,
            self.window_shapes,
            self._devices(self._storing(True)),
            self.recurrent_shapes,
            self._devices(filter(self.keeps_state, range(config.n_layers))),
            self.shift_keys if self.architecture.shifts else None,
            partial(self.shift_keys, windowed=True) if self.architecture.shifts else None,
            self.architecture.position_axes,
        )

    def shift_keys(self, layer: int, keys: Any, deltas: Any, windowed: bool = False) -> Any:
        """Rotate stored keys [n, G, D] by ``deltas`` positions [n], in place.

        ``layer`` is counted among the layers with a window, or among those that see everything.
        """
        rotation = self.window_rotation if windowed else self.rotation
        return rotation.shift(keys, deltas) if self._rotates(layer, windowed) else keys

    def _rotates(self, layer: int, windowed: bool) -> bool:
        """Whether the keys of a layer, by its number among those of its kind, are rotated."""
        config = self.config
        if not config.unrotated:
            return True
        kind = [
            config.rotated(i)
            for i in range(config.n_layers)
            if self.config.attends(i) and self.windowed(i) == windowed
        ]
        return kind[layer]


def _rotation(weights: Weights, rope: RopeConfig, n_ctx: int, file: bool = True) -> Rotation:
    """A rotary embedding in a context of ``n_ctx`` positions; ``file``: with the file's own divisors."""
    if rope.scaling != "longrope":
        return Rotation(rope, _divisors(weights, "rope_freqs") if file else None, n_ctx)
    long = n_ctx > rope.original_context
    table = rope.long_factors if long else rope.short_factors
    divisors = np.array(table) if table else None
    if divisors is None:
        divisors = _divisors(weights, f"rope_factors_{'long' if long else 'short'}")
    return Rotation(rope, divisors)


def _divisors(weights: Weights, stem: str) -> Doubles | None:
    """The file's per-pair divisors of the rotary frequencies, if it has them."""
    name = f"{stem}.weight"
    if name not in weights or weights.config.rope.style == "none":
        return None
    weights.expect(name, (weights.config.rope.dim // 2,))
    divisors = weights.floats(name).astype(np.float64)
    if not (divisors > 0).all():
        raise FileFormatError(weights.path, f"tensor {name} must be positive", field=name)
    return divisors


def alibi_slopes(n_heads: int, largest: float) -> Floats:
    """How fast the scores of each head fall with the distance (arXiv:2108.12409), float32 [n_heads].

    Slopes are powers of two with exponents in equal steps up to ``largest``, 8 in the paper.  If the number of
    heads is not a power of two, the heads beyond the next smaller one take the steps between.
    """
    whole = 1 << (n_heads.bit_length() - 1)
    exponents = [largest * (head + 1) / whole for head in range(whole)]
    exponents += [largest / 2 * (2 * head + 1) / whole for head in range(n_heads - whole)]
    return np.array([2.0**-exponent for exponent in exponents]).astype(np.float32)
