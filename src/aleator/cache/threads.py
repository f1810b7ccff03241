"""The native thread pools that the cache and the decoders' layers share."""

from __future__ import annotations

import functools

import torch

from aleator import _native


@functools.cache
def thread_pool(threads: int) -> _native.ThreadPool:
    """The pool of so many threads (1 to 256); its threads sleep when idle."""
    return _native.ThreadPool(threads)


def torch_pool() -> _native.ThreadPool:
    """A pool of as many threads as torch uses."""
    return thread_pool(min(torch.get_num_threads(), 256))
