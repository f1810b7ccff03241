"""Layers that keep a state, in Triton: selective scans, gated delta rules.

All runs of a micro-batch are one launch.  Its programs are blocks of channels times chains of runs, and loop
over tokens.  The states' rows are read and written in place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aleator.models.kernels.floats import (
    EXACT,
    Constants,
    Work,
    exponential,
    sigmoid,
    silu,
    softplus,
)
from aleator.models.kernels.own_steps import OwnSteps, own_steps
from aleator.models.kernels.recurrent_parts import at_once, stayed, stepped
from aleator.models.kernels.runs import Runs


def scanning(
    u: torch.Tensor,
    step: torch.Tensor | OwnSteps,
    rate: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    gate: torch.Tensor,
    kept: torch.Tensor,
    runs: Runs,
    by_head: bool = False,
    bias: torch.Tensor | None = None,
    least: float = 0.0,
    normed: tuple[torch.Tensor, float] | None = None,
) -> tuple[torch.Tensor, Work]:
    """The selective scan: h = decay h + b (dt u), y = fma(d, u, c . h) * silu(gate).

    Args:
        u: float32 [T, C]; like step, b, c and gate, with rows of any stride.
        step: [T, C], or what makes it; dt is its softplus.
        rate: [C, N]; the decay is e^(dt rate).
        b: [T, N].
        c: [T, N].
        d: [C].
        gate: [T, C].
        kept: h, [rows, C, N]; changed.
        runs: those of the micro-batch.
        by_head: heads have one decay each: ``step`` is dt itself, [T, heads], ``rate`` the decay, [T, heads],
            ``b`` and ``c`` are [T, groups * N], with equally many neighbouring heads per group, ``d`` is
            [heads].
        bias: [heads]: dt and decay are made of ``step`` and a ``rate`` [heads], see
            :func:`~aleator.models.kernels.recurrent_parts.time_step`; by each program again, so of few tokens.
        least: see there.
        normed: weights [2, N] of RMS norms of b and c, and their eps; by each program again.

    Returns:
        float32 [T, C], and what is to be launched to make it.
    """
    (t, n), state = u.shape, kept.shape[2]
    y = torch.empty((t, n), dtype=torch.float32, device=u.device)
    channels = at_once(n, 32 if state <= 64 else 16)
    chains = len(runs.sources)
    programs = triton.cdiv(n, channels) * chains
    own, constants = None, Constants(())
    if isinstance(step, OwnSteps):
        own, constants = step.given(channels, programs)
        step = torch.empty_like(y)
    heads = step.shape[1] if by_head else n
    strides = (of.stride(0) for of in (u, step, rate, b, c, gate))
    arguments = u, step, rate, b, c, d, gate, bias, normed, kept, y, runs, *strides, n, least, own
    shared = heads // (b.shape[1] // state)
    shape = Constants(((state, n // heads, shared, by_head, channels),))
    return y, Work("scan", programs, chains, arguments, constants, shape)


# Lanes are four axes of two, [R, 2, 2, 2, 2], so that the compiler keeps one layout for sums over 16 lanes and
# for the state.  With [R, 16], reshaped for each step of a sum, it copies the state to and fro.


@triton.jit
def _lanes():
    """The numbers from 0 to 15, [1, 2, 2, 2, 2]."""
    two = tl.arange(0, 2)
    eights, fours = two[None, :, None, None, None] * 8, two[None, None, :, None, None] * 4
    return eights + fours + two[None, None, None, :, None] * 2 + two[None, None, None, None, :]


@triton.jit
def _tree(lanes):
    """The sums of 16 lanes: those 8 apart, then 4, then 2, then the last two; [R, 2, 2, 2, 2] -> [R]."""
    return tl.sum(tl.sum(tl.sum(tl.sum(lanes, axis=1), axis=1), axis=1), axis=1)


@triton.jit
def _load(pointer, mask, lanes, LENGTH: tl.constexpr):
    """Rows [R] in sixteens, each [R, 2, 2, 2, 2]; 0 beyond their length and where ``mask`` is False."""
    starts, used = pointer[:, None, None, None, None], mask[:, None, None, None, None]
    parts = ()
    for g in tl.static_range((LENGTH + 15) // 16):
        n = g * 16 + lanes
        parts += (tl.load(starts + n, mask=used & (n < LENGTH), other=0.0),)
    return parts


@triton.jit
def _store(pointer, parts, mask, lanes, LENGTH: tl.constexpr):
    """Write rows that :func:`_load` has read."""
    starts, used = pointer[:, None, None, None, None], mask[:, None, None, None, None]
    for g in tl.static_range((LENGTH + 15) // 16):
        n = g * 16 + lanes
        tl.store(starts + n, parts[g], mask=used & (n < LENGTH))


@triton.jit
def _scan_inputs(
    u, step, rate, b, c, gate, bias, normed, order, stores, i, u_row, step_row, rate_row, b_row, c_row,
    gate_row, least, channel, inside, head, group, lanes, STATE: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """Inputs of a token's step; loaded while the step before is computed."""
    t = tl.load(order + i)
    value = tl.load(u + t * u_row + channel, mask=inside)
    z = tl.load(gate + t * gate_row + channel, mask=inside)
    dt = tl.load(step + t * step_row + head, mask=inside)
    decay = dt
    if bias is not None:
        dt, decay = stepped(
            dt, tl.load(bias + head, mask=inside), tl.load(rate + head, mask=inside), least
        )
    elif BY_HEAD:
        decay = tl.load(rate + t * rate_row + head, mask=inside)
    bs = _load(b + t * b_row + group * STATE, inside, lanes, STATE)
    cs = _load(c + t * c_row + group * STATE, inside, lanes, STATE)
    if normed is not None:
        bs = _rms(bs, normed[0] + channel * 0, normed[1], inside, lanes, STATE)
        cs = _rms(cs, normed[0] + channel * 0 + STATE, normed[1], inside, lanes, STATE)
    return t, tl.load(stores + i), value, z, dt, decay, bs, cs


@triton.jit
def scanned(arguments, n_chains, number, OWN: tl.constexpr, SHAPE: tl.constexpr):
    """Program ``number`` of :func:`scanning`: some channels of a chain of runs; none of further programs.

    OWN is of :class:`OwnSteps`, beside which there are no further programs.
    """
    (
        u, step, rate, b, c, d, gate, bias, normed, kept, y, runs,
        u_row, step_row, rate_row, b_row, c_row, gate_row, n, least, own_given,
    ) = arguments  # fmt: skip
    chains, starts, sources, order, stores, _ = runs
    STATE: tl.constexpr = SHAPE[0]
    DIM: tl.constexpr = SHAPE[1]
    SHARED: tl.constexpr = SHAPE[2]
    BY_HEAD: tl.constexpr = SHAPE[3]
    CHANNELS: tl.constexpr = SHAPE[4]
    G: tl.constexpr = (STATE + 15) // 16
    blocks = tl.cdiv(n, CHANNELS)
    channel = number % blocks * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < n
    head = channel // DIM
    group = head // SHARED
    lanes = _lanes()
    own = tl.load(d + head, mask=inside)
    if not BY_HEAD:
        rates = _load(rate + channel * STATE, inside, lanes, STATE)
    real, chain = number < blocks * n_chains, number // blocks
    begin, end = tl.load(chains + chain, real, 0), tl.load(chains + chain + 1, real, 0)
    if own_given is not None:
        own_steps(own_given, step, runs, number, chain, channel, inside, n, OWN, CHANNELS)
    for run in range(begin, end):
        first, last = tl.load(starts + run), tl.load(starts + run + 1)
        source = tl.load(sources + run)
        begun = channel < tl.where(source < 0, 0, n)
        h = _load(kept + source * (n * STATE) + channel * STATE, begun, lanes, STATE)
        tl.debug_barrier()  # the run may keep its state in the row that it reads
        ahead = _scan_inputs(
            u, step, rate, b, c, gate, bias, normed, order, stores, first, u_row, step_row, rate_row, b_row,
            c_row, gate_row, least, channel, inside, head, group, lanes, STATE, BY_HEAD,
        )  # fmt: skip
        for i in range(first, last):
            t, row, value, z, dt, decay, bs, cs = ahead
            ahead = _scan_inputs(
                u, step, rate, b, c, gate, bias, normed, order, stores, tl.minimum(i + 1, last - 1), u_row,
                step_row, rate_row, b_row, c_row, gate_row, least, channel, inside, head, group, lanes, STATE,
                BY_HEAD,
            )  # fmt: skip
            if not BY_HEAD:
                dt = softplus(dt)
                decay = dt
            fading, given = (
                decay[:, None, None, None, None],
                (dt * value)[:, None, None, None, None],
            )
            total = tl.zeros((CHANNELS, 2, 2, 2, 2), tl.float32)
            after = ()
            for g in tl.static_range(G):
                factor = fading
                if not BY_HEAD:
                    factor = exponential(rates[g] * fading)
                new = tl.fma(h[g], factor, bs[g] * given)
                if STATE % 16 != 0:  # beyond the state: 0, whatever the input
                    new = tl.where(g * 16 + lanes < STATE, new, 0.0)
                total = tl.fma(new, cs[g], total)
                after += (new,)
            h = after
            out = tl.fma(own, value, _tree(total)) * silu(z)
            tl.store(y + t * n + channel, out, mask=inside)
            if row >= 0:
                _store(kept + row * (n * STATE) + channel * STATE, h, inside, lanes, STATE)
        tl.debug_barrier()  # the next run may start from what this one has kept


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    kept: torch.Tensor,
    runs: Runs,
    tiled: bool,
    bias: torch.Tensor | None = None,
    a: torch.Tensor | None = None,
    unit_eps: float | None = None,
) -> torch.Tensor:
    """See :func:`aleator.models.layers.scans.delta_rule`, for all runs; ``kept`` is S, [rows, H * Dv, D].

    ``beta`` is [T, H]; ``decay`` too, or [T, H * D] with a decay for each channel.  There may be fewer heads of
    queries and keys.  ``tiled``: value head h uses key head h modulo their number;
    otherwise neighbours share one.  Rows may have any stride.  With ``bias`` and ``a`` each program makes beta
    and decay as :func:`~aleator.models.kernels.recurrent_parts.delta_rates` does, so of few tokens; with
    ``unit_eps`` queries and keys too, as :func:`~aleator.models.kernels.recurrent_parts.unit_length` does.
    """
    (t, heads, dim_v), (key_heads, dim) = v.shape, q.shape[1:]
    y = torch.empty((t, heads, dim_v), dtype=torch.float32, device=v.device)
    rows = at_once(
        heads * dim_v, 16 if unit_eps is None else 8
    )  # more would not fit into registers
    _delta_rule[(triton.cdiv(heads * dim_v, rows), len(runs.sources))](
        q, k, v, beta, decay, bias, a, unit_eps, kept, y, runs,
        q.stride(0), k.stride(0), v.stride(0), beta.stride(0),
        decay.stride(0), heads * dim_v, DIM=dim, DIM_V=dim_v,
        SHARED=key_heads if tiled else heads // key_heads, TILED=tiled,
        CHANNELS=decay.shape[1] > heads, ROWS=rows, num_warps=4, **EXACT,
    )  # fmt: skip
    return y


@triton.jit
def _squares(parts):
    """The sums of squares of rows in sixteens."""
    total = tl.zeros_like(parts[0])
    for g in tl.static_range(len(parts)):
        total = tl.fma(parts[g], parts[g], total)
    return _tree(total)


@triton.jit
def _rms(parts, weight, eps, inside, lanes, SIZE: tl.constexpr):
    """Rows in sixteens after an RMS norm with weights at pointers ``weight``."""
    squares, weights, made = _squares(parts), _load(weight, inside, lanes, SIZE), ()
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, SIZE * 1.0) + eps))
    for g in tl.static_range(len(parts)):
        made += (parts[g] * factor[:, None, None, None, None] * weights[g],)
    return made


@triton.jit
def _unit(parts, eps, SIZE: tl.constexpr):
    """Rows in sixteens divided by their length, and by the root of SIZE."""
    squares, made = _squares(parts), ()
    above = tl.zeros_like(squares) + 1.0
    if SIZE > 1:
        above = tl.div_rn(above, tl.sqrt_rn(tl.zeros_like(squares) + SIZE))
    factor = tl.div_rn(above, tl.sqrt_rn(squares + eps))[:, None, None, None, None]
    for g in tl.static_range(len(parts)):
        made += (parts[g] * factor,)
    return made


@triton.jit
def _delta_inputs(
    q, k, v, beta, decay, bias, a, unit_eps, runs, i, q_row, k_row, v_row, beta_row, decay_row,
    own, inside, head, key, lanes, DIM: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Inputs of a token's step; loaded while the step before is computed."""
    t = tl.load(runs.order + i)
    queries = _load(q + t * q_row + key, inside, lanes, DIM)
    keys = _load(k + t * k_row + key, inside, lanes, DIM)
    if unit_eps is not None:
        queries, keys = _unit(queries, unit_eps, DIM), _unit(keys, unit_eps, 1)
    value = tl.load(v + t * v_row + own, mask=inside)
    written = tl.load(beta + t * beta_row + head, mask=inside)
    if CHANNELS:
        stays = _load(decay + t * decay_row + head * DIM, inside, lanes, DIM)
    else:
        stays = tl.load(decay + t * decay_row + head, mask=inside)
    if bias is not None:
        written, rate = sigmoid(written), tl.load(a + head, mask=inside)
        if CHANNELS:
            biases, made = _load(bias + head * DIM, inside, lanes, DIM), ()
            for g in tl.static_range(len(biases)):
                made += (stayed(stays[g], biases[g], rate[:, None, None, None, None]),)
            stays = made
        else:
            stays = stayed(stays, tl.load(bias + head, mask=inside), rate)
    if not CHANNELS:
        stays = stays[:, None, None, None, None]
    return t, tl.load(runs.stores + i), value, written, stays, queries, keys


@triton.jit
def _delta_rule(
    q, k, v, beta, decay, bias, a, unit_eps, kept, y, runs, q_row, k_row, v_row, beta_row, decay_row, n,
    DIM: tl.constexpr, DIM_V: tl.constexpr, SHARED: tl.constexpr, TILED: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = (DIM + 15) // 16
    # Rows of the heads' states, one after the other
    own = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = own < n
    head = own // DIM_V
    key = (head % SHARED if TILED else head // SHARED) * DIM
    lanes = _lanes()
    chain = tl.program_id(1)
    for run in range(tl.load(runs.chains + chain), tl.load(runs.chains + chain + 1)):
        first, last = tl.load(runs.starts + run), tl.load(runs.starts + run + 1)
        source = tl.load(runs.sources + run)
        begun = own < tl.where(source < 0, 0, n)
        state = _load(kept + source * (n * DIM) + own * DIM, begun, lanes, DIM)
        tl.debug_barrier()  # the run may keep its state in the row that it reads
        ahead = _delta_inputs(
            q, k, v, beta, decay, bias, a, unit_eps, runs, first, q_row, k_row, v_row, beta_row, decay_row,
            own, inside, head, key, lanes, DIM, CHANNELS,
        )  # fmt: skip
        for i in range(first, last):
            t, row, value, written, stays, queries, keys = ahead
            ahead = _delta_inputs(
                q, k, v, beta, decay, bias, a, unit_eps, runs, tl.minimum(i + 1, last - 1), q_row, k_row, v_row,
                beta_row, decay_row, own, inside, head, key, lanes, DIM, CHANNELS,
            )  # fmt: skip
            total = tl.zeros((ROWS, 2, 2, 2, 2), tl.float32)
            faded = ()
            for g in tl.static_range(G):
                old = state[g] * (stays[g] if CHANNELS else stays)
                if DIM % 16 != 0:  # beyond the key: 0, whatever the decay
                    old = tl.where(g * 16 + lanes < DIM, old, 0.0)
                total = tl.fma(old, keys[g], total)
                faded += (old,)
            delta = ((value - _tree(total)) * written)[:, None, None, None, None]
            total = tl.zeros((ROWS, 2, 2, 2, 2), tl.float32)
            after = ()
            for g in tl.static_range(G):
                new = tl.fma(delta, keys[g], faded[g])
                if DIM % 16 != 0:
                    new = tl.where(g * 16 + lanes < DIM, new, 0.0)
                total = tl.fma(new, queries[g], total)
                after += (new,)
            state = after
            tl.store(y + t * n + own, _tree(total), mask=inside)
            if row >= 0:
                _store(kept + row * (n * DIM) + own * DIM, state, inside, lanes, DIM)
        tl.debug_barrier()  # the next run may start from what this one has kept
