from __future__ import annotations

import math

import numpy as np

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, applied, f32, logits_after

ROW = f32(2, -2, 1, 0, 0)


def test_the_values_of_llama_cpp() -> None:
    after = logits_after(S.Penalties(repetition_penalty=1.5), ROW, [0, 1, 4, 4])
    assert after == [float(np.float32(2) / np.float32(1.5)), -3, 1, 0, 0]
    three = S.Penalties(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
    np.testing.assert_allclose(
        logits_after(three, ROW, [0, 1, 1]), [0.5833334, -4.25, 1, 0, 0], rtol=1e-6
    )


def test_the_cases_of_llama_cpps_own_tests() -> None:
    p = np.full(5, math.log(0.2))
    counted = S.Penalties(frequency_penalty=5.0, presence_penalty=5.0)
    after = logits_after(counted, p.astype(np.float32), [0, 1, 2, 0, 0])
    np.testing.assert_allclose(np.array(after) - math.log(0.2), [-20, -10, -10, 0, 0], atol=1e-5)


def test_a_window_forgets() -> None:
    window = S.Penalties(penalty_last_n=3, repetition_penalty=2.0)
    assert logits_after(window, f32(1, 1, 1, 1, 1), [1, 2, 3, 4]) == [1, 1, 0.5, 0.5, 0.5]
    whole = S.Penalties(penalty_last_n=-1, repetition_penalty=2.0)
    assert logits_after(whole, f32(1, 1), [0] + [1] * 500) == [0.5, 0.5]
    last = S.Penalties(penalty_last_n=1, frequency_penalty=1.0)
    assert logits_after(last, f32(0, 0), [0, 0, 1]) == [0, -1]


def test_repetition_then_one_subtraction_of_the_sum() -> None:
    # (0.1 * 3 + 1e-9) as float32 first; subtracting one by one would round otherwise.
    z = np.float32(1000)
    sampler = S.Penalties(frequency_penalty=0.1, presence_penalty=3e-5)
    expected = z - (np.float32(3) * np.float32(0.1) + np.float32(3e-5))
    assert logits_after(sampler, f32(1000, 0), [0, 0, 0])[0] == float(expected)


def test_scopes() -> None:
    for scope, expected in {"all": [-2, -2], "generated": [0, -2], "mixed": [0, -2]}.items():
        chain = S.SamplerChain([S.Penalties(presence_penalty=2, penalty_scope=scope)])
        chain.accept(0)
        chain.accept(1, generated=True)
        candidates = S.Candidates(np.zeros(2, np.float32))
        chain.apply(candidates)
        assert candidates.logits.tolist() == expected
    mixed = S.Penalties(repetition_penalty=2, penalty_scope="mixed")
    assert logits_after(mixed, f32(4, 4), [0]) == [2, 4]


def test_masked_tokens_stay_masked_and_tokens_past_the_row_do_no_harm() -> None:
    boost = S.Penalties(presence_penalty=-5, repetition_penalty=0.5)
    left = applied(f32(-INF, 1, NAN), boost, history=[0, 1, 2, 999])
    assert (left.ids.tolist(), left.logits.tolist()) == ([1], [7])


def test_after_a_truncation_only_candidates_change() -> None:
    left = applied(f32(1, 2, 3), S.TopK(top_k=2), S.Penalties(presence_penalty=1), history=[0, 1])
    assert (left.ids.tolist(), left.logits.tolist()) == ([1, 2], [1, 3])


def test_a_pending_temperature_is_applied_first() -> None:
    left = applied(
        f32(1, 2), S.Temperature(temperature=0.5), S.Penalties(presence_penalty=1), history=[0]
    )
    assert left.logits.tolist() == [1, 4]
