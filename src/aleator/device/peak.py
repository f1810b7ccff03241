"""How much memory a piece of PyTorch takes at once, by running it: on "meta" tensors nothing is computed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that operations under ``with`` make, until they are freed.

    What an operation takes within itself (sorting, prefix sums) is its own and does not count, nor does what an
    allocator rounds up.

    Attributes:
        now: bytes there are.
        most: the most there were at once.

    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run it, and count what is new."""
        given = {_storage(t)._cdata for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not _is_tensor(tensor):
                continue
            storage = _storage(tensor)
            key, size = storage._cdata, storage.nbytes()
            if key not in given and key not in self._known:
                self._known.add(key)
                self.now += size
                weakref.finalize(storage, self._freed, key, size)
        self.most = max(self.most, self.now)
        return out

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _storage(x: torch.Tensor) -> torch.UntypedStorage:
    return x.untyped_storage()
