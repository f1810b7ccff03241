from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from tests.samplers.steps import INF, NAN, Texts, applied, f32, kept, logs, texts_and_ends


@pytest.mark.parametrize(
    ("texts", "probabilities", "expected"),
    [
        (("hel", "hell", "hello", "dummy"), [0.5, 0.2, 0.1, 0.1, 0.02, 0.02], [0, 4, 5]),
        (("a", "b", "c", "d", "e", "f"), [0.165] * 6 + [1e-4, 1e-4], [6]),  # nothing clear: the end
        (("a", "b", "c"), [0.45, 0.4, 0.149, 1e-4, 1e-4], [0, 1, 3, 4]),
        (("a", "b"), [0.3, 0.3, 0.2, 0.2], [2, 3]),  # likely enough to end
        ((*"abcde",), [0.2] * 5 + [0, 0], [0, 1, 2, 3, 4]),  # a fifth is just clear
    ],
)
def test_what_stays(
    texts: tuple[str, ...], probabilities: list[float], expected: list[int]
) -> None:
    assert kept(logs(probabilities), S.Infill(texts_and_ends(*texts, "<eot>", "<eos>"))) == expected


def test_it_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ParameterError, match="vocabulary"):
        S.SamplingParams(samplers="top_k;infill").chain()
    with pytest.raises(ParameterError, match="EOT or EOS"):
        S.Infill(Texts([b"a", b"b", b"c"]))
    with pytest.raises(LogitsError, match="4,096"):
        S.SamplerChain([S.Infill(texts_and_ends("a", "b", "c"))]).apply(
            S.Candidates(np.zeros(4097, np.float32))
        )


def test_the_heavier_of_two_takes_over_and_of_equals_the_shorter_text() -> None:
    equal = texts_and_ends("ab", "abc", "x", "<eot>", "<eos>")
    assert kept(logs([0.35, 0.35, 0.28, 0.01, 0.01]), S.Infill(equal)) == [0, 3, 4]
    assert kept(logs([0.34, 0.36, 0.28, 0.01, 0.01]), S.Infill(equal)) == [1, 3, 4]


def test_logits_do_not_change() -> None:
    row = logs([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    left = applied(row, S.Infill(texts_and_ends("hel", "hell", "hello", "dummy", "<eot>", "<eos>")))
    assert left.logits.tolist() == row[left.ids].tolist()


def test_nothing_clear_leaves_the_end_of_turn_with_logit_one() -> None:
    pieces = texts_and_ends(*"abcdef", "<eot>", "<eos>")
    left = applied(logs([0.165] * 6 + [5e-5] * 2), S.Infill(pieces))
    assert (left.ids.tolist(), left.logits.tolist()) == ([6], [1])
    masked = applied(logs([0.165] * 6 + [0.0, 1e-4]), S.Infill(pieces))  # also where it was masked
    assert (masked.ids.tolist(), masked.logits.tolist()) == ([6], [1])


def test_masked_tokens_are_no_candidates() -> None:
    pieces = texts_and_ends("hel", "hell", "x", "<eot>", "<eos>")
    assert kept(logs([0.0, 0.7, 0.28, 0.02, 0.0]), S.Infill(pieces)) == [1, 3]
    row = f32(NAN, 3, -INF, -9, -INF)
    assert kept(row, S.Infill(pieces)) == [1, 3]


def test_vocabularies_are_not_compared() -> None:
    assert S.Infill(texts_and_ends("a", "b", "", "")) == S.Infill(texts_and_ends("c", "", ""))


@pytest.mark.parametrize(("ending", "ends"), [(0.08, True), (0.07, False)])
def test_an_end_wins_where_it_is_as_likely_as_the_others_by_their_number(
    ending: float, ends: bool
) -> None:
    """Of four candidates: 12 times its probability is compared with the rest."""
    row = logs([(1 - ending) / 3] * 3 + [ending, 0.0])
    left = kept(row, S.Infill(texts_and_ends(*"abc", "<eot>", "<eos>")))
    assert left == ([3] if ends else [0, 1, 2, 3])
