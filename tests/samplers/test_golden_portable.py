"""The portable contract across versions: tests/golden/portable, which tools/golden_portable.py fills in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_portable import chain_of, described, row_of, steps_of

from aleator import samplers as S
from aleator.core.numerics import NUMERICS_VERSION

GOLDEN = Path(__file__).parent.parent / "golden" / "portable"
STEMS = sorted(path.stem for path in GOLDEN.glob("*.json"))


def cases(stem: str) -> list[dict[str, Any]]:
    content = json.loads((GOLDEN / f"{stem}.json").read_text())
    assert content["numerics"] == NUMERICS_VERSION
    made: list[dict[str, Any]] = content["cases"]
    assert made
    return made


@pytest.mark.parametrize("stem", STEMS)
def test_the_chain_gives_the_golden_steps(stem: str) -> None:
    for case in cases(stem):
        chain = chain_of(case)
        for token in case["accepted"]:
            chain.accept(token)
        for step, expected in enumerate(case["steps"]):
            logits = row_of(case, step)
            candidates = S.Candidates(logits)
            chain.apply(candidates)
            token = chain.sample(logits)
            assert described(candidates.ids, candidates.logits, token) == expected, case


@pytest.mark.parametrize("stem", STEMS)
def test_the_reference_gives_the_golden_steps(stem: str) -> None:
    for case in cases(stem):
        assert len(case["steps"]) == case["n"]
        assert steps_of(case) == case["steps"], case
