"""A stand-in of CUDA graphs, for Triton's interpreter: what a step launches is recorded, and replayed.

What no graph can hold is refused where it is asked for: waiting for the device, arrays of the host, and results
whose sizes depend on values.  Memory that a step takes belongs to its graph, as on CUDA: a replay takes none.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from triton.runtime.jit import KernelInterface

from aleator.cache.storage.tensors import TensorLayer

WAITS = {
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "nonzero_static", "masked_select", "equal",
    "unique_dim", "_unique2", "repeat_interleave", "_pin_memory",
}  # fmt: skip
"""Operations of PyTorch's that wait for the device, or that memory of the host is made by."""
OF_THE_HOST = (
    (torch, ("from_numpy", "tensor", "as_tensor", "asarray")),
    (torch.Tensor, ("numpy", "cpu", "tolist", "pin_memory", "__array__", "__bool__", "__int__", "__float__")),
)  # fmt: skip


CELLS = sys.modules[TensorLayer.__module__].__file__
"""It makes tensors of the cache, which here is the host's memory."""


class NotCapturableError(AssertionError):
    """A step does what no graph can hold."""

    def __init__(self, what: str) -> None:
        frames = [each for each in traceback.extract_stack() if "/aleator/" in each.filename]
        at = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the test"
        super().__init__(f"{what} in a step, at {at}")


class RecordedGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One step's operations; see :class:`aleator.models.triton.decoder.Graph`.

    Attributes:
        replays: how often it was replayed.
        taken: bytes of the memory that it holds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.replays = self.taken = 0
        self._calls: list[Callable[[], object]] = []
        self._on = False

    def first(self, step: Callable[[], Any]) -> Any:
        with self._recording(), self:
            self._out = step()
        return tree_map_only(torch.Tensor, torch.clone, self._out)

    def replay(self) -> Any:
        self.replays += 1
        for call in self._calls:
            call()
        return self._out

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not self._on:
            return func(*args, **kwargs)
        masks = [x for x in _tensors(args) if x.dtype == torch.bool]
        if name in WAITS or (name.startswith("index") and masks):
            raise NotCapturableError(name)
        known = {_memory(each) for each in _tensors((args, kwargs))}
        given = func(*args, **kwargs)
        made = [each for each in _tensors(given) if _memory(each) not in known]
        self.taken += sum(each.untyped_storage().nbytes() for each in made)
        if name.startswith(("empty", "new_empty")):
            return given
        if func._schema.is_mutable:
            self._calls.append(lambda: func(*args, **kwargs))
        elif made:
            self._calls.append(lambda: _again(given, func(*args, **kwargs)))
        return given

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Within, launches of Triton's kernels are recorded, and what asks the host is refused."""
        patched = [(of, name, getattr(of, name)) for of, names in OF_THE_HOST for name in names]
        before = KernelInterface.__getitem__

        def chosen(kernel: Any, grid: Any) -> Callable[..., None]:
            launch: Any = before(kernel, grid)

            def launched(*args: Any, **constants: Any) -> None:
                self._on = False
                launch(*args, **constants)
                self._on = True
                self._calls.append(lambda: launch(*args, **constants))

            return launched

        try:
            for of, name, own in patched:
                setattr(of, name, self._refusing(name, own))
            KernelInterface.__getitem__ = chosen
            self._on = True
            yield
        finally:
            self._on = False
            KernelInterface.__getitem__ = before
            for of, name, own in patched:
                setattr(of, name, own)

    def _refusing(self, name: str, own: Any) -> Callable[..., Any]:
        def refused(*args: Any, **kwargs: Any) -> Any:
            if self._on and sys._getframe(1).f_code.co_filename != CELLS:
                raise NotCapturableError(name)
            return own(*args, **kwargs)

        return refused


def _again(given: Any, new: Any) -> None:
    for to, each in zip(_tensors(given), _tensors(new), strict=True):
        to.copy_(each)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
