from __future__ import annotations

import json

from count_instructions import (
    BASELINE,
    all_cases,
    name_of,
)


def test_the_baseline_has_every_case_and_no_other() -> None:
    recorded = json.loads(BASELINE.read_text())
    assert list(recorded["instructions"]) == [name_of(case) for case in all_cases()]
    assert all(type(n) is int and n > 1000 for n in recorded["instructions"].values())
    assert (recorded["level"], recorded["vocabulary"]) == ("v3", 128_256)
