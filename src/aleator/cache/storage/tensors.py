"""Keys, values and states as torch's tensors: on devices, and for torch's layers over the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.devices import Device
from aleator.cache.storage.host import HostLayer, encoded_rows
from aleator.cache.storage.layer import Bytes, Cells, LayerFormat, LayerStorage, StateArrays
from aleator.cache.storage.tensor_blocks import dequantised, hadamard, quantised

Index = slice | torch.Tensor
"""Cells: a slice, or int64 indices on the layer's device."""

_ELEMENTS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torch_device(device: Device) -> torch.device:
    """Torch's object for a device."""
    return torch.device(str(device))


class TensorLayer(LayerStorage[torch.Tensor]):
    """Keys or values of one layer as a tensor.

    :meth:`store` and :meth:`load` are for layers in torch, which have the cells' numbers on the device.
    """

    def __init__(
        self, flat: torch.Tensor, format: LayerFormat, host: HostLayer | None = None
    ) -> None:
        """Take the bytes ``flat``, uint8, as a layer; they are the memory of ``host``, if that is given."""
        super().__init__(format)
        element = _ELEMENTS.get(format.type.name)
        data = flat if element is None else flat.view(element)
        self.data = data.view(self.taken_shape(format.n_cells))
        self._host = host

    @classmethod
    def on(cls, device: torch.device, format: LayerFormat) -> TensorLayer:
        """A new layer on a device."""
        with torch.inference_mode(False):  # it is written in and outside of that mode
            n_bytes = format.type.bytes(format.heads * format.dim) * format.n_cells
            return cls(torch.zeros(n_bytes, dtype=torch.uint8, device=device), format)

    @classmethod
    def of(cls, layer: LayerStorage[Any]) -> TensorLayer:
        """A layer as tensors that share its memory."""
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
        if self.type.block > 1 and self._host is not None:
            self._host.write(_numbers(cells), rows.float().cpu().numpy())
            return
        if self.type.block > 1:
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
        """Rows [n, heads, dim], in the stored type and a view where possible; blocks as float32."""
        stored = self.data
        if self.type.block > 1 and self._host is not None:
            return torch.from_numpy(self._host.read(_numbers(cells)))
        if self.type.block > 1:
            x = hadamard(dequantised(self.type, stored[cells]), self.rotation)
            return x.view(-1, self.heads, self.dim)
        if not isinstance(cells, slice):
            part = stored.index_select(self.axis, cells)
        else:
            part = stored[..., cells] if self.by_channel else stored[cells]
        return part.permute(2, 0, 1) if self.by_channel else part

    def write(self, cells: Cells, rows: torch.Tensor) -> None:
        self.store(self._index(cells), rows)

    def read(self, cells: Cells) -> torch.Tensor:
        return self.load(self._index(cells)).float()

    @staticmethod
    def joined(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(rows), 1)

    def take(self, cells: Cells) -> torch.Tensor:
        return self.data.index_select(self.axis, self._index(cells))

    def put(self, cells: Cells, taken: torch.Tensor) -> None:
        self.data.index_copy_(self.axis, self._index(cells), taken)

    def put_back(self, cells: Cells) -> tuple[Any, ...]:
        return self.data.index_copy_, self.axis, self._index(cells), self.take(cells)

    def encoded(self, rows: torch.Tensor) -> Bytes:
        if self.type.block > 1:
            x = rows.reshape(len(rows), -1).float().cpu().contiguous().numpy()
            return encoded_rows(self.type, self.rotation, x)
        stored = rows.to(self.data.dtype)
        return _host_bytes(stored).reshape(len(rows), -1)

    def bytes_of(self, cells: Cells) -> Bytes:
        rows = self.heads * self.dim if self.by_channel else len(cells)
        return _host_bytes(self.take(cells)).reshape(rows, -1)

    def put_bytes(self, cells: Cells, data: Bytes) -> None:
        flat = torch.from_numpy(data.reshape(-1).copy()).view(self.data.dtype)
        self.put(cells, flat.view(self.taken_shape(len(cells))).to(self.data.device))

    def zero(self, cells: Cells | None = None) -> None:
        if cells is None:
            self.data.zero_()
        else:
            self.data.index_fill_(self.axis, self._index(cells), 0)

    def _index(self, cells: Cells) -> torch.Tensor:
        return torch.from_numpy(cells).to(self.data.device)


class TensorSide:
    """A side of a cache, :attr:`Storage.parts`, as tensors that share its memory, for layers in torch."""

    def __init__(self, parts: Sequence[LayerStorage[Any]]) -> None:
        self.layers = [TensorLayer.of(part) for part in parts]

    def write(self, layer: int, cells: Index, rows: torch.Tensor) -> None:
        """See :meth:`TensorLayer.store`."""
        self.layers[layer].store(cells, rows)

    def read(self, layer: int, cells: Index) -> torch.Tensor:
        """See :meth:`TensorLayer.load`."""
        return self.layers[layer].load(cells)


class TensorStates(StateArrays[torch.Tensor]):
    """Recurrent states on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def zeros(self, shape: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.zeros(*shape, device=self._device)

    def row(self, array: torch.Tensor, row: int) -> torch.Tensor:
        return array[row].clone()

    def zero(self, array: torch.Tensor, rows: Sequence[int]) -> None:
        array.index_fill_(0, torch.tensor(list(rows), device=array.device), 0)

    def host(self, array: torch.Tensor, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        taken: npt.NDArray[np.float32] = array[list(rows)].cpu().numpy()
        return taken

    def of_host(self, values: npt.NDArray[np.float32]) -> torch.Tensor:
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


def _numbers(cells: Index) -> Cells:
    if isinstance(cells, slice):
        return np.arange(cells.start, cells.stop)
    return cells.numpy()


def _host_bytes(stored: torch.Tensor) -> Bytes:
    flat: Bytes = stored.cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return flat
