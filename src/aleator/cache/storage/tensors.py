"""Keys, values and states as torch tensors: on devices, and for torch layers over the host's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.devices import Device
from aleator.cache.storage.layer import (
    HostLayer,
    LayerFormat,
    LayerStorage,
    StateArrays,
    StorageType,
    encoded_rows,
)
from aleator.core.arrays import Bytes, Floats, Int64s

Index = slice | torch.Tensor
"""Cells: a slice, or int64 indices on the layer's device."""

_ELEMENTS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torch_device(device: Device) -> torch.device:
    """The torch object of a device."""
    return torch.device(str(device))


def current(device: torch.device) -> AbstractContextManager[object]:
    """A context in which a CUDA device is current: Triton launches there, whatever tensors it gets."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


_CAPTURES = threading.Lock()


@contextmanager
def captured(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None
) -> Iterator[None]:
    """A context in which what is launched becomes a graph, on a stream of the current device.

    CUDA allows one such context at a time in a process; other threads wait here, and may use CUDA otherwise.
    """
    with _CAPTURES, torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
        yield


class TensorLayer(LayerStorage[torch.Tensor]):
    """Keys or values of one layer as a tensor.

    :meth:`store` and :meth:`load` are for torch layers, which have the cells' numbers on the device.
    """

    def __init__(
        self, flat: torch.Tensor, format: LayerFormat, host: HostLayer | None = None
    ) -> None:
        """Use the bytes ``flat``, uint8, as a layer; they are the memory of ``host``, if given."""
        super().__init__(format)
        element = _ELEMENTS.get(format.type.name)
        data = flat if element is None else flat.view(element)
        self.data = data.view(self.taken_shape(format.n_cells))
        self._host = host

    @classmethod
    def on(cls, device: torch.device, format: LayerFormat) -> TensorLayer:
        """A new layer on a device."""
        with torch.inference_mode(False):  # it is written both inside and outside of that mode
            n_bytes = format.type.bytes(format.heads * format.dim) * format.n_cells
            return cls(torch.zeros(n_bytes, dtype=torch.uint8, device=device), format)

    @classmethod
    def of(cls, layer: LayerStorage[Any]) -> TensorLayer:
        """A layer as a tensor that shares its memory."""
        if isinstance(layer, TensorLayer):
            return layer
        if not isinstance(layer, HostLayer):
            raise TypeError(f"no tensors over {layer!r}")
        with torch.inference_mode(False):
            return cls(torch.from_numpy(layer.bytes), layer.format, layer)

    @property
    def address(self) -> int:
        return self.data.data_ptr()

    @property
    def rows(self) -> Bytes | None:
        return None

    def store(self, cells: Index, rows: torch.Tensor) -> None:
        """Store rows [T, heads, dim], rounded to the type, in the cells."""
        to = self.data
        if self.type.element is None and self._host is not None:
            self._host.write(_numbers(cells), rows.float().cpu().numpy())
            return
        if self.type.element is None:
            x = rows.reshape(len(rows), -1).float()
            to[cells] = quantised(self.type, hadamard(x, self.rotation))
            return
        values = rows.permute(1, 2, 0) if self.by_channel else rows
        if not isinstance(cells, slice):
            to.index_copy_(self.axis, cells, values.to(to))
        elif self.by_channel:
            to[..., cells] = values
        else:
            to[cells] = values

    def load(self, cells: Index) -> torch.Tensor:
        """Rows [n, heads, dim], in the stored type and as a view if possible; block types as float32."""
        stored = self.data
        if self.type.element is None and self._host is not None:
            return torch.from_numpy(self._host.read(_numbers(cells)))
        if self.type.element is None:
            x = hadamard(dequantised(self.type, stored[cells]), self.rotation)
            return x.view(-1, self.heads, self.dim)
        if not isinstance(cells, slice):
            part = stored.index_select(self.axis, cells)
        else:
            part = stored[..., cells] if self.by_channel else stored[cells]
        return part.permute(2, 0, 1) if self.by_channel else part

    def write(self, cells: Int64s, rows: torch.Tensor) -> None:
        self.store(self._index(cells), rows)

    def read(self, cells: Int64s) -> torch.Tensor:
        return self.load(self._index(cells)).float()

    @staticmethod
    def joined(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(rows), 1)

    def take(self, cells: Int64s) -> torch.Tensor:
        return self.data.index_select(self.axis, self._index(cells))

    def put(self, cells: Int64s, taken: torch.Tensor) -> None:
        self.data.index_copy_(self.axis, self._index(cells), taken)

    def put_back(self, cells: Int64s) -> tuple[Any, ...]:
        return self.data.index_copy_, self.axis, self._index(cells), self.take(cells)

    def encoded(self, rows: torch.Tensor) -> Bytes:
        if self.type.element is None:
            x = rows.reshape(len(rows), -1).float().cpu().contiguous().numpy()
            return encoded_rows(self.type, self.rotation, x)
        stored = rows.to(self.data.dtype)
        return _host_bytes(stored).reshape(len(rows), -1)

    def bytes_of(self, cells: Int64s) -> Bytes:
        rows = self.heads * self.dim if self.by_channel else len(cells)
        flat = _host_bytes(self.take(cells)).reshape(-1)
        return flat.reshape(rows, len(flat) // max(rows, 1))

    def put_bytes(self, cells: Int64s, data: Bytes) -> None:
        flat = torch.from_numpy(data.reshape(-1).copy()).view(self.data.dtype)
        self.put(cells, flat.view(self.taken_shape(len(cells))).to(self.data.device))

    def zero(self, cells: Int64s | None = None) -> None:
        if cells is None:
            self.data.zero_()
        else:
            self.data.index_fill_(self.axis, self._index(cells), 0)

    def _index(self, cells: Int64s) -> torch.Tensor:
        return torch.from_numpy(cells).to(self.data.device)


def tensor_layers(parts: Sequence[LayerStorage[Any]]) -> list[TensorLayer]:
    """A side of a cache, :attr:`Storage.parts`, as tensors that share its memory, for torch layers."""
    return [TensorLayer.of(part) for part in parts]


class TensorStates(StateArrays):
    """Recurrent states on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def zeros(self, shape: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.zeros(*shape, dtype=torch.float32, device=self._device)

    def row(self, array: torch.Tensor, row: int) -> torch.Tensor:
        return array[row].clone()

    def zero(self, array: torch.Tensor, rows: Sequence[int]) -> None:
        array.index_fill_(0, torch.tensor(list(rows), device=array.device), 0)

    def host(self, array: torch.Tensor, rows: Sequence[int]) -> Floats:
        taken: Floats = array[list(rows)].cpu().numpy()
        return taken

    def of_host(self, values: Floats) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(self._device)

    def address(self, array: torch.Tensor) -> int:
        return array.data_ptr()


def as_tensor(array: npt.NDArray[Any] | torch.Tensor) -> torch.Tensor:
    """An array of states as a tensor that shares its memory."""
    if isinstance(array, torch.Tensor):
        return array
    with torch.inference_mode(False):
        return torch.from_numpy(array)


def to_device(array: npt.NDArray[Any], device: Device) -> torch.Tensor:
    """An array as a tensor on a device."""
    return torch.from_numpy(array).to(torch_device(device))


def _numbers(cells: Index) -> Int64s:
    if isinstance(cells, slice):
        return np.arange(cells.start, cells.stop)
    return cells.numpy()


def _host_bytes(stored: torch.Tensor) -> Bytes:
    flat: Bytes = stored.cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return flat


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Rotate rows, float32 [n, width], by a Hadamard matrix in blocks of a power of two; 0: no rotation."""
    if not block:
        return x
    matrix = torch.ones(1, 1, dtype=torch.float32, device=x.device)
    while len(matrix) < block:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (x.view(-1, block) @ matrix).mul_(block**-0.5).view(x.shape)


def quantised(type_: StorageType, x: torch.Tensor) -> torch.Tensor:
    """Round rows, float32 [n, width], as ggml's reference quantiser does: uint8 [n, bytes of a row]."""
    v = x.view(len(x), -1, 32)
    poison = (v * 0).sum(-1, keepdim=True)  # NaN if an element is not finite
    scales, q = _QUANTISERS[type_.name](v)
    whole = [torch.where(poison == 0, s, poison).half().view(torch.uint8) for s in scales]
    return torch.cat((*whole, q), -1).view(len(x), -1)


def dequantised(type_: StorageType, rows: torch.Tensor) -> torch.Tensor:
    """Return rows, float32 [n, width], from what :func:`quantised` returned."""
    blocks = rows.reshape(len(rows), -1, type_.block_bytes)
    d = blocks[..., :2].contiguous().view(torch.float16).float()
    name = type_.name
    if name == "q8_0":
        return (blocks[..., 2:].contiguous().view(torch.int8).float() * d).view(len(rows), -1)
    packed = blocks[..., -16:]
    q = torch.cat((packed & 15, packed >> 4), -1)
    if name in ("q5_0", "q5_1"):
        places = torch.arange(8, dtype=torch.uint8, device=rows.device)
        fifth = blocks[..., -20:-16, None] >> places & 1
        q = q | fifth.flatten(-2) << 4
    if name in ("q4_1", "q5_1"):
        least = blocks[..., 2:4].contiguous().view(torch.float16).float()
        return (q.float() * d + least).view(len(rows), -1)
    if name == "iq4_nl":
        value = torch.tensor(IQ4_NL_VALUES, device=rows.device)[q.long()]
    else:
        value = q.float() - (8 if name == "q4_0" else 16)
    return (value * d).view(len(rows), -1)


IQ4_NL_VALUES = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)
"""The values of the 16 integers of iq4_nl, before the scale."""

_NOTHING = 1e-15
"""iq4_nl: smaller magnitudes are 0."""

_Quantised = tuple[tuple[torch.Tensor, ...], torch.Tensor]
"""Scales float32 [n, blocks, 1], and the bytes that follow them, uint8 [n, blocks, bytes]."""


def _inverse(d: torch.Tensor) -> torch.Tensor:
    return torch.where(d == 0, d, 1 / d)


def _extreme(v: torch.Tensor) -> torch.Tensor:
    """Each block's first element of the largest magnitude, with its sign; +0 for a block of zeros."""
    magnitude = v.abs()
    first = (magnitude == magnitude.amax(-1, keepdim=True)).to(torch.uint8).argmax(-1, keepdim=True)
    return v.gather(-1, first) + 0.0


def _nibbles(q: torch.Tensor) -> torch.Tensor:
    return q[..., :16] & 15 | (q[..., 16:] & 15) << 4


def _packed(q: torch.Tensor, count: int) -> torch.Tensor:
    """Pack integers of 16 levels in nibbles; with 32 levels, the fifth bits come first."""
    if count == 16:
        return _nibbles(q)
    places = torch.arange(8, dtype=torch.uint8, device=q.device)
    bits = ((q >> 4 & 1).view(*q.shape[:-1], 4, 8) << places).sum(-1).to(torch.uint8)
    return torch.cat((bits, _nibbles(q)), -1)


def _q8_0(v: torch.Tensor) -> _Quantised:
    d = v.abs().amax(-1, keepdim=True) / 127
    scaled = (v * _inverse(d)).nan_to_num(-torch.inf).clamp(-127, 127)
    below_half = torch.full_like(scaled, 0.49999997)  # half away from zero, exactly
    q = (scaled + below_half.copysign(scaled)).trunc().to(torch.int8).view(torch.uint8)
    return (d,), q


def _signed(v: torch.Tensor, count: int) -> _Quantised:
    """Scale and integers of ``count`` levels: the extreme becomes the lowest level, whatever its sign."""
    middle = count // 2
    d = _extreme(v) / -middle
    q = (v * _inverse(d) + (middle + 0.5)).nan_to_num(0).clamp(0, count - 1)
    return (d,), _packed(q.to(torch.uint8), count)


def _from_least(v: torch.Tensor, count: int) -> _Quantised:
    """Scale, least element, and integers of ``count`` levels above it."""
    least, most = v.amin(-1, keepdim=True), v.amax(-1, keepdim=True)
    # Of zeros the first one counts; its sign is stored.
    zero = v.gather(-1, (v == 0).to(torch.uint8).argmax(-1, keepdim=True))
    least = torch.where(least == 0, zero, least)
    d = (most - least) / (count - 1)
    q = ((v - least) * _inverse(d) + 0.5).nan_to_num(0).clamp(0, count - 1)
    return (d, least), _packed(q.to(torch.uint8), count)


def _iq4_nl(v: torch.Tensor) -> _Quantised:
    """Scale and integers of iq4_nl: the extreme becomes the lowest level, the scale minimises the error."""
    values = torch.tensor(IQ4_NL_VALUES, device=v.device)
    something = v.abs().amax(-1, keepdim=True) >= _NOTHING
    scaled = v * (1 / (_extreme(v) / values[0]))
    q = torch.zeros_like(scaled, dtype=torch.uint8)
    for below, above in pairwise(values):
        q += scaled - below >= above - scaled
    value = values[q.long()]
    weighted = v * v * value
    products, squares = weighted * v, weighted * value
    product, square = torch.zeros_like(v[..., 0]), torch.zeros_like(v[..., 0])
    for i in range(32):
        product, square = product + products[..., i], square + squares[..., i]
    d = torch.where(something, (product / square)[..., None], 0)
    return (d,), _nibbles(torch.where(something, q, 0))


_QUANTISERS: dict[str, Callable[[torch.Tensor], _Quantised]] = {
    "q8_0": _q8_0,
    "q4_0": partial(_signed, count=16),
    "q4_1": partial(_from_least, count=16),
    "q5_0": partial(_signed, count=32),
    "q5_1": partial(_from_least, count=32),
    "iq4_nl": _iq4_nl,
}
