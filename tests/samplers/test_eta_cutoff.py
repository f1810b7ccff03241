from __future__ import annotations

import math

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, check_warper, f32, kept, logs


def test_the_bound_falls_with_the_entropy() -> None:
    """Eight equally likely tokens and one of 1/1000 of them: H is 3 bits, eta = sqrt(e) / 8."""
    row = logs([*[1 / 8] * 8, 1e-3])
    assert kept(row, S.EpsilonCutoff(epsilon_cutoff=2e-3)) == [*range(8)]
    assert kept(row, S.EtaCutoff(eta_cutoff=2e-3)) == [*range(8)]  # sqrt(e) / 8 is larger: e counts
    assert kept(row, S.EtaCutoff(eta_cutoff=0.01)) == [*range(8)]
    wide = logs([*[1 / 1024] * 1024, 2e-4])
    assert len(kept(wide, S.EpsilonCutoff(epsilon_cutoff=5e-4))) == 1024
    assert len(kept(wide, S.EtaCutoff(eta_cutoff=5e-4))) == 1025  # sqrt(e) / 1024 is 2.2e-5


def test_a_certain_token_is_alone() -> None:
    assert kept(f32(50, 0, 0), S.EtaCutoff(eta_cutoff=0.5)) == [0]
    assert kept(f32(7), S.EtaCutoff(eta_cutoff=1.0)) == [0]
    assert kept(f32(INF, 1, INF), S.EtaCutoff(eta_cutoff=1.0)) == [0, 2]


def test_min_keep_and_masks() -> None:
    row = f32(9, 2, 1, 1, 1, 0)
    assert kept(row, S.EtaCutoff(eta_cutoff=0.9, min_keep=3)) == [0, 1, 2, 3, 4]
    assert kept(f32(-INF, 1, NAN, 0), S.EtaCutoff(eta_cutoff=0.9, min_keep=9)) == [1, 3]


def test_transformers_agrees() -> None:
    check_warper(
        "EtaLogitsWarper", lambda bound, least: S.EtaCutoff(eta_cutoff=bound, min_keep=least)
    )
    assert math.isclose(S.EtaCutoff(eta_cutoff=0.2).eta_cutoff, 0.2)
