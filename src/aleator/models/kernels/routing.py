"""The choice of a token's experts, and the sum of their outputs, in Triton.

The bits are those of docs/numerics.md, part 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from aleator.models.kernels.floats import EXACT, Constants, Work, exponential, sigmoid, sized, tree
from aleator.models.kernels.norms import REGISTERS, dot16, groups_at_once, rows_at_once

if TYPE_CHECKING:
    from aleator.models.config import ExpertsConfig

LEAST_SUM = tl.constexpr(2.0**-14)
"""The least sum that weights are divided by."""
_TAKEN = tl.constexpr(-(2**63))
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _total16(x, SIZE: tl.constexpr):
    """The sum of x [1, SIZE] in 16 lanes; SIZE is a multiple of 16, filled with zeros. [1, 1]."""
    groups = tl.reshape(x.to(tl.int32, bitcast=True), (1, SIZE // 16, 16))
    number = tl.arange(0, SIZE // 16)[None, :, None]
    total = tl.zeros([1, 16], tl.float32)
    for i in tl.range(0, SIZE // 16):
        # An integer sum with zeros extracts one group's bits.
        total += tl.sum(tl.where(number == i, groups, 0), axis=1).to(tl.float32, bitcast=True)
    return tl.reshape(tree(total, 1), (1, 1))


@triton.jit
def _softmax(x, inside, SIZE: tl.constexpr):
    """The softmax of a row's numbers ``inside``."""
    highest = tl.max(tl.where(inside, x, -_INFINITY), axis=1, keep_dims=True)
    e = tl.where(inside, exponential(x - highest), 0.0)
    return e * tl.div_rn(1.0, _total16(e, SIZE))


@triton.jit
def _ranks(x, number, inside):
    """int64 in the order of ``x``, with NaN as -inf; among equal ones the lower ``number`` comes first."""
    x = tl.where(x == x, x, -_INFINITY)
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(inside, (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - number), _TAKEN)


@triton.jit
def _number(rank):
    """The number in a rank."""
    return 0x7FFFFFFF - (rank & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _value(rank):
    """The float32 in a rank; -inf for NaN and for taken ones."""
    ordered = (rank >> 32).to(tl.int32)
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(rank == _TAKEN, -_INFINITY, value)


@triton.jit
def _in_best_groups(
    ranks, number, SIZE: tl.constexpr, GROUP: tl.constexpr,
    N_GROUPS: tl.constexpr, GROUPS_SIZE: tl.constexpr, N_BEST: tl.constexpr, N_GROUPS_USED: tl.constexpr,
):  # fmt: skip
    """``ranks`` of the best groups only: groups of GROUP experts, compared by the sums of their best ranks."""
    group, groups = number // GROUP, tl.arange(0, GROUPS_SIZE)[None, :]
    sums = tl.full([1, GROUPS_SIZE], 0.0, tl.float32)
    for g in tl.range(0, N_GROUPS):
        own = tl.where(group == g, ranks, _TAKEN)
        first = tl.max(own, axis=1, keep_dims=True)
        best = _value(first)
        if N_BEST == 2:
            second = tl.max(tl.where(own == first, _TAKEN, own), axis=1, keep_dims=True)
            best = best + _value(second)
        sums = tl.where(groups == g, best, sums)
    of_groups = _ranks(sums, groups, groups < N_GROUPS)
    kept = tl.zeros([1, SIZE], tl.int32)
    for _ in tl.range(0, N_GROUPS_USED):
        best_group = tl.max(of_groups, axis=1, keep_dims=True)
        kept = tl.where(group == _number(best_group), 1, kept)
        of_groups = tl.where(of_groups == best_group, _TAKEN, of_groups)
    return tl.where(kept == 1, ranks, _TAKEN)


@triton.jit
def routed(arguments, n_rows, row, stored, SHAPE: tl.constexpr):
    """Program ``row`` of :func:`routing`: the experts of a row of logits, best first, their weights, and the
    sigmoid of SHARED, whose rows are as far apart.

    Returns:
        Experts int32, and weights float32, both [1, USED_SIZE]; not ``stored``: nothing is written.
    """
    LOGITS, BIAS, SCALES, SHARED, CHOSEN, WEIGHTS, SHARED_WEIGHT, stride, scale = arguments
    N: tl.constexpr = SHAPE[0]
    N_USED: tl.constexpr = SHAPE[1]
    SIZE: tl.constexpr = SHAPE[2]
    USED_SIZE: tl.constexpr = SHAPE[3]
    N_GROUPS: tl.constexpr = SHAPE[4]
    SCORES: tl.constexpr = SHAPE[8]
    row = row.to(tl.int64) + tl.arange(0, 1)[:, None]
    there = row < n_rows
    number = tl.arange(0, SIZE)[None, :]
    inside = number < N
    scores = tl.load(LOGITS + row * stride + number, mask=there & inside)
    if SCORES == "softmax":
        scores = _softmax(scores, inside, SIZE)
    elif SCORES == "sigmoid":
        scores = sigmoid(scores)
    keys = scores
    if BIAS is not None:
        keys = scores + tl.load(BIAS + number, mask=inside)
    ranks = _ranks(keys, number, inside)
    if N_GROUPS > 1:
        ranks = _in_best_groups(
            ranks, number, SIZE, N // N_GROUPS, N_GROUPS, SHAPE[5], SHAPE[6], SHAPE[7]
        )
    place = tl.arange(0, USED_SIZE)[None, :]
    used = place < N_USED
    chosen = tl.zeros([1, USED_SIZE], tl.int32)
    bits = tl.zeros([1, USED_SIZE], tl.int32)
    for k in tl.range(0, N_USED):
        best = tl.max(ranks, axis=1, keep_dims=True)
        own = tl.where(ranks == best, scores.to(tl.int32, bitcast=True), 0)
        bits = tl.where(place == k, tl.sum(own, axis=1, keep_dims=True), bits)
        chosen = tl.where(place == k, _number(best), chosen)
        ranks = tl.where(ranks == best, _TAKEN, ranks)
    weights = bits.to(tl.float32, bitcast=True)
    if SCORES == "chosen softmax":
        weights = _softmax(weights, used, USED_SIZE)
    elif SCORES == "chosen sigmoid":
        weights = sigmoid(weights)
    if SHAPE[9]:
        total = _total16(tl.where(used, weights, 0.0), USED_SIZE)
        total = tl.where(total < LEAST_SUM, LEAST_SUM, total)
        weights = tl.div_rn(weights, tl.broadcast_to(total, (1, USED_SIZE)))
    weights = weights * scale
    if SCALES is not None:
        weights = weights * tl.load(SCALES + chosen, mask=there & used)
    at = row * N_USED + place
    if stored:
        tl.store(CHOSEN + at, chosen, mask=there & used)
        tl.store(WEIGHTS + at, weights, mask=there & used)
        if SHARED is not None:
            of_shared = sigmoid(tl.load(SHARED + row * stride, mask=there))
            tl.store(SHARED_WEIGHT + row, of_shared, mask=there)
    return chosen, weights


def routing(
    logits: torch.Tensor,
    config: ExpertsConfig,
    choice_bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Work]:
    """Experts int32 [T, n_used] and their weights, see :func:`~aleator.models.layers.routing.route`.

    NaN counts as -inf.  ``scales`` [experts] multiply the weights; the third result is the sigmoids of
    ``shared`` [T], whose rows are as far apart as those of ``logits``; the last makes them all.
    """
    n_rows, n = logits.shape
    chosen = torch.empty(n_rows, config.n_used, dtype=torch.int32, device=logits.device)
    weights = torch.empty(n_rows, config.n_used, dtype=torch.float32, device=logits.device)
    shared_weight = (
        None if shared is None else torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    )
    size = max(triton.next_power_of_2(n), 16)
    shape = (
        n, config.n_used, size, max(triton.next_power_of_2(config.n_used), 16), config.n_groups,
        triton.next_power_of_2(config.n_groups), config.n_group_best, config.n_groups_used, config.scores,
        config.normalised,
    )  # fmt: skip
    tensors = logits, choice_bias, scales, shared, chosen, weights, shared_weight
    arguments = *tensors, logits.stride(0), config.scale
    given = arguments, Constants(()), Constants((shape,)), max(1, size // 512)
    return chosen, weights, shared_weight, Work("route", n_rows, n_rows, *given)


@triton.jit(do_not_specialize=["n_rows"])
def _combine(
    GIVEN, WEIGHTS, SHARED, SHARED_WEIGHT, OUT, n_rows,
    N: tl.constexpr, N_USED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of the weighted sum of N_USED outputs, and of the shared one."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = row < n_rows
    inside = there & (cols < N)
    weight = tl.full([ROWS, 1], 1.0, tl.float32)
    y = tl.zeros([ROWS, BLOCK], tl.float32)
    for k in tl.range(0, N_USED, loop_unroll_factor=8):
        choice = row * N_USED + k
        if WEIGHTS is not None:
            weight = tl.load(WEIGHTS + choice, mask=there)
        y = tl.fma(weight, tl.load(GIVEN + choice * N + cols, mask=inside), y)
    if SHARED is not None:
        weight = tl.full([ROWS, 1], 1.0, tl.float32)
        if SHARED_WEIGHT is not None:
            weight = tl.load(SHARED_WEIGHT + row, mask=there)
        y = tl.fma(weight, tl.load(SHARED + row * N + cols, mask=inside), y)
    tl.store(OUT + row * N + cols, y, mask=inside)


def combine(
    given: torch.Tensor,
    weights: torch.Tensor | None,
    shared: torch.Tensor | None = None,
    shared_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """See :meth:`TorchOps.combine`: for contiguous float32, added by fused multiply-adds from 0."""
    n_rows, n_used, n = given.shape
    out = torch.empty(n_rows, n, dtype=given.dtype, device=given.device)
    if out.numel() == 0:
        return out
    at_once = rows_at_once(n_rows, 1)
    block = min(triton.next_power_of_2(n), sized(1024, 512))
    _combine[(triton.cdiv(n_rows, at_once), triton.cdiv(n, block))](
        given, weights, shared, shared_weight, out, n_rows,
        N=n, N_USED=n_used, ROWS=at_once, BLOCK=block, num_warps=4, **EXACT,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["n_rows"])
def _sigmoid_of_dot(
    X, VECTOR, OUT, n_rows, stride, N: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < n_rows
    at = row[:, None] * stride
    y = sigmoid(dot16(X + at, VECTOR + at * 0, there[:, None], N, ROWS, AT_ONCE))
    tl.store(OUT + row, y, mask=there)


def sigmoid_of_dot(x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """The shared expert's weights, see :meth:`TorchOps.weighed`."""
    n_rows, n = x.shape
    out = torch.empty(n_rows, dtype=x.dtype, device=x.device)
    if n_rows:
        at_once = rows_at_once(n_rows, 2)
        _sigmoid_of_dot[(triton.cdiv(n_rows, at_once),)](
            x, vector, out, n_rows, x.stride(0), N=n, ROWS=at_once, AT_ONCE=groups_at_once(n),
            num_warps=1, maxnreg=REGISTERS, **EXACT,
        )  # fmt: skip
    return out
