from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aleator.core.errors import ParameterError
from aleator.generate.completion import StopMatcher


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + ("" if matcher.matched else matcher.flush()), matcher.matched


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first end at which some stop string is complete, longest first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


LETTERS = "abé\U0001f600"


@given(
    st.lists(st.text(LETTERS, max_size=5), max_size=12),
    st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=4),
)
def test_equals_the_brute_force_reference(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == reference("".join(pieces), stops)


@given(
    st.text(LETTERS, max_size=20),
    st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_nothing_shown_is_taken_back_and_no_more_is_held_than_needed(
    text: str, stops: list[str]
) -> None:
    matcher, shown = StopMatcher(stops), ""
    for i, character in enumerate(text, 1):
        shown += matcher.push(character)
        if matcher.matched:
            break
        held = text[len(shown) : i]
        assert shown + held == text[:i]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_tokens_is_not_shown() -> None:
    assert run(["Hello\nRO", "ME", "O: what"], ["\nROMEO:"]) == ("Hello", "\nROMEO:")


def test_an_unfinished_stop_string_is_shown_in_the_end() -> None:
    assert run(["one", "\nRO"], ["\nROMEO:"]) == ("one\nRO", None)


def test_without_stop_strings_text_passes() -> None:
    matcher = StopMatcher()
    assert matcher.push("anything") == "anything"


def test_one_string_is_one_stop_string() -> None:
    assert StopMatcher("ab").stops == ("ab",)


def test_nothing_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == "a"
    assert matcher.push("more") == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ParameterError, match="at least one character"):
        StopMatcher(["ok", ""])
