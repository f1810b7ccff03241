from __future__ import annotations

import numpy as np
import pytest
from host_cases import Case, cases

from aleator import samplers as S


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_case_runs_and_is_about_its_sampler(case: Case) -> None:
    n = case.size(32_000)
    chain, rows = case.ours(n), case.make_rows(n)
    tokens = [chain.sample(row) for row in rows]
    assert all(0 <= token < n for token in tokens)
    assert len(chain.history) == case.history + len(rows)
    if case.stem != "chain":
        assert case.stem in [sampler.name for sampler in case.samplers(n) if not sampler.neutral]


def test_names_are_unique_and_rows_repeat() -> None:
    names = [(case.stem, case.name) for case in cases()]
    assert len(set(names)) == len(names)
    first, again = (cases()[0].make_rows(500) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_akunus_preset_is_measured() -> None:
    case = next(case for case in cases() if case.stem == "softmax")
    preset = S.SamplingParams.preset("akunu-balanced", seed=1)
    assert case.ours(500).describe() == preset.chain().describe()
