from __future__ import annotations

import numpy as np
import torch

from aleator.device.candidates import DeviceCandidates

LOG2_E = 1.4426950408889634


def test_a_temperature_divides_once() -> None:
    """Temperatures whose scale lies next to the middle of two float32, where a second rounding shows."""
    low = np.random.default_rng(1).uniform(0.5, 4, 1 << 20).astype(np.float32)
    middle = (low.astype(np.float64) + np.nextafter(low, np.float32(9)).astype(np.float64)) / 2
    temperature = LOG2_E / middle
    exact = (LOG2_E / temperature).astype(np.float32)
    twice = (1 / temperature * LOG2_E).astype(np.float32)
    shows = np.flatnonzero(exact != twice)
    assert len(shows) > 1000
    chosen = torch.from_numpy(temperature[shows])
    data = DeviceCandidates(torch.tensor([[0.0, -1.0]]).repeat(len(shows), 1))
    data.apply_temperature(chosen)
    assert np.array_equal(-data.scaled()[:, 1].numpy(), exact[shows])


def test_canonical_form() -> None:
    inf, nan = float("inf"), float("nan")
    data = DeviceCandidates(torch.tensor([[nan, -0.0, 3.0], [inf, 5.0, inf], [-inf, nan, -inf]]))
    assert data.current.tolist() == [[-inf, 0.0, 3.0], [0.0, -inf, 0.0], [-inf] * 3]
    assert torch.signbit(data.current).tolist()[0] == [True, False, False]
    assert data.size.tolist() == [2, 2, 0]
    assert data.first().tolist() == [2, 0, -1]
