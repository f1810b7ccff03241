from __future__ import annotations

import json

import pytest
from count_instructions import (
    BASELINE,
    all_cases,
    comparable,
    grown,
    name_of,
    per_case,
    table,
    totals_of,
)
from host_cases import ROWS


def test_the_baseline_has_every_case_and_no_other() -> None:
    recorded = json.loads(BASELINE.read_text())
    assert list(recorded["instructions"]) == [name_of(case) for case in all_cases()]
    assert all(type(n) is int and n > 1000 for n in recorded["instructions"].values())
    assert (recorded["level"], recorded["vocabulary"]) == ("v3", 128_256)


def test_growth_beyond_two_percent_is_named() -> None:
    before = {"a": 1000, "b": 1000, "c": 1000, "gone": 5}
    assert grown(before, {"a": 1020, "b": 900, "new": 10**9}) == []
    assert grown(before, {"a": 1021, "b": 1000, "c": 2000}) == [
        "a: 1,000 -> 1,021 (+2.1%)",
        "c: 1,000 -> 2,000 (+100.0%)",
    ]
    assert table(before, {"a": 900, "new": 7})[2:] == ["| a | 900 | -10.0% |", "| new | 7 | new |"]


def test_another_compiler_or_level_is_not_compared() -> None:
    settings = {"compiler": "GNU 12.2.0", "level": "v3", "vocabulary": 128_256}
    assert comparable(settings, {**settings, "instructions": {}})
    for key, other in (("compiler", "GNU 13.1.0"), ("level", "base"), ("vocabulary", 5)):
        assert not comparable(settings, {**settings, key: other})


def test_dumps_are_read_by_case() -> None:
    dumps = [
        ("warm-up", 9000),
        ("rows", 8000 * ROWS),
        ("warm-up", 70),
        ("rows", 60 * ROWS),
        ("the end", 1),
    ]
    text = "".join(f"part: {i}\ndesc: Trigger: {w}\nsummary: {n}\nfn=(1) f\n3 {n}\ntotals: {n}\n"
                   for i, (w, n) in enumerate(dumps))  # fmt: skip
    assert per_case(["a", "b"], totals_of(text)) == {"a": 8000, "b": 60}
    with pytest.raises(SystemExit, match="4 dumps for 3 cases"):
        per_case(["a", "b", "c"], totals_of(text))
