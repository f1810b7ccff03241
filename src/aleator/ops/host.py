"""The operator on the CPU: native/ops/top_k_top_p_sample.cpp over NumPy arrays and tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from aleator.core import host
from aleator.core.threads import pool
from aleator.ops.arguments import Call, column

# The counters of the native kernel, by how much of a row it had to read.
PATHS = ("argmax", "top_k", "nucleus", "min_p", "all")


def run(call: Call, outputs: Iterable[Any], n_threads: int | None = None) -> None:
    """Write the outputs that are not ``None``; the arguments are checked, and rows are contiguous.

    ``n_threads``: 1 to 256; ``None`` is one per processor.
    """
    indices, select, listed, probs = outputs
    threads = min(n_threads or os.cpu_count() or 1, call.logits.shape[0], 256)
    host.top_k_top_p_sample(
        call.logits, column(call.top_k), column(call.top_p), call.q, column(call.min_p),
        column(call.seeds), column(call.positions), call.eps, call.limit,
        call.input_is_logits, indices, select, listed, probs,
        pool(threads) if threads > 1 else None,
    )  # fmt: skip
