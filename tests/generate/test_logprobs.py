from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aleator.generate.logprobs import log_softmax, top_logprobs


def letter(token: int) -> bytes:
    return bytes([0x61 + token])


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=26), st.data())
def test_equals_the_definition(values: list[float], data: st.DataObject) -> None:
    logits = np.array(values, np.float32)
    token = data.draw(st.integers(0, len(values) - 1))
    top = data.draw(st.integers(0, 30))
    found = top_logprobs(logits, token, top, letter)
    p = np.exp(logits.astype(np.float64))
    expected = np.log(p / p.sum())
    np.testing.assert_allclose(found.chosen.logprob, expected[token], atol=1e-12)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:top]
    assert [entry.token for entry in found.top] == order
    np.testing.assert_allclose(
        [e.logprob for e in found.top], expected[order] if order else [], atol=1e-12
    )


def test_ties_go_to_the_lowest_id() -> None:
    found = top_logprobs(np.zeros(9, np.float32), 8, 3, letter)
    assert [entry.token for entry in found.top] == [0, 1, 2]


def test_token_text_and_bytes() -> None:
    found = top_logprobs(np.array([0.0, 1.0]), 0, 1, lambda i: b"\xc3" if i == 0 else b"\xc3\xa9")
    assert (found.chosen.text, found.chosen.bytes) == ("\ufffd", b"\xc3")
    assert found.top[0].text == "é"
    assert found.as_json()["top"][0]["bytes"] == [0xC3, 0xA9]


def test_infinities_and_nan() -> None:
    np.testing.assert_array_equal(
        log_softmax(np.array([np.inf, 1.0, np.inf])), [np.log(0.5), -np.inf, np.log(0.5)]
    )
    np.testing.assert_array_equal(log_softmax(np.array([np.nan, 3.0])), [-np.inf, 0.0])
    np.testing.assert_array_equal(log_softmax(np.array([np.nan, -np.inf])), [-np.inf, -np.inf])


def test_impossible_tokens_are_null_in_json() -> None:
    found = top_logprobs(np.array([0.0, -np.inf]), 0, 2, letter)
    assert found.as_json()["top"][1]["logprob"] is None


def test_the_logits_are_left_alone() -> None:
    logits = np.array([np.nan, 1.0, 2.0])
    top_logprobs(logits, 1, 2, letter)
    assert np.isnan(logits[0])
    assert logits[1] == 1.0
