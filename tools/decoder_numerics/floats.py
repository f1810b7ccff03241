"""Float products, norms, activations, rotation, attention, scans."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from decoder_numerics.blocks import Floats, fused

ONE = np.float32(1)


def tree(lanes: Floats) -> Floats:
    """The sum of 16 lanes, float32 [..., 16]: lanes 8 apart, then 4, then 2, then the last two."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def in_lanes(x: Floats) -> Floats:
    """Rows [..., n] in groups of 16, [groups, ..., 16], the last filled with zeros."""
    n = x.shape[-1]
    filled = np.zeros((*x.shape[:-1], -(-n // 16) * 16), np.float32)
    filled[..., :n] = x
    groups = filled.reshape(*x.shape[:-1], -1, 16)
    return np.ascontiguousarray(np.moveaxis(groups, -2, 0))


def dot16(a: Floats, b: Floats) -> Floats:
    """The sum over the last axis of ``a * b``, in 16 lanes by fused multiply-adds, and then the tree."""
    a, b = np.broadcast_arrays(a, b)
    left, right = in_lanes(a), in_lanes(b)
    total = np.zeros(left.shape[1:], np.float32)
    for x, y in zip(left, right, strict=True):
        total = fused(x, y, total)
    return tree(total)


def products(w: Floats, x: Floats, bias: Floats | None = None) -> Floats:
    """``x`` W^T + bias, float32 [T, out], for W in F32 or F16, or made of floats with a scale.

    Args:
        w: W widened to float32 [out, in], which is exact.
        x: activations [T, in].
        bias: [out], added last by one addition.

    """
    y = dot16(w, x[:, None])
    return y if bias is None else y + bias


def rounded(x: Floats) -> Floats:
    """Activations as a matrix in BF16 meets them: +0 below 2^-52 in magnitude, else the nearest bfloat16.

    Of two as near it is the one whose last bit is 0.  Infinities stay, and so do NaNs.
    """
    kept = np.where(np.abs(x) < np.float32(2.0**-52), np.float32(0), x)
    words = kept.view(np.uint32)
    up = (words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1))) & ~np.uint32(0xFFFF)
    nearest: Floats = np.where(np.isnan(x), x, up.view(np.float32))
    return nearest


def in_pairs(x: Floats) -> Floats:
    """Rows [..., n] in groups of 32, the last filled with zeros: of each first its 16 odd elements."""
    n = x.shape[-1]
    filled = np.zeros((*x.shape[:-1], -(-n // 32) * 32), np.float32)
    filled[..., :n] = x
    pairs = filled.reshape(*x.shape[:-1], -1, 16, 2)
    return np.stack((pairs[..., 1], pairs[..., 0]), -2).reshape(filled.shape)


def paired_products(w: Floats, x: Floats, bias: Floats | None = None) -> Floats:
    """``x`` W^T + bias, float32 [T, out], for W in BF16: as ``products`` of rows in pairs.

    A lane takes the second element of each pair first.  With weights of 0 or at least 2^-60 no product and no
    sum is subnormal, so that instructions which count those as 0 may be used.

    Args:
        w: W widened to float32 [out, in], which is exact.
        x: activations [T, in], which are rounded.
        bias: [out], added last by one addition.

    """
    return products(in_pairs(w), in_pairs(rounded(x)), bias)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Rows [T, n] divided by their root mean square, times ``weight`` [n]."""
    mean = dot16(x, x) / np.float32(x.shape[-1])
    factor = ONE / np.sqrt(mean + np.float32(eps))
    scaled: Floats = x * factor[..., None] * weight
    return scaled


def total16(x: Floats) -> Floats:
    """The sum over the last axis, in 16 lanes, and then the tree."""
    groups = in_lanes(x)
    total = np.zeros(groups.shape[1:], np.float32)
    for group in groups:
        total = total + group
    return tree(total)


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """Rows [T, n] less their mean, over their standard deviation, times ``weight`` [n] plus ``bias`` [n]."""
    n = np.float32(x.shape[-1])
    apart = x - (total16(x) / n)[..., None]
    factor = ONE / np.sqrt(dot16(apart, apart) / n + np.float32(eps))
    scaled: Floats = apart * factor[..., None] * weight
    return scaled + bias


def polynomial(x: Floats, coefficients: Sequence[float]) -> Floats:
    """``c[0] x^(n - 1) + ... + c[n - 1]`` by Horner's rule in fused multiply-adds."""
    p = np.full_like(x, np.float32(coefficients[0]))
    for c in coefficients[1:]:
        p = fused(p, x, np.full_like(x, np.float32(c)))
    return p


_EXP = [float(ONE / np.float32(n)) for n in (5040, 720, 120, 24, 6)] + [0.5, 1.0, 1.0]
_LOG = [float(ONE / np.float32(n)) for n in (17, 15, 13, 11, 9, 7, 5, 3)] + [1.0]
_TANH = [float.fromhex(c) for c in (
    "-0x1.71ba5p-8", "0x1.514478p-6", "-0x1.b81bd4p-5", "0x1.110640p-3", "-0x1.55553p-2"
)]  # fmt: skip
_ROUNDER = np.float32(1.5 * 2**23)


def exponential(x: Floats) -> Floats:
    """e^x; 0 below -87, e^88 above 88."""
    full = np.full_like
    x = np.asarray(x, np.float32)
    y = np.where(x > 88, np.float32(88), x)
    shifted = fused(y, full(y, np.float32(1.44269504)), full(y, _ROUNDER))
    n = shifted - _ROUNDER
    r = fused(n, full(n, np.float32(-float.fromhex("0x1.63p-1"))), y)
    r = fused(n, full(n, np.float32(float.fromhex("0x1.bd0106p-13"))), r)
    power = ((shifted.view(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    value: Floats = np.where(x < -87, np.float32(0), polynomial(r, _EXP) * power)
    return value


def sigmoid(x: Floats) -> Floats:
    """``1 / (1 + e^-x)``."""
    y: Floats = ONE / (ONE + exponential(-x))
    return y


def silu(x: Floats) -> Floats:
    """``x / (1 + e^-x)``."""
    y: Floats = x / (ONE + exponential(-x))
    return y


def gelu(x: Floats) -> Floats:
    """GELU in its approximation by tanh, written with e^x."""
    root, cubic = np.float32(0.79788456080286535588), np.float32(0.044715)
    inner = np.float32(-2) * root * x * (ONE + cubic * x * x)
    y: Floats = x / (ONE + exponential(inner))
    return y


_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)


def gelu_exact(x: Floats) -> Floats:
    """GELU by the error function, for which Abramowitz and Stegun's formula 7.1.26 stands."""
    a = np.abs(x) * np.float32(0.70710678118654752440)
    t = ONE / fused(np.full_like(a, np.float32(0.3275911)), a, np.ones_like(a))
    above = np.float32(0.5) * polynomial(t, _ERF) * exponential(-(a * a))
    y: Floats = x * np.where(x > 0, ONE - above, above)
    return y


def relu_squared(x: Floats) -> Floats:
    """``max(x, 0)^2``."""
    above: Floats = np.where(x > 0, x, np.float32(0)).astype(np.float32)
    return above * above


def softplus(x: Floats) -> Floats:
    """``log(1 + e^x)``."""
    above: Floats = np.where(x > 0, x, np.float32(0)).astype(np.float32)
    y = exponential(x - np.float32(2) * above)
    s = y / (np.float32(2) + y)
    return fused(np.float32(2) * s, polynomial(s * s, _LOG), above)


def tanh(x: Floats) -> Floats:
    """The hyperbolic tangent."""
    a = np.abs(x)
    near = fused(a * a * a, polynomial(a * a, _TANH), a)
    far = ONE - np.float32(2) / (exponential(np.float32(2) * a) + ONE)
    y: Floats = np.copysign(np.where(a < np.float32(0.625), near, far), x)
    return y


def rotate(x: Floats, angles: Floats, *, interleaved: bool) -> Floats:
    """Heads [..., dim] rotated by angles [..., pairs, 2] of cosines and sines."""
    pairs = angles.shape[-2]
    first, second = slice(pairs), slice(pairs, 2 * pairs)
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    a, b, cos, sin = x[..., first], x[..., second], angles[..., 0], angles[..., 1]
    y = x.copy()
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y


def hadamard(x: Floats, block: int) -> Floats:
    """Every ``block`` of rows [..., n] rotated by the Hadamard matrix that is its own inverse."""
    parts = x.reshape(-1, block).copy()
    half = 1
    while half < block:
        view = parts.reshape(-1, block // (2 * half), 2, half)
        a, b = view[:, :, 0].copy(), view[:, :, 1].copy()
        view[:, :, 0], view[:, :, 1] = a + b, a - b
        half *= 2
    y: Floats = (parts * (ONE / np.sqrt(np.float32(block)))).reshape(x.shape)
    return y


def attention(
    q: Floats,
    keys: Floats,
    values: Floats,
    scale: float,
    softcap: float = 0.0,
    slope: np.float32 | None = None,
    distances: Floats | None = None,
    sink: float = -math.inf,
) -> Floats:
    """One query over the keys [n, dim] and values [n, dim_v] of the cells that it sees.

    The query is [dim], or its form for each key, [n, dim].  Cells come in the order of their
    positions; keys and values are what the cache's bytes stand for.  With ``softcap`` scores s are
    softcap * tanh(s / softcap); then ``slope`` times ``distances`` [n], of cells from the token
    on either side, is subtracted.
    ``sink`` is one more score, of a cell without a value.
    """
    scores = dot16(q, keys) * np.float32(scale)
    if softcap:
        scores = tanh(scores / np.float32(softcap)) * np.float32(softcap)
    if slope is not None and distances is not None:
        scores = scores - slope * np.abs(distances)
    highest = max(scores.max(), np.float32(sink))
    weights = exponential(scores - highest)
    total = total16(weights)
    if sink > -math.inf:
        total = total + exponential(np.float32(sink) - highest)
    out = np.zeros(values.shape[1], np.float32)
    for weight, value in zip(weights, values, strict=True):
        out = fused(np.full_like(value, weight), value, out)
    y: Floats = out * (ONE / total)
    return y


def convolve(
    x: Floats, history: Floats, weight: Floats, bias: Floats, *, activated: bool = True
) -> Floats:
    """A depthwise convolution over time, and SiLU where it is ``activated``.

    Args:
        x: values [T, channels].
        history: those of the tokens before, oldest first, [width - 1, channels].
        weight: [width, channels], oldest first.
        bias: [channels].
        activated: whether SiLU follows.
    """
    rows = np.concatenate((history, x))
    total = np.zeros_like(x)
    for k, w in enumerate(weight):
        total = fused(
            np.ascontiguousarray(rows[k : k + len(x)]), np.broadcast_to(w, x.shape), total
        )
    y: Floats = total + bias
    return silu(y) if activated else y


def scan(
    u: Floats, dt: Floats, a: Floats, b: Floats, c: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """The selective scan: h = e^(dt a) h + b (dt u), y = c . h, token after token.

    Args:
        u: inputs [T, channels].
        dt: time steps [T, channels].
        a: [channels, N].
        b: [T, N].
        c: [T, N].
        state: h before the first token, [channels, N].

    Returns:
        y [T, channels], and h after the last token.
    """
    out = np.empty_like(u)
    for t in range(len(u)):
        decay = exponential(a * dt[t][:, None])
        state = fused(decay, state, b[t] * (dt[t] * u[t])[:, None])
        out[t] = dot16(state, np.broadcast_to(c[t], state.shape))
    return out, state


def scan_heads(
    u: Floats, dt: Floats, a: Floats, b: Floats, c: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """The scan of heads with one decay each: h = e^(dt a) h + b (dt u), y = c . h, token after token.

    Args:
        u: inputs [T, heads, dim].
        dt: time steps [T, heads].
        a: [heads].
        b: [T, groups, N], as many heads to each group.
        c: [T, groups, N].
        state: h before the first token, [heads, dim, N].

    Returns:
        y [T, heads, dim], and h after the last token.
    """
    out = np.empty_like(u)
    b, c = (np.repeat(part, u.shape[1] // part.shape[1], axis=1)[:, :, None] for part in (b, c))
    for t in range(len(u)):
        decay = np.broadcast_to(exponential(dt[t] * a)[:, None, None], state.shape)
        state = fused(decay, state, b[t] * (dt[t][:, None] * u[t])[:, :, None])
        out[t] = dot16(state, np.broadcast_to(c[t], state.shape))
    return out, state


def adapted(
    y: Floats,
    x: Floats,
    a: Floats,
    b: Floats,
    scale: float,
    grows: Floats | None = None,
    bias: Floats | float = 0,
) -> Floats:
    """A product ``y`` [T, out] of rows ``x`` [T, in], with what an adapter adds to it.

    Args:
        y: the product, its bias included.
        x: activations.
        a: A widened to float32 [rank, in].
        b: B widened to float32 [out, rank].
        scale: of the adapter, times alpha / rank.
        grows: with DoRA how much each row grows, less 1, [out].
        bias: of the product, [out] or 0.

    """
    low = np.float32(scale) * dot16(a, x[:, None])
    if grows is not None:
        y = y + grows * (y - np.asarray(bias, np.float32))
    for j in range(len(a)):
        y = fused(low[:, j, None], np.broadcast_to(b[:, j], y.shape), y)
    return y
