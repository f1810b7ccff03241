"""Gated delta nets and gates of attention."""

from __future__ import annotations

import numpy as np

from decoder_numerics.blocks import Floats, fused
from decoder_numerics.floats import ONE, dot16, exponential, rms_norm, silu, softplus


def unit_length(x: Floats, eps: float, scale: float = 1.0) -> Floats:
    """Rows [..., n] divided by their length, times ``scale``."""
    factor = np.float32(scale) / np.sqrt(dot16(x, x) + np.float32(eps))
    y: Floats = x * factor[..., None]
    return y


def decay_of(x: Floats, bias: Floats, a: Floats) -> Floats:
    """``e^(a softplus(x + bias))``, of heads [..., H], or of their channels [..., H, D] with ``a`` [H, 1]."""
    return exponential(softplus(x + bias) * a)


def delta_rule(
    q: Floats, k: Floats, v: Floats, beta: Floats, decay: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """S = decay S + beta (v - decay S k) k^T, y = S q, token after token.

    Args:
        q: queries [T, H, D], each of the head of values that it goes with.
        k: keys [T, H, D].
        v: values [T, H, Dv].
        beta: [T, H].
        decay: [T, H], or [T, H, D] with one for each channel.
        state: S before the first token, [H, Dv, D].

    Returns:
        y [T, H, Dv], and S after the last token.
    """
    out = np.empty_like(v)
    for t in range(len(q)):
        faded = state * decay[t].reshape(len(state), 1, -1)
        key = np.broadcast_to(k[t][:, None], faded.shape)
        delta = (v[t] - dot16(faded, key)) * beta[t][:, None]
        state = fused(np.broadcast_to(delta[..., None], faded.shape), key, faded)
        out[t] = dot16(state, np.broadcast_to(q[t][:, None], state.shape))
    return out, state


def gated_norm(x: Floats, weight: Floats, gate: Floats, eps: float) -> Floats:
    """``rms_norm(x) * silu(gate)``, of rows [..., n]."""
    y: Floats = rms_norm(x, weight, eps) * silu(gate)
    return y


def sigmoid_gate(x: Floats, gate: Floats) -> Floats:
    """``x / (1 + e^-gate)``."""
    y: Floats = x / (ONE + exponential(-gate))
    return y
