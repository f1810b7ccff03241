"""Operations beside the scans of layers that keep a state: convolutions, rates, gates, norms of parts of rows.

All tensors are float32; rows may have any stride, but their elements are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aleator.models.config import MAX_CONV
from aleator.models.kernels.floats import (
    EXACT,
    Constants,
    Work,
    exponential,
    sigmoid,
    silu,
    sized,
    softplus,
    tree,
)
from aleator.models.kernels.norms import activate, groups_at_once, rows_at_once
from aleator.models.kernels.runs import Runs

_MAX_CONV = tl.constexpr(MAX_CONV)


def convolving(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Tensor,
    runs: Runs,
    activated: bool,
    gates: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Work]:
    """See :func:`aleator.models.layers.scans.convolve`: the result, and what is to be launched to make it.

    ``kept`` is float32 [rows, C, width - 1], oldest first.  ``gates``, [T, C] with rows as far apart as those
    of ``x``, multiply what the convolution takes and makes.  Rows may have any stride.
    """
    (t, n), width = x.shape, weight.shape[1]
    y = torch.empty((t, n), dtype=torch.float32, device=x.device)
    slots = triton.next_power_of_2(width - 1)
    # Only the run's first tile needs values from before the run.
    tokens = max(4 if t <= 64 else 16, slots)
    channels = at_once(n, max(4, min(64, 2048 // (tokens * slots))))
    arguments = x, weight, bias, kept, y, runs, gates, x.stride(0), n
    shape = Constants(((width, activated, tokens, channels, slots),))
    chains = len(runs.sources)
    programs = triton.cdiv(n, channels) * chains
    return y, Work("convolution", programs, chains, arguments, Constants(()), shape)


@triton.jit
def _values(
    x, gates, history, order, at, wanted, channel, inside, first, begun, stride, BEFORE: tl.constexpr
):  # fmt: skip
    """Channels' values at indices ``at`` of ``order``: those of a run's tokens, or what was kept before."""
    new, old = wanted & (at >= first), wanted & (at < begun)
    token = tl.load(order + at, mask=new)
    value = tl.load(x + token * stride + channel, mask=new & inside, other=0.0)
    if gates is not None:
        value = tl.load(gates[0] + token * stride + channel, mask=new & inside, other=0.0) * value
    slot = at - first + BEFORE
    kept = tl.load(history + channel * BEFORE + slot, mask=old & inside)
    return tl.where(old, kept, value)


@triton.jit
def convolved(arguments, n_chains, number, SHAPE: tl.constexpr):
    """Program ``number`` of :func:`convolving`: some channels of a chain of runs; none of further programs."""
    x, weight, bias, kept, y, runs, gates, stride, n = arguments
    chains, starts, sources, order, stores, _ = runs
    WIDTH: tl.constexpr = SHAPE[0]
    TOKENS: tl.constexpr = SHAPE[2]
    CHANNELS: tl.constexpr = SHAPE[3]
    SLOTS: tl.constexpr = SHAPE[4]
    BEFORE: tl.constexpr = WIDTH - 1
    blocks = tl.cdiv(n, CHANNELS)
    own = number % blocks * CHANNELS + tl.arange(0, CHANNELS)
    channel, channels = own[None, :], own[None, :, None]
    inside = channel < n
    slot = tl.arange(0, SLOTS)[None, None, :]
    real, chain = number < blocks * n_chains, chains + number // blocks
    for run in range(tl.load(chain, real, 0), tl.load(chain + 1, real, 0)):
        first, last = tl.load(starts + run), tl.load(starts + run + 1)
        source = tl.load(sources + run)
        begun = tl.where(source < 0, -BEFORE, first)  # no index is as low
        history = kept + source * (n * BEFORE)
        for begin in range(first, last, TOKENS):
            i = begin + tl.arange(0, TOKENS)
            at, live = i[:, None], (i < last)[:, None]
            total = tl.zeros((TOKENS, CHANNELS), tl.float32)
            for k in tl.static_range(WIDTH):
                value = _values(
                    x, gates, history, order, at + (k - BEFORE), live, channel, inside, first, begun,
                    stride, BEFORE,
                )  # fmt: skip
                w = tl.load(weight + channel * WIDTH + k, mask=inside)
                total = tl.fma(value, w, total)
            added = 0.0  # which of -0 makes +0
            if bias is not None:
                added = tl.load(bias + channel, mask=inside)
            total = total + added
            if SHAPE[1]:
                total = silu(total)
            token = tl.load(order + at, mask=live)
            if gates is not None:
                total = tl.load(gates[1] + token * stride + channel, mask=live & inside) * total
            tl.store(y + token * n + channel, total, mask=live & inside)
            row = tl.load(stores + i, mask=i < last, other=-1)
            if tl.max(row, axis=0) >= 0:
                rows = row[:, None, None]
                wanted = (rows >= 0) & (slot < BEFORE)
                latest = _values(
                    x, gates, history, order, i[:, None, None] + slot + (1 - BEFORE), wanted,
                    channels, channels < n, first, begun, stride, BEFORE,
                )  # fmt: skip
                tl.debug_barrier()  # other threads may still read this row
                to = kept + rows * (n * BEFORE) + channels * BEFORE + slot
                tl.store(to, latest, mask=wanted & (channels < n))
        tl.debug_barrier()  # the next run may start from what this one has kept


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution over time and SiLU, see :func:`convolving`, of what a product of few rows takes.

    The product's programs make it; :func:`keep_latest` in a later launch keeps what it has taken.
    """

    weight: Tensor
    bias: Tensor | None
    kept: Tensor
    runs: Runs
    y: Tensor  # the result, float32 [T, C]
    kind = "convolution"

    @property
    def arguments(self) -> tuple[Any, ...]:
        """For kernels: tensors."""
        return self.weight, self.bias, self.kept, self.runs.previous, self.y

    @property
    def constants(self) -> tuple[Any, ...]:
        """Constants of kernels, as many as a :class:`PartNorm` has: the width first, and the kind."""
        return self.weight.shape[1], False, self.kind, 1, 1


@triton.jit
def _before(previous, at):
    """Where the tokens before those ``at`` are, see :class:`Runs`."""
    return tl.where(at >= 0, tl.load(previous + at, mask=at >= 0, other=0), at - 1)


@triton.jit
def _value_at(x, kept, at, channel, inside, stride, n, BEFORE: tl.constexpr):
    """Channels' values of tokens of the micro-batch, or of rows of states."""
    new = tl.load(x + at * stride + channel, mask=inside & (at >= 0), other=0.0)
    old = -1 - at
    row, slot = old // _MAX_CONV - 1, BEFORE - 1 - old % _MAX_CONV
    mask = inside & (at < 0) & (row >= 0)
    return tl.where(at >= 0, new, tl.load(kept + (row * n + channel) * BEFORE + slot, mask, 0.0))


@triton.jit
def convolved_rows(x, of, out, first, last, stride, n, WIDTH: tl.constexpr, T: tl.constexpr):
    """T rows of x, from row ``first`` on, convolved: ``out`` float32 [T, n]; the last row repeats.

    ``of`` is of a :class:`Convolution`.  The first program of a row writes to its ``y``.
    """
    weight, bias, kept, previous, y = of
    AT_ONCE: tl.constexpr = 1024 // T
    i = tl.arange(0, T)[:, None]
    token = tl.minimum(first + i, last).to(tl.int64)
    places = (token,)
    for k in tl.static_range(WIDTH - 1):
        places += (_before(previous, places[k]),)
    for begin in range(0, n, AT_ONCE):
        channel = begin + tl.arange(0, AT_ONCE)[None, :]
        inside = channel < n
        total = tl.zeros((T, AT_ONCE), tl.float32)
        for k in tl.static_range(WIDTH):
            at = places[WIDTH - 1 - k]
            value = _value_at(x, kept, at, channel, inside, stride, n, WIDTH - 1)
            total = tl.fma(value, tl.load(weight + channel * WIDTH + k, mask=inside), total)
        added = 0.0  # which of -0 makes +0
        if bias is not None:
            added = tl.load(bias + channel, mask=inside)
        total = silu(total + added)
        tl.store(out + i * n + channel, total, mask=inside)
        if tl.program_id(1) == 0:
            tl.store(y + token * n + channel, total, mask=inside & (first + i <= last))


@triton.jit
def keep_latest(
    x, kept, runs, stride, n, channel, inside, tokens, WIDTH: tl.constexpr, MOST: tl.constexpr
):
    """Keep the latest values of channels for later tokens, of up to MOST tokens.

    One program has these channels: all is read before any is written, as rows may be read and written.
    """
    _, _, _, order, stores, previous = runs
    i = tl.arange(0, MOST)
    row = tl.load(stores + i, mask=i < tokens, other=-1)
    again = (row[:, None] == row[None, :]) & (i[:, None] < i[None, :])
    row = tl.where(tl.max(again.to(tl.int32), axis=1) > 0, -1, row)[:, None]
    at = tl.load(order + i, mask=i < tokens, other=0)[:, None]
    own, wanted, values = channel[None, :], (row >= 0) & inside[None, :], ()
    for _ in tl.static_range(WIDTH - 1):
        values += (_value_at(x, kept, at, own, wanted, stride, n, WIDTH - 1),)
        at = _before(previous, at)
    tl.debug_barrier()
    for k in tl.static_range(WIDTH - 1):
        tl.store(kept + (row * n + own) * (WIDTH - 1) + (WIDTH - 2 - k), values[k], mask=wanted)


def time_step(x: Tensor, bias: Tensor, a: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Time steps max(softplus(x + bias), ``least``), and decays e^(step a).

    x is [T, heads], bias and a [heads], both results [T, heads].
    """
    step, decay = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for _ in range(2))
    _time_step[_blocks(x)](
        x, bias, a, step, decay, x.stride(0), x.shape[1], x.numel(), least, **_options()
    )
    return step, decay


@triton.jit
def _time_step(x, bias, a, step, decay, stride, columns, n, least, BLOCK: tl.constexpr):
    i, inside, row, column = _elements(columns, n, BLOCK)
    value = tl.load(x + row * stride + column, mask=inside)
    added, rate = tl.load(bias + column, mask=inside), tl.load(a + column, mask=inside)
    value, stays = stepped(value, added, rate, least)
    tl.store(step + i, value, mask=inside)
    tl.store(decay + i, stays, mask=inside)


@triton.jit
def stepped(x, bias, a, least):
    """A time step and its decay, see :func:`time_step`."""
    step = softplus(x + bias)
    step = tl.where(step < least, least, step)
    return step, exponential(step * a)


@triton.jit
def stayed(decay, bias, a):
    """e^(a softplus(decay + bias))."""
    return exponential(softplus(decay + bias) * a)


def delta_rates(beta: Tensor, decay: Tensor, bias: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """``1 / (1 + e^-beta)`` and ``e^(a softplus(decay + bias))``.

    beta is [T, heads], a [heads]; decay [T, heads * n] and bias [heads * n], with n decays for each head.
    """
    written, stays = (
        torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in (beta, decay)
    )
    _delta_rates[_blocks(decay)](
        beta, decay, bias, a, written, stays, beta.stride(0), decay.stride(0), decay.shape[1],
        decay.numel(), EACH=decay.shape[1] // beta.shape[1], **_options(),
    )  # fmt: skip
    return written, stays


@triton.jit
def _delta_rates(
    beta, decay, bias, a, written, stays, beta_row, decay_row, columns, n,
    EACH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i, inside, row, column = _elements(columns, n, BLOCK)
    head = column // EACH
    first = inside & (column % EACH == 0)
    value = tl.load(beta + row * beta_row + head, mask=first)
    tl.store(written + i // EACH, sigmoid(value), mask=first)
    value = tl.load(decay + row * decay_row + column, mask=inside)
    added, rate = tl.load(bias + column, mask=inside), tl.load(a + head, mask=inside)
    tl.store(stays + i, stayed(value, added, rate), mask=inside)


@triton.jit
def _elements(columns, n, BLOCK: tl.constexpr):
    """A program's elements: their indices, whether they are below ``n``, their rows and columns."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return i, i < n, i // columns, i % columns


def _blocks(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), _options()["BLOCK"]),)


def _options() -> dict[str, Any]:
    """Elements of a program, and options of the launch."""
    return {"BLOCK": sized(4096, 512), "num_warps": 4, **EXACT}


def unit_length(x: Tensor, size: int, eps: float, queries: int = 0) -> Tensor:
    """Parts of rows, [T, n * size], times 1 / sqrt(dot16(x, x) + eps).

    The first ``queries`` parts are multiplied by fl32(1 / sqrt(size)) / sqrt(dot16(x, x) + eps) instead.
    """
    return _normalised(x, size, eps, queries=queries)


def _normalised(
    x: Tensor,
    size: int,
    eps: float,
    weight: Tensor | None = None,
    gate: Tensor | None = None,
    queries: int | None = None,
    kind: str = "",
) -> Tensor:
    """Rows [T, parts * size], part by part."""
    t, n = x.shape
    y = torch.empty((t, n), dtype=torch.float32, device=x.device)
    weights = 0 if weight is None else 2 if len(weight) == n else 1
    block = max(16, triton.next_power_of_2(size))
    rows = rows_at_once(t, 1)
    _norm_parts[(triton.cdiv(t, rows), n // size)](
        x, weight, gate, y, x.stride(0), 0 if gate is None else gate.stride(0), t, n, size, eps, queries,
        WEIGHTS=weights, GATE=kind, ROWS=rows, BLOCK=block, num_warps=min(8, max(1, block // 512)), **EXACT,
    )  # fmt: skip
    return y


@dataclass(frozen=True, eq=False)
class PartNorm:
    """A norm of each part of rows, a gate, and a sum, one after the other; each may be missing."""

    size: int  # of a part
    # float32 [size], for all parts, or as wide as rows, of an RMS norm of each part; None: there is none
    weight: Tensor | None = None
    eps: float = 0.0
    # float32 [T, parts, size]: y becomes y * f(gate); None: there is none
    gate: Tensor | None = None
    # f: "sigmoid" as y / (1 + e^-gate), "silu", or without a norm any of :func:`activate`
    kind: str = "sigmoid"
    # float32 [T, n], whose rows are contiguous: y becomes (residual + scale * y) * whole; only within a
    # product's launch
    residual: Tensor | None = None
    scale: float = 1.0
    whole: Tensor | None = None  # float32 [1]; None: 1
    kept: Tensor | None = None  # where this sum is written to, float32 [T, n], contiguous
    # After another one: what is taken, float32 [T, n], whose rows are contiguous, and the other's result is the
    # residual; None: that result is taken
    takes: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Rows float32 [T, parts * size], in one launch."""
        gate = None if self.gate is None else self.gate.reshape(x.shape)
        if gate is not None and gate.stride(-1) > 1:  # the gates of parts of size 1 are apart
            gate = gate.contiguous()
        if self.weight is None:
            kind = "sigmoid_gate" if self.kind == "sigmoid" else self.kind
            return x if gate is None else activate(kind, gate, x)
        return _normalised(x, self.size, self.eps, self.weight, gate, kind=self.kind)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """For kernels: tensors, eps, how far rows of gates, their parts and residuals are apart, scale."""
        apart = (0, 0) if self.gate is None else self.gate.stride()[:2]
        stride = 0 if self.residual is None else self.residual.stride(0)
        tensors = self.weight, self.gate, self.residual, self.whole, self.kept
        taken = (None, 0) if self.takes is None else (self.takes, self.takes.stride(0))
        return *tensors, self.eps, *apart, stride, self.scale, *taken

    @property
    def constants(self) -> tuple[Any, ...]:
        """Constants of kernels: size, whether each part has its weights, kind, columns and groups at once."""
        whole = self.weight is not None and len(self.weight) > self.size
        wide = min(triton.next_power_of_2(self.size), 1024)
        return self.size, whole, self.kind, wide, groups_at_once(self.size)


@triton.jit
def _norm_parts(
    x, weight, gate, y, x_row, gate_row, t, n, size, eps, queries,
    WEIGHTS: tl.constexpr, GATE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    part = tl.program_id(1)
    begin = part * size
    element, lane = tl.arange(0, BLOCK), tl.arange(0, 16)
    live, used = row < t, element < size
    inside = live[:, None] & used[None, :]
    start = x + (row * x_row + begin)[:, None]
    value = tl.load(start + element[None, :], mask=inside)
    total = tl.zeros((ROWS, 16), tl.float32)
    STEP: tl.constexpr = BLOCK if BLOCK < 256 else 256
    for i in range(0, size, STEP):  # elements beyond the part add 0 to the squares
        for g in tl.static_range(STEP // 16):
            at = i + g * 16 + lane
            some = tl.load(
                start + at[None, :], mask=live[:, None] & (at < size)[None, :], other=0.0
            )
            total = tl.fma(some, some, total)
    squares = tree(total, ROWS)
    above = 1.0 + tl.zeros_like(squares)
    if queries is not None:
        if part < queries:
            above = tl.div_rn(above, tl.sqrt_rn(tl.cast(size, tl.float32)))
    else:
        squares = tl.div_rn(squares, tl.cast(size, tl.float32))
    factor = tl.div_rn(above, tl.sqrt_rn(squares + eps))
    value = value * factor[:, None]
    if WEIGHTS == 1:  # the same for all parts
        value = value * tl.load(weight + element, mask=used)[None, :]
    if WEIGHTS == 2:
        value = value * tl.load(weight + begin + element, mask=used)[None, :]
    if gate is not None:
        z = tl.load(gate + (row * gate_row + begin)[:, None] + element[None, :], mask=inside)
        value = tl.div_rn(value, 1.0 + exponential(-z)) if GATE == "sigmoid" else value * silu(z)
    tl.store(y + (row * n + begin)[:, None] + element[None, :], value, mask=inside)


def at_once(n: int, most: int) -> int:
    """How many of ``n`` channels a program takes: at most ``most`` on a device."""
    return min(triton.next_power_of_2(n), sized(1024, most))
