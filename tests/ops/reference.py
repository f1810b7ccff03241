"""The operator in NumPy, one row after the other, written for reading: what every kernel is held to.

The contract is docs/operator.md.  Float32 elementwise operations, integers, and exact fractions only; the
tests compare the native and the Triton kernels with it, bit for bit.  Nothing that samples imports it.

Where the operator's document contradicts itself, these hold:

- Top-p keeps the first n with cumulative sum >= p, so the crossing token stays (elsewhere: while sum <= p,
  which drops it); descending, also without top-k (elsewhere: probSum <= 1 - p, ascending, the same nucleus).
- k is valid up to min(V, ks_max aligned to 8), at most 1,024. ``top_k`` and ``top_p`` are [B] or [B, 1].
- Removed entries are -inf in ``logits_top_kp_select``, 0 in ``logits_sort_masked``, whose values lie in [0, 1],
  as p <= 0 gives 1.
- The noise is abs(q) + eps, as in its code, not q + eps. "Then minP" of the table's "topK-topP" is a slip for
  topP, as its columns show.
- Masks are intersected; an index times masks would lose token 0. Segments of 8 * ks_max have no influence.
- Min-p works in all combinations, as in the formulas, not only with the intermediate result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.contract import Purpose
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.numerics import exact, ints, weights
from aleator.core.philox import stream, uniform64
from aleator.core.records import dataclass
from aleator.ops.arguments import Sampled, column, round_up

Floats = NDArray[np.float32]
ONE = 1 << 40  # a probability of 1


@dataclass
class Kept:
    """A row after top-k, top-p and min-p: the list, in the order that positions of ``q`` refer to."""

    ids: NDArray[np.int64]
    values: Floats  # canonical
    weights: NDArray[np.uint64]
    probs: Floats


def canonical(row: Any, input_is_logits: bool) -> Floats:
    """Canonical form: logits as in docs/numerics.md, probabilities in [0, 1] with 0 for NaN."""
    x: Floats = np.asarray(row).astype(np.float32)
    if not input_is_logits:
        x = np.where(np.isnan(x), np.float32(0), x) + np.float32(0)
        if ((x < 0) | (x > 1)).any():
            raise LogitsError("a value is no probability")
        if not x.any():
            raise LogitsError("every probability is 0")
        return x
    x = np.where(np.isnan(x), np.float32(-np.inf), x) + np.float32(0)
    if (x == np.inf).any():
        x = np.where(x == np.inf, np.float32(0), np.float32(-np.inf))
    if (x == -np.inf).all():
        raise LogitsError("no token has a finite logit")
    return x


def keep(row: Any, k: int, p: Any, m: Any, limit: int, input_is_logits: bool) -> Kept:
    """Top-k, top-p and min-p of one row; ``limit`` is the largest k that is not skipped."""
    p, m = np.float32(p), np.float32(m)
    for name, value in (("top_p", p), ("min_p", m)):
        if np.isnan(value):
            raise ParameterError(name, f"{name} is NaN")
    x = canonical(row, input_is_logits)
    top = x.max()
    order = np.lexsort((np.arange(len(x)), -x.astype(np.float64)))
    acts = 1 <= k <= min(len(x), limit)
    ids = order[:k] if acts else order if p < 1 else np.arange(len(x))
    if input_is_logits:
        w = weights(x, top, 1.0)
        total = sum(ints(w[ids]))
        probs = (w.astype(np.float64) / np.float64(total)).astype(np.float32)
    else:
        w = np.array([int(exact(v) * ONE) for v in x], np.uint64)
        total, probs = ONE, x.copy()
    if p <= 0:
        ids = ids[:1]
        if input_is_logits:
            probs[ids] = np.float32(1)
    elif p < 1:
        wanted, mass = math.ceil(exact(float(p)) * total), 0
        for length, weight in enumerate(ints(w[ids]), start=1):
            mass += weight
            if mass >= wanted:
                ids = ids[:length]
                break
    if m >= 1:
        ids = ids[:1] if acts or p < 1 else order[:1]
    elif m > 0 and input_is_logits:
        with np.errstate(over="ignore"):
            ids = ids[x[ids] - top >= np.float32(math.log(float(m)))]
    elif m > 0:
        ids = ids[x[ids].astype(np.float64) >= np.float64(m) * np.float64(top)]
    return Kept(ids.astype(np.int64), x[ids], w[ids], probs[ids])


def race(kept: Kept, q: Any, eps: float) -> int:
    """The token with the largest ``prob / (|q| + eps)``, ``q`` by position in the list."""
    noise = np.asarray(q, np.float32)[: len(kept.ids)]
    if np.isnan(noise).any():
        raise ParameterError("q", "q is NaN")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        score = kept.probs / (np.abs(noise) + np.float32(eps))
    score[kept.probs == 0] = -1  # never drawn
    return int(kept.ids[np.argmax(score)])


def first(kept: Kept) -> int:
    """The first token of the order."""
    return int(kept.ids[np.argmax(kept.values)] if len(kept.ids) else -1)


def rows_of(parameter: Any) -> list[Any]:
    """One value per row, from [B] or [B, 1]."""
    return list(column(np.asarray(parameter)))


def top_k_top_p_sample(
    logits: Any,
    top_k: Any,
    top_p: Any,
    q: Any = None,
    min_p: Any = None,
    *,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> Sampled:
    """The operator; its arguments are not checked here.  ``top_k_guess`` changes nothing."""
    x = np.asarray(logits)
    n_rows = len(x)
    masked = -np.inf if input_is_logits else 0
    indices = np.zeros(n_rows, np.int64)
    select = np.full(x.shape, masked, np.float32)
    listed, probs = np.zeros(x.shape, np.int64), np.zeros(x.shape, np.float32)
    ks, ps = rows_of(top_k), rows_of(top_p)
    ms = [0.0] * n_rows if min_p is None else rows_of(min_p)
    for b in range(n_rows):
        kept = keep(x[b], int(ks[b]), ps[b], ms[b], round_up(ks_max), input_is_logits)
        listed[b, : len(kept.ids)] = kept.ids
        probs[b, : len(kept.ids)] = kept.probs
        # A masked token stays masked; a logit of +inf, which counts as 0 meanwhile, is shown again.
        alive = kept.values > -np.inf
        raw = x[b].astype(np.float32)[kept.ids]
        select[b, kept.ids[alive]] = np.where(raw == np.inf, np.inf, kept.values)[alive]
        if not is_need_sample_result:
            indices[b] = first(kept) if q is None else race(kept, np.asarray(q)[b], eps)
    return Sampled(
        None if is_need_sample_result else indices,
        select if is_need_logits else None,
        listed if is_need_sample_result else None,
        probs if is_need_sample_result else None,
    )


def top_k_top_p_draw(
    logits: Any,
    top_k: Any,
    top_p: Any,
    min_p: Any = None,
    *,
    seeds: Any,
    positions: Any,
    input_is_logits: bool = True,
) -> NDArray[np.int64]:
    """One token per row by inverse cumulative mass in id order, keyed by seed and position."""
    x = np.asarray(logits)
    n_rows, n_vocab = x.shape
    ks, ps = rows_of(top_k), rows_of(top_p)
    ms = [0.0] * n_rows if min_p is None else rows_of(min_p)
    tokens = np.zeros(n_rows, np.int64)
    for b in range(n_rows):
        kept = keep(x[b], int(ks[b]), ps[b], ms[b], n_vocab, input_is_logits)
        u = uniform64(int(seeds[b]) % 2**64, 0, int(positions[b]), stream(Purpose.DIST))
        target = u * sum(ints(kept.weights)) >> 64
        tokens[b] = first(kept)  # probabilities below 2^-40 weigh nothing: if all do, the first
        for i in np.argsort(kept.ids):
            if target < int(kept.weights[i]):
                tokens[b] = kept.ids[i]
                break
            target -= int(kept.weights[i])
    return tokens
