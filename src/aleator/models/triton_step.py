"""Steps of Triton's layers over one pool: those of a few tokens are captured, one graph for each shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.storage.tensors import current
from aleator.core.errors import DeviceOutOfMemory
from aleator.models.step import Inputs, Step
from aleator.models.torch_decoder import TensorStep, TorchDecoder, named_memory
from aleator.models.triton_inputs import Shape, StepInputs

MOST_GRAPHS = 64
"""Graphs that are kept; when there are more, all are captured anew."""
Computed = Callable[[], torch.Tensor]
"""A step on tensors that stay where they are."""


class Graph(Protocol):
    """A step that is made again on the same tensors, by nothing but :meth:`replay`."""

    def first(self, step: Computed) -> torch.Tensor:
        """Make the step and keep its operations."""
        ...

    def replay(self) -> torch.Tensor:
        """Make it again; the result is overwritten by the next."""
        ...


class Eager:
    """No graph: every step asks for its operations one by one."""

    def first(self, step: Computed) -> torch.Tensor:
        self._step = step
        return step()

    def replay(self) -> torch.Tensor:
        return self._step()


class CudaGraph:
    """A CUDA graph on the current device.  The first step is made without it, which compiles and loads kernels.

    Other threads may use CUDA while it is captured.

    ``pool``: what graphs of one step share the memory of, as no two of them run at a time.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def first(self, step: Computed) -> torch.Tensor:
        given = step()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, self._pool, capture_error_mode="thread_local"):
            self._out = step()
        return given

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        return self._out


class Graphs:
    """The graphs of one decoder over one pool, on a device."""

    def __init__(self, device: torch.device) -> None:
        self._captures = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None

    def new(self) -> Graph:
        """One that has no step yet."""
        return CudaGraph(self._pool) if self._captures else Eager()


class _Bucket:
    """The steps of one shape: what they read of the host lies in one block of memory, always the same."""

    def __init__(self, decoder: TorchDecoder, shape: Shape, graph: Graph) -> None:
        self._decoder, self._shape, self._graph = decoder, shape, graph
        self._block: torch.Tensor | None = None

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """The logits of a micro-batch, as many rows as the bucket has."""
        where, shape, packed = self._decoder.where, self._shape, inputs.packed(self._shape)
        if self._block is not None:
            packed.on(where, self._block)
            return self._graph.replay().clone()
        block = torch.empty(packed.size, dtype=torch.uint8, device=where)
        ids, batch, rows = inputs.given(packed.on(where, block), shape)
        made = self._graph.first(lambda: self._decoder.compute(ids, batch, rows))
        self._block = block
        return made


class TritonStep(TensorStep):
    """A decoder in Triton over one pool; ``front`` computes the layers before its own.

    Steps of up to 64 tokens that all want logits are made to the size of a bucket: their memory is taken at the
    bucket's first step, inputs are copied to their places before each, and nothing waits for the device.
    """

    def __init__(self, decoder: TorchDecoder, front: Step | None) -> None:
        super().__init__(decoder, fused=False)
        self._front = front
        self._states: list[Any] = []
        self._forget()

    def _forget(self) -> None:
        """Begin without graphs."""
        self._buckets: dict[Shape, _Bucket] = {}
        self._graphs = Graphs(self._decoder.where)

    @torch.inference_mode()
    def run(
        self,
        inputs: Inputs,
        positions: npt.NDArray[np.int32],
        cells: Any,
        wanted: npt.NDArray[np.int64],
        n_threads: int | None = None,
    ) -> torch.Tensor:
        decoder, n = self._decoder, len(inputs)
        decoder.check_positions(positions)
        if self._front is not None:
            inputs = self._front.run(inputs, positions, cells, np.arange(n), n_threads)
        given = StepInputs(decoder, inputs, positions, cells, wanted)
        self._follow(given.states)
        try:
            with current(decoder.where), named_memory(decoder.where, n):
                if given.bucket is not None:
                    return self._bucket(given.bucket).run(given)[:n]
                on = given.packed(given.shape).on(decoder.where)
                return decoder.compute(*given.given(on, given.shape))
        except DeviceOutOfMemory:
            self._forget()
            raise

    def _bucket(self, shape: Shape) -> _Bucket:
        if shape not in self._buckets:
            if len(self._buckets) == MOST_GRAPHS:
                self._forget()
            self._buckets[shape] = _Bucket(self._decoder, shape, self._graphs.new())
        return self._buckets[shape]

    def _follow(self, states: RecurrentBatch | None) -> None:
        """Forget graphs of other rows of states: the cache gets new ones where it needs more."""
        now = [] if states is None else [states.conv[0], states.ssm[0]]
        if any(a is not b for a, b in zip(now, self._states, strict=False)):
            self._forget()
        self._states = now
