"""``p`` of candidates, beside ``probs``: what the samplers so far left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from aleator.device.candidates import DeviceCandidates
from aleator.device.cases import FAMILIES, rows_of

P = np.array([0.4, 0.3, 0.2, 0.1], np.float32)


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_p_is_what_the_softmax_left(numerics: str) -> None:
    """Top-k cuts 0.2 and 0.1 off; what is left keeps its 0.4 and 0.3 until a temperature comes."""
    candidates = S.Candidates(np.log(P), numerics)
    assert candidates.p.tolist() == [0, 0, 0, 0]
    for sampler in (S.Softmax(), S.TopK(top_k=2)):
        sampler.apply(candidates)
    assert candidates.ids.tolist() == [0, 1]
    assert candidates.p == pytest.approx(P[:2], rel=1e-6)
    assert candidates.probs == pytest.approx([4 / 7, 3 / 7], rel=1e-6)
    assert candidates.p.dtype == np.float32


def test_p_goes_when_logits_or_the_temperature_change() -> None:
    changes = (S.Temperature(temperature=0.5), S.LogitBias(logit_bias={1: 1.0}))
    for change in changes:
        candidates = S.Candidates(np.log(P))
        for sampler in (S.Softmax(), change):
            sampler.apply(candidates)
        assert candidates.p.tolist() == [0, 0, 0, 0]
    candidates = S.Candidates(np.log(P))
    S.Softmax().apply(candidates)
    candidates.logits = np.zeros(4, np.float32)
    assert candidates.p.tolist() == [0, 0, 0, 0]


def test_p_stays_when_the_most_likely_token_goes() -> None:
    """Weights are against the largest logit; that which softmax saw still counts."""
    candidates = S.Candidates(np.log(P))
    S.Softmax().apply(candidates)
    candidates.keep([1, 3])
    assert candidates.p == pytest.approx(P[[1, 3]], rel=1e-6)
    assert candidates.probs == pytest.approx([0.75, 0.25], rel=1e-6)


def test_reading_logits_leaves_p() -> None:
    candidates = S.Candidates(np.log(P))
    for sampler in (S.Temperature(temperature=0.5), S.Softmax()):
        sampler.apply(candidates)
    assert candidates.logits == pytest.approx(np.log(P) * 2, rel=1e-6)
    assert candidates.p == pytest.approx(P**2 / np.sum(P**2), rel=1e-6)


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_what_cannot_be_assigned_changes_nothing(numerics: str) -> None:
    candidates = S.Candidates(np.log(P), numerics)
    candidates.selected = np.int64(2)  # type: ignore[assignment]
    wrong: tuple[Any, ...] = (True, 1.5, "1", [1])
    for token in wrong:
        with pytest.raises(ParameterError, match="selected must be an integer"):
            candidates.selected = token
        with pytest.raises(ParameterError, match="must be a sequence of token ids"):
            candidates.keep([token])
    rows: tuple[Any, ...] = (
        np.full(4, np.nan),
        [-np.inf] * 4,
        "x",
        None,
        np.zeros(3),
        np.zeros((2, 2)),
    )
    for row in rows:
        with pytest.raises(LogitsError):
            candidates.logits = row
    assert (candidates.size, candidates.selected) == (4, 2)
    assert candidates.logits.tolist() == np.log(P).tolist()
    candidates.keep(np.array([3, 1, 3]))
    assert (candidates.size, sorted(candidates.ids)) == (2, [1, 3])


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_p_on_a_device_has_the_host_s_bits(family: str, read: bool) -> None:
    rows = 3
    z = rows_of(family, rows, 80)
    device = DeviceCandidates(torch.from_numpy(z))
    assert device.ids.dtype == torch.int32
    assert not device.p.any()
    device.apply_temperature(torch.full((rows,), 0.7, dtype=torch.float64))
    device.note_mass(torch.tensor([True, True, False]))
    if read:
        assert device.logits.shape == (rows, 80)
    leading = torch.full((rows, 80), True)
    leading[:, ::2] = False
    device.keep(leading)
    p = device.p.numpy()
    assert not p[2].any()
    for row in range(2):
        candidates = S.Candidates(z[row])
        for sampler in (S.Temperature(temperature=0.7), S.Softmax()):
            sampler.apply(candidates)
        if read:
            assert len(candidates.logits)
        left = [i for i in candidates.ids.tolist() if i % 2]
        if left:
            candidates.keep(left)
            assert p[row, left].tobytes() == candidates.p.tobytes()
        assert not p[row, ::2].any()
