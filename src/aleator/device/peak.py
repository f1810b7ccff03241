"""Measure the peak memory of PyTorch code by running it; on "meta" tensors nothing is computed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that operations under ``with`` make, until they are freed.

    Internal memory of operations (sorting, prefix sums) and the allocator's rounding do not count.

    ``now`` is the current number of bytes, ``most`` the peak.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and count its new tensors."""
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
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


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [x.untyped_storage() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
