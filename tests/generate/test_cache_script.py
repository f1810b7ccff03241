"""Operations on caches as words: what is taken, and what is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.generate.cache_script import EXAMPLE, OPERATIONS, Script, best, checked

GOOD = {"decode": "0,1 5", "add": "0 1 -1 3", "div": "0 1 -1 3"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_so_many_numbers_are_taken(name: str) -> None:
    low, high = OPERATIONS[name]
    for n in range(6):
        words = [name, *["1"] * n]
        if low <= n <= high:
            checked(words)
            continue
        count = str(low) if low == high else f"{low} to {high}"
        with pytest.raises(ParameterError, match=f"{name} takes {count} whole numbers") as caught:
            checked(words)
        assert caught.value.parameter == "script"


@pytest.mark.parametrize(
    "words",
    ["rm x", "rm 1.5", "rm 12345678901", "decode 0, 3", "decode 0,a 3", "rm ٣", "rm -", "rm --3"],
)
def test_what_is_no_number(words: str) -> None:
    with pytest.raises(ParameterError, match="whole numbers"):
        checked(words.split())


@pytest.mark.parametrize("words", ["rm 1234567890", "rm -3", "decode 0,12,3 3", "add 0 -1 -1 5"])
def test_what_is_a_number(words: str) -> None:
    checked(words.split())
    with pytest.raises(ParameterError, match="is not an operation; operations: decode, fork"):
        checked(["jump", "1"])


def test_a_script_does_what_its_words_say() -> None:
    model = aleator.load(n_threads=1)
    context = model.context(80, 3)
    prompt = list(model.prompt_tokens("ROMEO:"))
    with pytest.raises(ParameterError, match="the prompt has no tokens") as caught:
        Script(context, [], 1)
    assert caught.value.parameter == "prompt"
    script, maps = Script(context, prompt, 1), []
    for words in EXAMPLE.split("; "):
        script.do(words.split())
        maps.append((words, script.computed, context.cache.map()))
    assert maps == RECORDED
    for words in ("add 0 0 -1 3", "div 0 0 -1 2", "keep 0", "fork 0 1 2", "rm 1 1", "clear"):
        script.do(words.split())
        maps.append((words, script.computed, context.cache.map()))
    assert [each[2] for each in maps[-6:]] == AFTER


def test_the_best_four() -> None:
    row: Any = np.array([1.0, 5.0, 3.0, 5.0, -1.0, 4.0], np.float32)
    assert best(row) == [1, 3, 5, 2]


RECORDED = [
    ("decode 0 20", 22, "0000000000000000000000"),
    ("fork 0 1", 22, "MMMMMMMMMMMMMMMMMMMMMM"),
    ("fork 0 2", 22, "MMMMMMMMMMMMMMMMMMMMMM"),
    ("decode 0,1,2 8", 46, "MMMMMMMMMMMMMMMMMMMMMM012012012012012012012012"),
    ("rm 1", 46, "MMMMMMMMMMMMMMMMMMMMMM0.20.20.20.20.20.20.20.2"),
    ("slide 0 4", 46, "MMMM2222222222222222220020020020020020.20.20.2"),
    ("decode 0,2 4", 54, "MMMM22222222222222222200200200200200200202200220202"),
    ("rm 2", 54, "0000..................00.00.00.00.00.00.0..00..0.0"),
    ("defrag", 54, "000000000000000000000"),
]
AFTER = [
    "000000000000000000000", "000000000000000000000", "000000000000000000000", "M00000000000000000000",
    "000000000000000000000", "",
]  # fmt: skip


def test_a_sequence_that_is_decoded_twice_in_a_step() -> None:
    with pytest.raises(ParameterError, match="'decode 0,00 3': decode takes each sequence once"):
        checked(["decode", "0,00", "3"])
