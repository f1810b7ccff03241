"""The memory of kernels under Triton's interpreter, watched.

A program may read and write what lies in the tensors of its launch, write nothing that another program reads or
writes, and read nothing that another one writes: on a device that is other memory, or chance.  What a load
leaves out has no value, and what is not written yet is NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton.runtime import interpreter


def _spans(given: object) -> Iterator[tuple[int, int]]:
    """Where the memory of each tensor begins and ends."""
    if isinstance(given, torch.Tensor) and given.numel():
        last = sum((n - 1) * stride for n, stride in zip(given.shape, given.stride(), strict=True))
        yield given.data_ptr(), given.data_ptr() + (last + 1) * given.element_size()
    elif isinstance(given, (tuple, list)):
        for each in given:
            yield from _spans(each)


class Launch:
    """The memory of one launch, and which program read and wrote what."""

    def __init__(self, arguments: object) -> None:
        spans: list[list[int]] = []
        for begin, end in sorted(_spans(arguments)):
            if spans and begin < spans[-1][1]:
                spans[-1][1] = max(end, spans[-1][1])
            else:
                spans.append([begin, end])
        self.begins = np.array([begin for begin, _ in spans], np.uint64)
        self.ends = [end for _, end in spans]
        self.writers: dict[
            int, npt.NDArray[np.int32]
        ] = {}  # by span and byte: 0, or a program's number + 1
        self.readers: dict[int, npt.NDArray[np.int32]] = {}  # the same; -1: several programs

    def touched(self, at: npt.NDArray[np.uint64], size: int, program: int, writes: bool) -> None:
        """A program reads or writes ``size`` bytes at each of these addresses."""
        span = int(np.searchsorted(self.begins, at.min(), side="right")) - 1
        if span < 0 or int(at.max()) + size > self.ends[span]:
            raise IndexError("outside of the tensors")
        place = (at - self.begins[span]).astype(np.int64)
        if _others(self._at(self.writers, span)[place], program):
            raise IndexError("another program writes there")
        readers = self._at(self.readers, span)
        if not writes:
            before = readers[place]
            readers[place] = np.where((before == 0) | (before == program + 1), program + 1, -1)
            return
        if _others(readers[place], program):
            raise IndexError("another program reads there")
        writers = self.writers[span]
        each = np.arange(len(place), dtype=np.int32)
        writers[place] = each
        if (writers[place] != each).any():
            raise IndexError("written twice at once")
        writers[place] = program + 1

    def _at(self, of: dict[int, npt.NDArray[np.int32]], span: int) -> npt.NDArray[np.int32]:
        """Numbers of programs, for each byte of a span; memory is taken only where they are written."""
        if span not in of:
            of[span] = np.zeros(self.ends[span] - int(self.begins[span]), np.int32)
        return of[span]


def _others(programs: npt.NDArray[np.int32], program: int) -> bool:
    """Whether any of them is not this program."""
    return bool(((programs != 0) & (programs != program + 1)).any())


@cache
def _no_value(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """NaN and large numbers in turns, as maxima pass over NaN; of integers the least and the largest."""
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    first = np.nan if np.dtype(dtype).kind == "f" else limits.min
    return np.resize(np.array([first, limits.max], dtype), shape)


def watch(patch: pytest.MonkeyPatch) -> None:
    """Watch all launches from now on."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    initial, load, store = (
        executor._init_args_hst, builder.create_masked_load, builder.create_masked_store,
    )  # fmt: skip
    launches: list[Launch] = []
    patched: set[str] = set()

    def arguments(self: Any, args: Any, kwargs: Any) -> Any:
        made = initial(self, args, kwargs)
        launches[:] = [Launch((*made[0], *made[1].values()))]
        patched.clear()
        return made

    def check(self: Any, pointers: Any, mask: Any, writes: bool) -> None:
        at = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        if at.size:
            (x, y, z), (wide, high, _) = self.grid_idx, self.grid_dim
            size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            launches[0].touched(at, size, x + wide * (y + high * z), writes)

    def loaded(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        check(self, pointers, mask, False)
        if other is None:
            kind = pointers.get_element_ty()
            made = _no_value(pointers.data.shape, interpreter._get_np_dtype(kind))
            other = interpreter.TensorHandle(made, kind)
        return load(self, pointers, mask, other, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(self, pointers, mask, True)
        return store(self, pointers, value, mask, *rest)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A function of kernels; the language is patched once per launch and module, as it takes long."""
        if self.fn.__module__ not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(self.fn.__module__)
        return self.rewrite()(*args, **kwargs)

    patch.setattr(interpreter.InterpretedFunction, "__call__", called)
    patch.setattr(executor, "_init_args_hst", arguments)
    patch.setattr(builder, "create_masked_load", loaded)
    patch.setattr(builder, "create_masked_store", stored)
    for name in ("empty", "empty_like"):
        patch.setattr(torch, name, _poisoned(getattr(torch, name)))


def _poisoned(make: Any) -> Any:
    """A function that makes tensors, with NaN in them, or with large integers."""

    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor: torch.Tensor = make(*args, **kwargs)
        if type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.nbytes:
            ctypes.memset(
                tensor.data_ptr(), 0xFF if tensor.is_floating_point() else 0x5A, tensor.nbytes
            )
        return tensor

    return made
