"""The chunked scan against one step after another in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aleator.models.layers.scans import CHUNK, selective_scan


@pytest.mark.parametrize("t", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_against_single_steps(t: int) -> None:
    rng = np.random.default_rng(t)
    d, n = 5, 3
    u, b, c = rng.normal(size=(t, d)), rng.normal(size=(t, n)), rng.normal(size=(t, n))
    dt = np.exp(rng.normal(size=(t, d)) - 1)
    a, state = -np.exp(rng.normal(size=(d, n))), rng.normal(size=(d, n))
    h, outputs, states = state, [], []
    for i in range(t):
        h = np.exp(dt[i, :, None] * a) * h + (dt[i] * u[i])[:, None] * b[i]
        outputs.append(h @ c[i])
        states.append(h)
    keep = sorted({0, t // 2, t - 1})
    args = [torch.from_numpy(x).float() for x in (u, dt, a, b, c, state)]
    y, kept = selective_scan(args[0], args[1], args[2], args[3], args[4], args[5], keep)
    np.testing.assert_allclose(y.numpy(), np.array(outputs), rtol=1e-4, atol=1e-5)
    assert len(kept) == len(keep)
    for i, after in zip(keep, kept, strict=True):
        np.testing.assert_allclose(after.numpy(), states[i], rtol=1e-4, atol=1e-5)
