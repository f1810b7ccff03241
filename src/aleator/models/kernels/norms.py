"""Norms, activations, gates and softened logits in Triton, with the bits of docs/numerics.md, part 2."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

import aleator._native as _native
from aleator.models.kernels import floats

CLAMPED_LIMIT = tl.constexpr(7.0)
CLAMPED_SLOPE = tl.constexpr(-float(np.float32(1.702)))


@triton.jit
def dot16(a, b, there, N: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Sums of products of ``N`` neighbouring float32, in 16 lanes, of ROWS rows: float32 [ROWS].

    ``a`` and ``b`` are pointers [ROWS, 1] to the first ones, ``there`` bools [ROWS, 1]; AT_ONCE is
    :func:`groups_at_once` of N.
    """
    lanes = tl.arange(0, 16)[None, :]
    total = tl.zeros([ROWS, 16], tl.float32)
    for start in tl.range(0, N // 16 // AT_ONCE):
        # Loads come first: their latencies overlap.
        groups = ()
        for i in tl.static_range(AT_ONCE):
            cols = (start * AT_ONCE + i) * 16 + lanes
            v = tl.load(a + cols, mask=there)
            groups += ((v, tl.load(b + cols, mask=there)),)
        for i in tl.static_range(AT_ONCE):
            total = tl.fma(groups[i][0], groups[i][1], total)
    if N % 16:
        cols = N // 16 * 16 + lanes
        inside = there & (cols < N)
        more = tl.fma(tl.load(a + cols, mask=inside), tl.load(b + cols, mask=inside), total)
        total = tl.where(inside, more, total)
    return floats.tree(total, ROWS)


def groups_at_once(n: int) -> int:
    """How many groups of 16 of ``n`` numbers are read before they are added; it divides their number."""
    groups = n // 16
    return next((k for k in range(min(groups, 32), 0, -1) if groups % k == 0), 1)


# Otherwise ptxas saves registers by loading late, and every addition waits for its load.
REGISTERS = 255
"""``maxnreg`` of kernels with sums in 16 lanes."""


@triton.jit
def _total(
    x,
    mean,
    there,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SQUARES: tl.constexpr,
):
    """The sum of rows at ``x``, or of the squares of their distances from ``mean`` [ROWS, 1]; [ROWS]."""
    lanes = tl.arange(0, 16)[None, :]
    total = tl.zeros([ROWS, 16], tl.float32)
    for start in tl.range(0, N // 16 // AT_ONCE):
        groups = ()
        for i in tl.static_range(AT_ONCE):
            cols = (start * AT_ONCE + i) * 16 + lanes
            groups += (tl.load(x + cols, mask=there),)
        for i in tl.static_range(AT_ONCE):
            v = groups[i]
            if SQUARES:
                v = v - mean
                total = tl.fma(v, v, total)
            else:
                total = total + v
    if N % 16:
        cols = N // 16 * 16 + lanes
        inside = there & (cols < N)
        v = tl.load(x + cols, mask=inside)
        if SQUARES:
            v = v - mean
        more = tl.fma(v, v, total) if SQUARES else total + v
        total = tl.where(inside, more, total)
    return floats.tree(total, ROWS)


@triton.jit
def moments(
    x, there, eps, N: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr, LAYER: tl.constexpr
):
    """For rows at ``x``: the mean, 0 without LAYER, and the factor; [ROWS, 1]."""
    mean = tl.zeros([ROWS, 1], tl.float32)
    if LAYER:
        total = _total(x, mean, there, N, ROWS, AT_ONCE, SQUARES=False)
        mean = tl.div_rn(total, N * 1.0).reshape([ROWS, 1])
    squares = _total(x, mean, there, N, ROWS, AT_ONCE, SQUARES=True)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, N * 1.0) + eps))
    return mean, factor.reshape([ROWS, 1])


@triton.jit
def scaled(v, weight, bias, mean, factor, cols, inside, NORM: tl.constexpr):
    """Numbers ``v`` of columns ``cols``, normalised as :func:`moments` says; NORM: "rms" or "layer"."""
    if NORM == "layer":
        v = v - mean
    v = v * factor
    if weight is not None:
        v = v * tl.load(weight + cols, mask=inside)
    if NORM == "layer":
        v = v + (tl.load(bias + cols, mask=inside) if bias is not None else 0.0)
    return v


@triton.jit(do_not_specialize=["n_rows", "inner", "eps", "scale"])
def _norm(
    X, WEIGHT, BIAS, RESIDUAL, OUT, n_rows, inner,
    x_outer, x_inner, out_outer, out_inner, weight_inner, eps, scale,
    N: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, LAYER: tl.constexpr,
):  # fmt: skip
    """Rows [n_rows / inner, inner, N] normalised; with RESIDUAL, contiguous, ``RESIDUAL + scale * norm``."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    there = row < n_rows
    outer, within = row // inner, row % inner
    x = X + outer * x_outer + within * x_inner
    weight = WEIGHT + within * weight_inner if WEIGHT is not None else None
    bias = BIAS + within * weight_inner if BIAS is not None else None
    # Whole rows are read at once; the sums, whose lanes read them in order, find them in the L1 cache.
    cols = tl.arange(0, SIZE)[None, :]
    inside = there & (cols < N)
    v = tl.load(x + cols, mask=inside)
    mean, by = moments(x, there, eps, N, ROWS, AT_ONCE, LAYER)
    v = scaled(v, weight, bias, mean, by, cols, inside, "layer" if LAYER else "rms")
    if RESIDUAL is not None:
        v = tl.load(RESIDUAL + row * N + cols, mask=inside) + v * scale
    # The output may be the input: no thread writes before all have read.
    tl.debug_barrier()
    tl.store(OUT + outer * out_outer + within * out_inner + cols, v, mask=inside)


@dataclass(frozen=True, eq=False)
class RowNorm:
    """A norm of rows."""

    kind: str  # "rms" or "layer"
    weight: torch.Tensor | None  # float32 [n], or [heads, n], see normalised(); None: 1
    bias: torch.Tensor | None  # of the same size, for kind "layer"; None: 0
    eps: float  # added to the mean of the squares

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 [..., n] normalised, in one launch."""
        return normalised(x, self)


def normalised(
    x: torch.Tensor,
    norm: RowNorm,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows normalised, or ``residual + scale * norm(x)``, in one launch.

    Args:
        x: float32 [..., n], neighbouring along the last dimension, with any other strides.
        norm: the norm; its weights may be [heads, n] for ``x`` [..., heads, n].
        residual: as large as ``x``, contiguous; None: nothing is added.
        scale: see above.
        out: where the result goes, as large as ``x``, which it may be; None: a new tensor.

    Returns:
        float32 [..., n].
    """
    weight, bias, eps = norm.weight, norm.bias, norm.eps
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if x.numel() == 0:
        return out
    rows, made = _in_three(x), _in_three(out)
    n, n_rows = x.shape[-1], rows.shape[0] * rows.shape[1]
    at_once = rows_at_once(n_rows, 1 if n > 512 else 2)
    head_stride = weight.stride(0) if weight is not None and weight.dim() == 2 else 0
    _norm[(triton.cdiv(n_rows, at_once),)](
        rows, weight, bias, residual, made, n_rows, rows.shape[1], rows.stride(0), rows.stride(1),
        made.stride(0), made.stride(1), head_stride, eps, scale,
        N=n, ROWS=at_once, SIZE=triton.next_power_of_2(n), AT_ONCE=groups_at_once(n),
        LAYER=norm.kind == "layer", num_warps=warps(n), maxnreg=REGISTERS, **floats.EXACT,
    )  # fmt: skip
    return out


def warps(n: int) -> int:
    """Warps for rows of ``n``.  More would read the lanes more often, as each sums all of them."""
    return 1 if n <= 512 else 4 if n <= 8192 else 8


def _in_three(x: torch.Tensor) -> torch.Tensor:
    """[..., n] as [outer, inner, n]: inner is the dimension before the last."""
    return x.view(-1, *x.shape[-2:]) if x.dim() > 3 else x[(None,) * (3 - x.dim())]


def rows_at_once(n_rows: int, few: int) -> int:
    """How many of ``n_rows`` rows a program takes: ``few`` on a device."""
    return floats.sized(min(triton.next_power_of_2(max(n_rows, 1)), 64), few)


@triton.jit
def activated(x, up, table, inside, KIND: tl.constexpr):
    """An activation of ``x``, times ``up``; see :func:`activate`."""
    if KIND == "silu":
        y = floats.silu(x) * up
    elif KIND == "silu_clamped":
        x = tl.where(x > CLAMPED_LIMIT, CLAMPED_LIMIT, x)
        high = tl.where(up > CLAMPED_LIMIT, CLAMPED_LIMIT, up)
        up = tl.where(up < -CLAMPED_LIMIT, -CLAMPED_LIMIT, high)
        y = tl.div_rn(x, 1.0 + floats.exponential(x * CLAMPED_SLOPE)) * (up + 1.0)
    elif KIND == "gelu":
        y = floats.gelu(x) * up
    elif KIND == "gelu_exact":
        y = floats.gelu_exact(x) * up
    elif KIND == "gelu_rounded":
        half = x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        within = tl.load(table + half, mask=inside).to(tl.float32)
        y = up * tl.where(x <= -10.0, 0.0, tl.where(x >= 10.0, x, within))
    elif KIND == "relu_squared":
        y = floats.relu_squared(x) * up
    else:
        tl.static_assert(KIND == "sigmoid_gate")
        y = tl.div_rn(up, 1.0 + floats.exponential(-x))
    return y


@triton.jit(do_not_specialize=["cap", "scale"])
def _activate(
    GATE, UP, TABLE, OUT, total, gate_stride, up_stride, out_stride, cap, scale,
    N: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """An activation of each number, times another; rows lie ``*_stride`` apart."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    row, col = at // N, at % N
    x = tl.load(GATE + row * gate_stride + col, mask=inside)
    up = tl.full([BLOCK], 1.0, tl.float32)
    if UP is not None:
        up = tl.load(UP + row * up_stride + col, mask=inside)
    if KIND == "soften":
        y = floats.softened(x * scale, cap)
    else:
        y = activated(x, up, TABLE, inside, KIND)
    tl.store(OUT + row * out_stride + col, y, mask=inside)


def activate(
    kind: str,
    gate: torch.Tensor,
    up: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    cap: float = 1.0,
    scale: float = 1.0,
) -> torch.Tensor:
    """``f(gate) * up``.

    Args:
        kind: "silu", "silu_clamped", "gelu", "gelu_exact", "gelu_rounded" or "relu_squared", see
            :func:`~aleator.models.layers.parts.gate_of`; "sigmoid_gate": ``up / (1 + e^-gate)``; or "soften":
            ``cap * tanh(gate * scale / cap)``.
        gate: float32 [..., n], neighbouring along the last dimension.
        up: as large; None: 1.
        out: where the result goes; it may be ``gate`` or ``up``.  None: a new tensor.
        cap: see ``kind``.
        scale: see ``kind``.

    Returns:
        float32 [..., n].
    """
    n = gate.shape[-1]
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    if gate.numel() == 0:
        return out
    rows, made = gate.flatten(0, -2) if gate.dim() > 1 else gate[None], out.view(-1, n)
    others = up if up is None else up.flatten(0, -2) if up.dim() > 1 else up[None]
    block = floats.sized(min(triton.next_power_of_2(rows.numel()), 1 << 16), 512)
    _activate[(triton.cdiv(rows.numel(), block),)](
        rows, others, gelu_table(gate.device) if kind == "gelu_rounded" else None, made,
        rows.numel(), rows.stride(0), 0 if others is None else others.stride(0), made.stride(0), cap, scale,
        N=n, KIND=kind, BLOCK=block, num_warps=4, **floats.EXACT,
    )  # fmt: skip
    return out


@functools.lru_cache(maxsize=16)
def gelu_table(device: torch.device) -> torch.Tensor:
    """GELU of every float16 from -10 to 10, by its bits, float16 [65,536]: native code's table.

    It is copied to a device once, before any capture: graphs cannot capture the copy.
    """
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    # The table is not used for -10 itself, but for its neighbour, which is rounded to -10.
    with np.errstate(invalid="ignore"):  # for signalling NaN
        made: Any = np.where(halves == -10, np.nextafter(halves, np.float32(0)), halves)
    _native.activate("gelu_rounded", made, np.ones_like(made))
    return torch.from_numpy(made.astype(np.float16)).to(device)
