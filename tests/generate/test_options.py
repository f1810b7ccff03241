"""How options are read, at both sides of what is allowed."""

from __future__ import annotations

import os
from typing import Any

import pytest

from aleator import SamplingParams
from aleator.core.errors import ParameterError
from aleator.generate.beam_chain import COLDEST, check_chain
from aleator.generate.beam_options import BeamOptions
from aleator.generate.options import (
    LONGEST_TEXT,
    MOST_TEXTS,
    THREADS_PER_CORE,
    GenerateOptions,
    check_threads,
    of_loading,
    read_size,
)


def test_sizes() -> None:
    for text, size in {
        "0": 0, "512": 512 * 2**20, "200M": 200 * 2**20, "8G": 8 * 2**30, "1.5 GiB": 3 * 2**29,
        "1k": 1024, "3KB": 3072, "2T": 2**41, "0.5m": 2**19,
    }.items():  # fmt: skip
        assert read_size("cache_ram", text) == size, text
    for wrong in ("", "M", "-1", "1e3", "1 X", "1.", ".5", "٣", "1  G", "1G2"):
        with pytest.raises(ParameterError, match="give MiB, or a size such as 500M") as refused:
            read_size("cache_ram", wrong)
        assert refused.value.parameter == "cache_ram"


def test_python_in_a_page_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.generate.options.ALONE", True)
    assert check_threads("n_threads", 1) == 1
    said = "n_threads=4 is out of range: give 1, as Python in a page"
    with pytest.raises(ParameterError, match=said):
        check_threads("n_threads", 4)


def test_threads_of_this_machine_and_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores in (3, None):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        most = THREADS_PER_CORE * (cores or 1)
        assert check_threads("n_threads", most) == most
        with pytest.raises(ParameterError, match=f"give at most {most}, 16 for each of the"):
            check_threads("n_threads", most + 1)
    for name in ("n_threads", "n_threads_batch"):
        with pytest.raises(ParameterError, match=f"{name}=100: give at most 16"):
            of_loading({name: 100})
        assert of_loading({name: 100}, here=False)[1] == {name: 100}
        with pytest.raises(ParameterError, match="out of range"):
            of_loading({name: 0}, here=False)
    with pytest.raises(ParameterError, match="n_ubatch=0 is out of range"):
        of_loading({"n_ubatch": 0}, here=False)
    chosen, rest = of_loading({"cache_ram": 5, "n_ubatch": 7})
    assert (chosen.cache_ram, rest) == (5, {"n_ubatch": 7})


@pytest.mark.parametrize("name", ["stop", "banned_strings"])
def test_texts(name: str) -> None:
    def read(value: Any) -> Any:
        return getattr(GenerateOptions(**{name: value}), name)

    assert read("ab") == ("ab",)
    assert read(["a", "b"]) == ("a", "b")
    assert read(()) == ()
    longest, most = "x" * LONGEST_TEXT, [str(i) for i in range(MOST_TEXTS)]
    assert read(longest) == (longest,)
    assert read(most) == tuple(most)
    for wrong, said in (
        ([longest, "x" * (LONGEST_TEXT + 1)], f"{LONGEST_TEXT + 1} characters: give at most 1000"),
        ([*most, "x"], "513"), ("", "at least one character"), (["a", ""], "at least one character"),
        (5, "give a text or a list of texts"), ([5], "give a text or a list of texts"),
        ({"a": 1}, "give a text or a list of texts"), ("\ud800", "surrogate"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=said) as refused:
            read(wrong)
        assert refused.value.parameter == name


def test_limits_and_marks() -> None:
    for name in ("max_tokens", "reasoning_budget"):
        read = [getattr(GenerateOptions(**{name: n}), name) for n in (-1, 0, 1, None)]  # type: ignore[arg-type]
        assert read == [None, 0, 1, None]
    assert GenerateOptions(reasoning_marks=["a", "b"]).reasoning_marks == ("a", "b")  # type: ignore[arg-type]
    for wrong in ("ab", ["a"], ["a", "b", "c"]):
        with pytest.raises(ParameterError, match="give two texts, such as those of <think>"):
            GenerateOptions(reasoning_marks=wrong)  # type: ignore[arg-type]
    loops: list[Any] = [None, (4, 64), (4, 64, 1.5, 8)]
    assert [GenerateOptions(stop_loops=each).raises_temperature for each in loops] == [
        False,
        False,
        True,
    ]
    assert GenerateOptions().bans == ()
    assert GenerateOptions(banned_strings=("a",)).bans == ("banned_strings",)


def test_beams_that_are_just_allowed() -> None:
    assert BeamOptions(num_beams=2, num_return_sequences=2).num_return_sequences == 2
    with pytest.raises(ParameterError, match="num_return_sequences=3 with num_beams=2"):
        BeamOptions(num_beams=2, num_return_sequences=3)
    chain = SamplingParams(seed=1).chain()
    check_chain(chain, COLDEST * 1.01)
    with pytest.raises(ParameterError, match="temperature=1e-05 leaves one token"):
        check_chain(chain, COLDEST)
    check_chain(SamplingParams(seed=1, draw="mt19937", xtc_probability=0).chain(), 1.0)
