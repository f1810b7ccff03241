"""A decoder in Triton over its cache: the native form's bits, on a device.

Its steps are of few tokens or prefill chunks, with one graph per shape.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.storage.tensors import captured, current
from aleator.core.arrays import Int32s, Int64s
from aleator.core.errors import DeviceOutOfMemory
from aleator.models.adapters import Rows
from aleator.models.decoder import Decoder, Progress
from aleator.models.kernels.rotation import rotate, rotation_angles
from aleator.models.native_decoder import NativeDecoder
from aleator.models.placement import EXACT, Place
from aleator.models.step import Draw, Inputs, Step
from aleator.models.torch_decoder import TensorStep, TorchDecoder, named_memory
from aleator.models.triton.inputs import Shape, StepInputs
from aleator.models.triton.stacks import TritonEmbedding, TritonLinear
from aleator.models.triton.weights import TritonWeights

if TYPE_CHECKING:
    from aleator.models.weights import Weights

MOST_GRAPHS = 64
"""The most graphs that are kept; beyond this, all are captured anew."""
Made = tuple[torch.Tensor, Any]
"""Logits, and the result of a draw from them."""
Computed = Callable[[], Made]
"""A step on tensors that stay where they are."""


class Graph:
    """A step that can be repeated on the same tensors; this class repeats each operation."""

    def first(self, step: Computed) -> Made:
        """Compute the step and keep its operations."""
        self._step = step
        return step()

    def replay(self) -> Made:
        """Compute the step again; the next replay overwrites the result."""
        return self._step()


class CudaGraph(Graph):
    """A CUDA graph on the current device.  The first step runs without it, to compile and load kernels.

    ``pool`` and ``stream``: the memory that graphs of one step share, as no two of them run at a time, and the
    stream of their device that they are captured on.
    """

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._pool, self._stream = pool, stream

    def first(self, step: Computed) -> Made:
        given = step()
        self._graph = torch.cuda.CUDAGraph()
        with captured(self._graph, self._stream, self._pool):
            self._out = step()
        return given

    def replay(self) -> Made:
        self._graph.replay()
        return self._out


class Graphs:
    """The graphs of one decoder over one pool, on a device."""

    def __init__(self, device: torch.device) -> None:
        self._shared: tuple[Any, torch.cuda.Stream] | None = None
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._shared = torch.cuda.graph_pool_handle(), stream

    def new(self) -> Graph:
        """Make a graph that has no step yet."""
        return Graph() if self._shared is None else CudaGraph(*self._shared)


Outputs = dict[int, torch.Tensor]
"""Where graphs write their logits, by number of rows; all graphs of one step share this memory."""


def _computed(
    decoder: TorchDecoder,
    given: StepInputs,
    on: Mapping[Any, torch.Tensor],
    shape: Shape,
    draw: Draw | None,
    outputs: Outputs | None = None,
) -> Computed:
    """A function that computes a step from arrays on the device, and writes logits to ``outputs`` if given."""
    ids, batch, rows = given.given(on, shape)

    def step() -> Made:
        if draw is None:
            logits, drawn = decoder.compute(ids, batch, rows), None
        else:
            logits = decoder.compute(ids if shape.vectors else draw.inputs(ids, on), batch, rows)
            drawn = draw.compute(logits, on)
        if outputs is None:
            return logits, drawn
        if len(logits) not in outputs:  # before the capture
            outputs[len(logits)] = torch.empty_like(logits)
        return outputs[len(logits)].copy_(logits), drawn

    return step


class _Bucket:
    """The steps of one shape; their inputs from the host are always in the same block of memory."""

    def __init__(self, decoder: TorchDecoder, shape: Shape, graph: Graph, outputs: Outputs) -> None:
        self._decoder, self._shape, self._graph = decoder, shape, graph
        self._outputs = outputs
        self._block: torch.Tensor | None = None

    def run(self, inputs: StepInputs, draw: Draw | None) -> Made:
        """The logits of a micro-batch, with the bucket's number of rows, and the result of the draw."""
        where, packed = self._decoder.where, inputs.packed(self._shape, draw)
        if self._block is None:
            block = torch.empty(packed.size, dtype=torch.uint8, device=where)
            on = packed.on(where, block)
            step = _computed(self._decoder, inputs, on, self._shape, draw, self._outputs)
            logits, drawn = self._graph.first(step)
            self._block = block
        else:
            packed.on(where, self._block)
            logits, drawn = self._graph.replay()
        # With a draw, the caller does not read logits, and reads the tokens before the next step.
        return logits if draw is not None else logits.clone(), drawn


class TritonStep(TensorStep):
    """A decoder in Triton over one pool; ``front`` computes the layers before its own.

    Steps are padded to the size of a bucket, see :class:`StepInputs`.  A bucket's first step allocates its
    memory.  Inputs are copied there before each step, and nothing waits for the device.  The draw of a step is
    in its graph.
    """

    def __init__(self, decoder: TorchDecoder, front: Step | None) -> None:
        super().__init__(decoder, fused=False)
        self._front = front
        self._states: list[Any] = []
        self._forget()

    def _forget(self) -> None:
        """Drop all graphs."""
        # Keyed by the owner of their draws, or by the step.
        self._buckets: WeakKeyDictionary[Any, dict[Hashable, _Bucket]] = WeakKeyDictionary()
        self._graphs, self._outputs = Graphs(self._decoder.where), Outputs()

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
        decoder, n = self._decoder, len(inputs)
        if draw is not None and draw.device.type != decoder.at[-1][0].type:
            draw = None
        decoder.check_positions(positions)
        if self._front is not None:
            inputs = self._front.run(inputs, positions, cells, np.arange(n), n_threads)
        given = StepInputs(decoder, inputs, positions, cells, outputs)
        self._follow(given.states)
        if draw is not None:
            draw.begin()
        try:
            with current(decoder.where), named_memory(decoder.where, n):
                if given.bucket is not None:
                    logits, drawn = self._bucket(given.bucket, draw).run(given, draw)
                else:
                    on = given.packed(given.shape, draw).on(decoder.where)
                    logits, drawn = _computed(decoder, given, on, given.shape, draw)()
        except DeviceOutOfMemory:
            self._forget()
            raise
        if draw is not None:
            draw.made = drawn
        return logits[: len(outputs)]

    def _bucket(self, shape: Shape, draw: Draw | None) -> _Bucket:
        owner, key = (self, shape) if draw is None else (draw.owner, (shape, draw.key))
        if key not in self._buckets.get(owner, {}):
            if sum(map(len, self._buckets.values())) == MOST_GRAPHS:
                self._forget()
            made = _Bucket(self._decoder, shape, self._graphs.new(), self._outputs)
            self._buckets.setdefault(owner, {})[key] = made
        return self._buckets[owner][key]

    def _follow(self, states: RecurrentBatch | None) -> None:
        """Drop graphs of other rows of states: a cache that grows gets new rows."""
        now = [] if states is None else [states.conv[0], states.ssm[0]]
        if any(a is not b for a, b in zip(now, self._states, strict=False)):
            self._forget()
        self._states = now


class TritonDecoder(TorchDecoder):
    """A decoder whose layers compute with Triton's kernels, on weights as they are stored.

    Attributes:
        front: computes the layers before the device's, with the same bits; None: there are none.
    """

    source = TritonWeights

    def __init__(
        self, weights: Weights, places: Sequence[Place], progress: Progress | None = None
    ) -> None:
        first = sum(place.dtype != EXACT for place in places)
        self.front: Decoder | None = None
        if first:
            self.front = NativeDecoder(weights, progress, first).hidden()
        super().__init__(weights, places, progress, first)
        if weights.config.tied and isinstance(self.embedding, TritonEmbedding):
            self.head = TritonLinear([self.embedding.rows])

    def use_rotations(self) -> None:
        super().use_rotations()
        if self.front is not None:
            self.front = copy.copy(self.front)
            self.front.rotation, self.front.window_rotation = self.rotation, self.window_rotation

    def over(self, pool: Pool, fused: bool = True) -> TritonStep:
        return TritonStep(self, None if self.front is None else self.front.over(pool))

    def shift_keys(self, layer: int, keys: Any, deltas: Any, windowed: bool = False) -> Any:
        """Stored keys rotated further, with native bits."""
        if not isinstance(keys, torch.Tensor) or not self._rotates(layer, windowed):
            return super().shift_keys(layer, keys, deltas, windowed)
        rotation = self.window_rotation if windowed else self.rotation
        by = np.asarray(torch.as_tensor(deltas).cpu(), np.int32)
        with current(keys.device):
            return rotate(keys, rotation_angles(rotation, by, 1.0, keys.device))
