from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, logs


def top_h(row: np.ndarray, share: float) -> list[int]:
    return kept(row, S.TopH(top_h=share))


def test_the_prefix_has_a_share_of_the_entropy() -> None:
    """Of 1/2, 1/4, 1/8, 1/8: H = 1.75.  Of 2/3, 1/3: 0.9183.  Of 4/7, 2/7, 1/7: 1.3788."""
    row = logs([1 / 4, 1 / 8, 1 / 2, 1 / 8])
    assert top_h(row, 0.52) == [2]  # 0.9100
    assert top_h(row, 0.53) == [0, 2]  # 0.9275
    assert top_h(row, 0.78) == [0, 2]  # 1.3650
    assert top_h(row, 0.79) == [0, 1, 2]  # 1.3825; of ties the lower id
    assert top_h(row, 0.9999) == [0, 1, 2]
    assert top_h(row, 1.0) == [0, 1, 2, 3]


def test_equally_likely_tokens() -> None:
    """256 have 8 bits: half of that is what 16 have."""
    row = np.zeros(256, np.float32)
    assert top_h(row, 0.5) == [*range(16)]  # equality passes
    assert top_h(row, float(np.nextafter(np.float32(0.5), np.float32(0)))) == [*range(15)]
    assert top_h(row, 0.0) == [0]
    assert top_h(np.zeros(1 << 15, np.float32), 14 / 15) == [*range(1 << 14)]


def test_a_certain_token_is_alone() -> None:
    assert top_h(f32(50, 0, 0), 0.49) == [0]
    assert top_h(f32(7), 0.0) == [0]
    assert top_h(f32(INF, 1, INF), 0.9) == [0]


def test_masked_tokens_do_not_count() -> None:
    row = logs([1 / 4, 1 / 8, 1 / 2, 1 / 8])
    for share in (0.52, 0.53, 0.79):
        assert top_h(np.append(row, f32(-INF, NAN, *[-INF] * 300)), share) == top_h(row, share)
    assert top_h(f32(-INF, 1, NAN, 0), 1.0) == [1, 3]


def test_a_temperature_before_it_counts() -> None:
    row = logs([0.9, 0.06, 0.03, 0.01])
    assert kept(row, S.TopH(top_h=0.7)) == [0, 1]
    assert kept(row, S.Temperature(temperature=9.0), S.TopH(top_h=0.7)) == [0, 1]
    assert kept(row, S.Temperature(temperature=9.0), S.TopH(top_h=0.81)) == [0, 1, 2]


def bits(p: np.ndarray) -> float:
    q = p[p > 0] / p.sum()
    return float(-(q * np.log2(q)).sum())


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0, 40.0])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.75, 0.98])
def test_the_papers_formula_in_float64(spread: float, share: float) -> None:
    for seed in range(6):
        row = (spread * np.random.default_rng(seed).normal(size=3000)).astype(np.float32)
        order = np.argsort(-row, kind="stable")
        p = np.exp(row.astype(np.float64) - row.max())[order]
        most = float(np.float32(share)) * bits(p)
        length = len(top_h(row, share))
        assert bits(p[:length]) <= most * (1 + 1e-6)
        assert length == len(p) or bits(p[: length + 1]) >= most * (1 - 1e-6)


@pytest.mark.parametrize(
    ("p", "share", "n"),
    [
        ([0.97, 0.01, 0.01, 0.01], 0.3, 1),
        ([0.4, 0.3, 0.2, 0.1], 0.7, 2),
        ([0.25, 0.25, 0.25, 0.25], 1.0, 4),
        ([0.75, 0.25, 0.0, 0.0], 0.4, 1),
    ],
)
def test_what_transformers_tests_ask(p: list[float], share: float, n: int) -> None:
    """The rows of its test_top_h_dist_warper, on which both rules keep the same."""
    with np.errstate(divide="ignore"):
        row = np.log(np.array(p, np.float32))
    assert top_h(row, share) == [*range(n)]


def test_transformers_adds_up_shares_of_the_whole_entropy() -> None:
    """Their sum is not the entropy of a distribution: its sets are larger."""
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers").generation.logits_process
    row = np.random.default_rng(1).normal(size=90).astype(np.float32) * 2
    for share in (0.2, 0.4, 0.8):
        theirs = warpers.TopHLogitsWarper(share)(None, torch.from_numpy(row)[None])[0]
        ours, kept_there = top_h(row, share), torch.isfinite(theirs).nonzero().ravel().tolist()
        assert set(ours) <= set(kept_there)
        assert (len(ours) < len(kept_there)) == (share > 0.2)
