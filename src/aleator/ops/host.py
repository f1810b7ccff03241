"""The operator on the CPU: native/ops/top_k_top_p_sample.cpp over NumPy arrays and tensors."""

from __future__ import annotations

import os
from typing import Any

from aleator.kernels import host
from aleator.kernels.threads import pool

# What the native kernel counts, one per row: how much of the row it had to look at.
PATHS = ("argmax", "top_k", "guess", "nucleus", "min_p", "all")


def column(values: Any) -> Any:
    """[B] of [B] or [B, 1], without copying."""
    return values if values is None or len(values.shape) == 1 else values[:, 0]


def run(
    logits: Any,
    top_k: Any,
    top_p: Any,
    q: Any,
    min_p: Any,
    seeds: Any,
    positions: Any,
    eps: float,
    guess: int,
    limit: int,
    input_is_logits: bool,
    indices: Any,
    select: Any,
    listed: Any,
    probs: Any,
    *,
    n_threads: int | None = None,
) -> None:
    """Write the outputs that are not ``None``; the arguments have been checked, rows are contiguous.

    ``n_threads``: 1 to 256; ``None`` is one per processor.
    """
    threads = min(n_threads or os.cpu_count() or 1, logits.shape[0], 256)
    host.top_k_top_p_sample(
        logits, column(top_k), column(top_p), q, column(min_p), column(seeds), column(positions),
        eps, guess, limit, input_is_logits, indices, select, listed, probs,
        pool(threads) if threads > 1 else None,
    )  # fmt: skip
