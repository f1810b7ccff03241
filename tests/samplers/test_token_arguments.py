"""Ids of tokens are taken from 0 to the largest, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.core.integers import MAX_TOKEN
from aleator.samplers import token_arguments
from aleator.samplers.params import ALL

CHECKS: dict[str, Callable[[int], Any]] = {
    "one": token_arguments.token_id,
    "several": lambda token: token_arguments.token_ids([token]),
    "a set": lambda token: token_arguments.check_ids("ids", [token]),
    "a sequence": lambda token: token_arguments.check_sequences("words", [[token]]),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_least_and_the_largest_id_are_taken(check: Callable[[int], Any]) -> None:
    check(0)
    check(MAX_TOKEN)
    for token in (-1, MAX_TOKEN + 1):
        with pytest.raises(ParameterError):
            check(token)


@pytest.mark.parametrize(
    ("item", "what"),
    [
        ("", "is empty"),
        ([], "is empty"),
        (" ", "is neither"),
        ([-1], "is neither"),
        (3, "is neither"),
    ],
)
def test_what_is_no_sequence_says_why(item: Any, what: str) -> None:
    with pytest.raises(ParameterError, match=f"words: .* {what}"):
        token_arguments.check_sequences("words", [item])


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_id(value: Any) -> None:
    with pytest.raises(ParameterError, match="is not a number of a token: give an integer"):
        token_arguments.token_id(value)


def test_values_in_words_of_phases_are_lists_where_the_parameter_has_several() -> None:
    words = ["thinking:stop_token_ids=3", "thinking:samplers=top_k;temperature", "thinking:top-k=5"]
    made = ALL["phases"].read(words)["thinking"]
    assert made == {"stop_token_ids": [3], "samplers": "top_k;temperature", "top_k": 5}
