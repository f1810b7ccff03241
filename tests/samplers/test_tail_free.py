from __future__ import annotations

import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, kept_by_llama, logs

# In eighths 4, 2, 1, 1: first differences 2, 1, 0; curvatures 1, 1.
P = logs([0.5, 0.25, 0.125, 0.125])


def test_the_cut_is_where_the_curvature_has_been() -> None:
    assert kept(P, S.TailFree(tfs_z=0.4)) == [0]  # the first index is 0, and one token stays
    assert kept(P, S.TailFree(tfs_z=0.6)) == [0]
    # In twentieths 8, 5, 3, 2, 2: differences 3, 2, 1, 0; curvatures 1, 1, 1.
    row = logs([0.4, 0.25, 0.15, 0.1, 0.1])
    assert [len(kept(row, S.TailFree(tfs_z=z))) for z in (0.2, 0.5, 0.8)] == [1, 1, 2]
    assert [len(kept_by_llama(row, S.TailFree(tfs_z=z))) for z in (0.2, 0.5, 0.8)] == [1, 1, 2]


def test_fewer_than_three_stay() -> None:
    assert kept(f32(1, -INF, 0, NAN), S.TailFree(tfs_z=0.0)) == [0, 2]
    assert kept(f32(1), S.TailFree(tfs_z=0.0)) == [0]


def test_without_curvature_every_place_counts_the_same() -> None:
    row = f32(*[2.0] * 12)  # ten places, each a tenth
    for z, size in ((0.0, 1), (0.35, 3), (0.85, 8)):
        assert kept(row, S.TailFree(tfs_z=z)) == list(range(size))  # ties: by id


def test_min_keep() -> None:
    assert kept(P, S.TailFree(tfs_z=0.0, min_keep=1)) == [0]
    row = logs([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.02])
    assert kept(row, S.TailFree(tfs_z=0.0, min_keep=3)) == [0, 1, 2]
    assert kept(row, S.TailFree(tfs_z=0.0, min_keep=50)) == [*range(7)]


@pytest.mark.parametrize("z", [0.0, 0.5, 0.99])
def test_masked_tokens_are_no_candidates(z: float) -> None:
    row = logs([0.4, 0.0, 0.25, 0.15, 0.1, 0.0, 0.1])
    alone = logs([0.4, 0.25, 0.15, 0.1, 0.1])
    places = [0, 2, 3, 4, 6]
    assert kept(row, S.TailFree(tfs_z=z)) == [places[i] for i in kept(alone, S.TailFree(tfs_z=z))]
