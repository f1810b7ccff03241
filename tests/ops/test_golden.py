"""The operator against values worked out by hand from the document."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import ops

from . import reference

CASES: list[tuple[dict[str, Any], float]] = [
    (case, eps)
    for stem, eps in (("document", 1e-8), ("equality", 0.0))
    for case in json.loads((Path(__file__).parent / "golden" / f"{stem}.json").read_text())["cases"]
]
IMPLEMENTATIONS: dict[str, Any] = {
    "native": ops.top_k_top_p_sample,
    "reference": reference.top_k_top_p_sample,
}


def row_of(case: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    weights = np.array(case["weights"], np.float64)
    values = np.log(weights) if case["input"] == "logits" else weights / weights.sum()
    return values.astype(np.float32)[None]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("case", "eps"), CASES, ids=[case["name"] for case, _ in CASES])
def test_golden(case: dict[str, Any], eps: float, name: str) -> None:
    sample, row = IMPLEMENTATIONS[name], row_of(case)
    arguments = (
        row, np.array([case["top_k"]], np.int32), np.array([case["top_p"]], np.float32),
    )  # fmt: skip
    min_p = None if case["min_p"] is None else np.array([case["min_p"]], np.float32)
    logits = case["input"] == "logits"
    listed = sample(
        *arguments, None, min_p, eps=eps, input_is_logits=logits, is_need_sample_result=True
    )
    n = len(case["keeps"])
    assert listed.logits_select_idx is None
    assert listed.logits_top_kp_select is None
    assert listed.logits_idx.tolist() == [case["keeps"] + [0] * (row.shape[1] - n)]
    probs = [float(Fraction(p)) for p in case["probs"].split()]
    assert len(probs) == n
    got = listed.logits_sort_masked[0]
    assert not got[n:].any()
    if logits:
        np.testing.assert_allclose(got[:n], probs, rtol=3e-7)
    else:
        assert got[:n].tolist() == probs
    q = None if case["q"] is None else np.array([case["q"]], np.float32)
    chosen = sample(*arguments, q, min_p, eps=eps, input_is_logits=logits, is_need_logits=True)
    assert chosen.logits_idx is None
    assert chosen.logits_select_idx.tolist() == [case["token"]]
    kept = np.isin(np.arange(row.shape[1]), case["keeps"])
    expected = np.where(kept, row[0], np.float32(-np.inf if logits else 0))
    assert chosen.logits_top_kp_select[0].tolist() == expected.tolist()


def test_golden_covers_all_combinations() -> None:
    seen = {
        (1 <= c["top_k"] <= 6, 0 < c["top_p"] < 1, 0 < (c["min_p"] or 0) < 1, c["q"] is not None)
        for c, _ in CASES
    }
    assert len(seen) == 16


def test_half_precision_top_p_means_its_rounded_value() -> None:
    row = np.array([[1843 / 2048, 100 / 2048, 105 / 2048]], np.float32)
    k = np.zeros(1, np.int32)

    def kept(dtype: Any) -> int:
        out = ops.top_k_top_p_sample(
            row, k, np.array([0.9], dtype), is_need_logits=True, input_is_logits=False
        )
        return int(np.count_nonzero(out.logits_top_kp_select))

    assert (kept(np.float16), kept(np.float32)) == (1, 2)  # 0.89990234375 is reached, 0.9 is not
