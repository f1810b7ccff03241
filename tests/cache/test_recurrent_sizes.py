"""Sizes of states, and what the log says of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.cache.batches import Cuts
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.recurrent import RecurrentCache, RecurrentShape
from aleator.core.errors import ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.cache.test_recurrent import TEXT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_seq_max", 0),
        ("n_seq_max", 5000),
        ("n_seq_max", 2.5),
        ("rollback", -1),
        ("rollback", "a"),
    ],
)
def test_sizes_are_checked(name: str, value: Any) -> None:
    sizes: dict[str, Any] = {name: value}
    with pytest.raises(ParameterError, match=name):
        RecurrentCache([RecurrentShape(2, 1, 1)], **sizes)


def test_bytes_for() -> None:
    layers = [RecurrentShape(8, 3, 16), RecurrentShape(4, 2, 5)]
    cache = RecurrentCache(layers, n_seq_max=3, rollback=2)
    held = sum(t.nbytes for t in cache.conv + cache.ssm)
    assert RecurrentCache.bytes_for(layers, n_seq_max=3, rollback=2) == held
    with pytest.raises(ParameterError, match=r"n_seq_max=1\.0 is not an integer"):
        RecurrentCache.bytes_for(layers, n_seq_max=1.0)  # type: ignore[arg-type]


def test_types_of_paths(tmp_path: Path) -> None:
    """Weights on the CPU in 16 bits take the torch layers, with the same states."""
    pytest.importorskip("torch")
    weights = open_weights(write_model(tmp_path / "m.gguf", SPECS["mamba"]))
    half = Context(build_decoder(weights, dtype="bfloat16"))
    rows = half.decode(Batch.one(TEXT[:9], logits=True))
    full = Context(build_decoder(weights)).decode(Batch.one(TEXT[:9], logits=True))
    assert np.abs(rows - full).max() < 0.05 * (full.max() - full.min())


def test_the_log_says_what_states_take(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aleator.cache"):
        RecurrentCache([RecurrentShape(1024, 3, 16)], n_seq_max=4, rollback=1)
    mib = 2 * 4 * 2 * 1024 * 19 * 4 / 2**20
    assert caplog.messages == [f"recurrent states: 4 sequences, 1 layers, cpu: {mib:.2f} MiB"]


def test_positions_that_division_makes_equal_are_held_once() -> None:
    pool = RecurrentPool([RecurrentShape(1, 1, 1)], rollback=3)
    for position in (4, 5, 6, 7):
        at = np.array([position], np.int32)
        pool.place(at, np.zeros(1, np.int32), np.ones((1, 1), np.uint64))
    pool.seq_div(0, 0, 2**31 - 1, 2)
    assert [position for _, position in pool.states.history(0)] == [3]
    pool.check()


@pytest.mark.parametrize(("n_seq_max", "words"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_a_plan_has_a_bit_for_each_sequence(n_seq_max: int, words: int) -> None:
    pool = RecurrentPool([RecurrentShape(2, 1, 2)], n_seq_max=n_seq_max)
    batch = Batch.one([1, 2], seq=n_seq_max - 1)
    plan = pool.plan(batch, Cuts(8, 8))
    assert plan.owners.shape == (2, words)
    expected = [0] * (words - 1) + [1 << (n_seq_max - 1) % 64]
    assert np.asarray(plan.owners).tolist() == [expected] * 2
