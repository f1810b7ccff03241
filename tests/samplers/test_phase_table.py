"""The table of phases: what it may hold at most, and in which phase a text begins after its prompt."""

from __future__ import annotations

from typing import Any

import pytest

from aleator import ParameterError, SamplingParams
from aleator.samplers.params import ALL
from aleator.samplers.phase_table import MAX_MARK_BYTES, MAX_PHASES, with_start

TEXTS = [b"a", b"b", b"<t", b">", b"x<t>y", b" ", b"", b"\n", b" <t>\n", b"t"]


def table(phases: dict[str, Any]) -> dict[str, Any]:
    made = SamplingParams(phases=phases).values()["phases"]
    return {name: own if isinstance(own, str) else dict(own) for name, own in made}


@pytest.mark.parametrize(("n", "sound"), [(MAX_PHASES, True), (MAX_PHASES + 1, False)])
def test_so_many_phases_are_taken_beside_what_holds_for_all(n: int, sound: bool) -> None:
    phases = {f"p{i}": {"begin": f"{i}."} for i in range(10, 10 + n)}
    given = {"histories": "own", **phases, "start": "p11"}
    if sound:
        assert table(given) == {**phases, "histories": "own", "start": "p11"}
        return
    with pytest.raises(ParameterError, match=f"{n} phases: give at most {MAX_PHASES}"):
        table(given)


@pytest.mark.parametrize("word", ["begin", "end"])
@pytest.mark.parametrize(
    ("mark", "sound"),
    [
        ("x", True), ("x" * MAX_MARK_BYTES, True), ("é" * (MAX_MARK_BYTES // 2), True), (0, True),
        (2**24 - 1, True), ("x" * (MAX_MARK_BYTES + 1), False), ("é" * (MAX_MARK_BYTES // 2) + "x", False),
        (-1, False), (2**24, False), (True, False), (1.0, False), ("", False),
    ],
)  # fmt: skip
def test_just_what_a_mark_may_be(word: str, mark: Any, sound: bool) -> None:
    own = {"begin": "b", word: mark}
    if sound:
        assert table({"code": own}) == {"code": own}
        return
    with pytest.raises(
        ParameterError, match=f"{word}=.* is no mark|{word} of 'code' has more than"
    ):
        table({"code": own})


PHASES: dict[str, Any] = {
    "thinking": {"begin": "<t>", "end": "a"}, "code": {"begin": 9}, "space": {"begin": " \n "},
}  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([], "answer"), ([2], "answer"), ([2, 3], "thinking"), ([0, 2, 3], "thinking"),
        ([2, 3, 5, 7], "thinking"), ([2, 3, 0], "answer"), ([2, 5, 3], "answer"), ([4], "answer"),
        ([8], "thinking"), ([8, 6], "thinking"), ([2, 3, 9], "code"), ([9], "code"), ([9, 5, 6, 7], "code"),
        ([9, 0], "answer"), ([5, 7, 5], "space"), ([5, 7, 5, 6], "space"), ([0, 5, 7], "answer"),
        ([5, 7, 5, 0], "answer"), ([5, 7, 7, 5], "answer"),
    ],
)  # fmt: skip
def test_a_text_begins_in_the_phase_whose_mark_ends_its_prompt(
    tokens: list[int], start: str
) -> None:
    given = SamplingParams(phases=PHASES).values()["phases"]
    made = with_start(given, tokens, TEXTS.__getitem__)
    assert made == (*given, ("start", start))
    assert with_start(made, [2, 3], TEXTS.__getitem__) == made  # what is given stays


def test_the_longest_mark_is_found_whatever_space_follows() -> None:
    """A token for each byte of it, and 64 of white space."""
    mark = "ab" * (MAX_MARK_BYTES // 2)
    given = SamplingParams(phases={"code": {"begin": mark}}).values()["phases"]
    tokens = [3, *[0, 1] * (MAX_MARK_BYTES // 2), *[5, 7] * 32]
    assert dict(with_start(given, tokens, TEXTS.__getitem__))["start"] == "code"
    assert dict(with_start(given, tokens[:-63], TEXTS.__getitem__))["start"] == "code"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["code:begin=<c>", "code:temperature=0.5"], {"code": {"begin": "<c>", "temperature": 0.5}}),
        (["thinking=greedy", "thinking:top-k=3"], {"thinking": {"preset": "greedy", "top_k": 3}}),
        (["histories=own", "start=answer"], {"histories": "own", "start": "answer"}),
        ([' {"a": {"begin": "x"}}', "a:end=y=z"], {"a": {"begin": "x", "end": "y=z"}}),
        (["a:samplers=top_k;min_p"], {"a": {"samplers": "top_k;min_p"}}),
        (["a:allowed_token_ids=5"], {"a": {"allowed_token_ids": [5]}}),
    ],
)  # fmt: skip
def test_phases_in_words(words: list[str], made: dict[str, Any]) -> None:
    assert ALL["phases"].read(words) == made


@pytest.mark.parametrize("word", ["thinking", "thinking:temperature", "=greedy", ":temperature=1"])
def test_words_that_name_no_phase_or_no_value(word: str) -> None:
    with pytest.raises(ParameterError, match="write PHASE:NAME=VALUE"):
        ALL["phases"].read([word])
