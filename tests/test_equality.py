"""What tools/equality.py counts over a million rows, here over 2,500: every form chooses the same token."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import equality
import pytest
import torch
from equality import SIZES, STEPS, Block, Outcome, Work, do
from equality_rows import CHAINS

ROWS = 2_500


def test_no_row_differs() -> None:
    found = Outcome()
    for number, (n, share) in enumerate(SIZES.items()):
        left, batch = ROWS * share, min(16, 16_384 // n)
        while left > 0:
            number += len(SIZES)
            found.add(do(Work(397, number, n, batch, "cpu", ("torch",))))
            left -= batch * STEPS
    assert found.examples == []
    assert not +found.wrong
    forms: Counter[str] = Counter()
    for (_, form), rows in found.rows.items():
        forms[form] += rows
    assert forms["NumPy"] == forms["host"] == forms["torch (cpu)"] >= ROWS
    assert forms["host, reordered"] > ROWS / 8
    assert forms["torch (cpu), reordered"] > ROWS / 8
    assert set(found.chains) == set(CHAINS)


@pytest.mark.parametrize("name", CHAINS)
def test_every_parameter_is_in_its_range(name: str) -> None:
    make = CHAINS[name][0]
    for seed in range(300):
        r = random.Random(seed)
        assert make(r, r.choice([16, 64, 256]))


def test_the_sharded_forms(tmp_path: Path) -> None:
    rows, wrong, sent = equality.by_shards(2, 3, 500)
    assert (rows, wrong) == (512, 0)
    assert 0 < sent < 20_000


def test_a_block_repeats() -> None:
    one, other = (Block(seed=1, number=5, n=64, batch=8) for _ in range(2))
    assert [c.seed for c in one.chains] == [c.seed for c in other.chains]
    assert all(
        torch.equal(a.nan_to_num(9.5), b.nan_to_num(9.5))
        for a, b in zip(one.logits, other.logits, strict=True)
    )
    assert equality.by_host(one) == equality.by_host(other)


def test_a_mismatch_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    by_host = equality.by_host

    def wrong(block: Block) -> Any:
        tokens = by_host(block)
        tokens[1][2] += 1
        return tokens

    monkeypatch.setattr(equality, "by_host", wrong)
    found = do(Work(1, 1, 64, 8, "cpu", ()))
    assert +found.wrong == {(64, "host"): 1}
    assert "Block(seed=1, number=1, n=64, batch=8)" in found.examples[0]
    lines = equality.table(found)
    assert lines[3] == "| host | 32 | 32 | 1 |"
