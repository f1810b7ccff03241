"""Random calls of the operator, over families of rows, and their comparison bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

Call = tuple[tuple[Any, ...], dict[str, Any]]


def rows(rng: np.random.Generator, n_rows: int, n_vocab: int, logits: bool) -> Any:
    """Normal, flat, tied, masked, NaN and infinite rows, all with something to select."""
    x = rng.normal(size=(n_rows, n_vocab)) * rng.choice([0.1, 1, 3, 10])
    family = rng.integers(6)
    if family == 1:
        x = np.round(x)
    elif family == 2:
        x[rng.random(x.shape) < 0.5] = -np.inf
    elif family == 5:
        x[:] = 0
    x[:, -1] = np.where(np.isfinite(x).any(1), x[:, -1], 0.25)
    if not logits:
        e = np.exp(x - np.where(np.isfinite(x), x, -99).max(1, keepdims=True))
        x = e / e.sum(1, keepdims=True) * rng.choice([1, 0.5])
    if family in (3, 4):
        x[rng.random(x.shape) < 0.2] = np.nan
    if family == 4 and logits:
        x[rng.random(x.shape) < 0.05] = np.inf
    x = x.astype(rng.choice(["float32", "float16"]))
    some = ~np.isnan(x) & (x > (-np.inf if logits else 0))
    x[:, -1] = np.where(some.any(1), x[:, -1], x.dtype.type(0.25))
    return x


def call(rng: np.random.Generator, n_rows: int, n_vocab: int) -> Call:
    """Arguments of one call."""
    logits = bool(rng.random() < 0.6)
    x = rows(rng, n_rows, n_vocab, logits)
    ks = [-1, 0, 1, 2, 5, 50, 100, 1000, 1024, 1025, n_vocab]
    top_k = rng.choice(ks, size=n_rows).astype(np.int32)
    top_p = rng.choice([-1, 0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1, 2], size=n_rows)
    top_p = top_p.astype(rng.choice(["float32", "float16"]))
    min_p = rng.choice([-1, 0, 0.001, 0.05, 0.5, 1, 2], size=(n_rows, 1)).astype(np.float32)
    mode = rng.integers(3)
    q = rng.exponential(size=(n_rows, n_vocab)).astype(np.float32) if mode == 1 else None
    options = {
        "eps": float(rng.choice([0, 1e-8, 0.1])),
        "is_need_logits": bool(rng.random() < 0.5),
        "ks_max": int(rng.choice([1, 8, 10, 1024])),
        "input_is_logits": logits,
        "is_need_sample_result": bool(mode == 2),
    }
    return (x, top_k, top_p, q, None if rng.random() < 0.4 else min_p), options


def same_bits(expected: Any, got: Any) -> None:
    """Assert equality of all outputs, dtypes included, bit for bit."""
    for name, a, b in zip(expected._fields, expected, got, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            b = np.asarray(b)
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tobytes() == b.tobytes(), (name, np.argwhere(a != b)[:4])
