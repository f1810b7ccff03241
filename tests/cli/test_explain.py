from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from aleator import LanguageModel
from tests.cli.conftest import Command

TO_BE = ("explain", "-t", "1", "-p", "To be", "--seed", "7")


def test_one_step(aleator: Command, model: LanguageModel) -> None:
    result = aleator(*TO_BE)
    generation = model.generate("To be", max_tokens=1, seed=7)
    assert result.code == 0
    assert result.err.startswith("seed: 7\n")
    assert re.search(r"^logits +2,048 +[\d.]+ bits", result.out, re.MULTILINE)
    assert re.search(r"^top_k=40 +40 +2,008 ", result.out, re.MULTILINE)
    assert f"drawn: {generation.text!r} (id {generation.tokens[0]})" in result.out
    assert re.search(rf"^> {re.escape(repr(generation.text))} .*█", result.out, re.MULTILINE)
    bars = result.out.split("\n\n")[1].splitlines()
    assert len(bars) in (10, 11)
    assert len(aleator(*TO_BE, "--top", "4").out.split("\n\n")[1].splitlines()) in (4, 5)
    assert (
        len(aleator(*TO_BE, "--top", "0").out.split("\n\n")[1].splitlines()) == 1
    )  # the token drawn


def test_phases_whose_chains_have_other_samplers(aleator: Command, tmp_path: Path) -> None:
    phases = {
        "speech": {"begin": "\n", "end": ",", "preset": "greedy"},
        "answer": {"samplers": "temperature;top_k", "top_k": 5, "mirostat": 0},
        "verse": {"begin": ":", "end": "\n", "preset": "neutral", "mirostat": 2},
    }
    page = tmp_path / "page.html"
    words = (*TO_BE, "-n", "24", "--phase", json.dumps(phases))
    made = aleator(*words, "--html", str(page))
    assert made.code == 0
    assert "mass cut by top_k" in made.out
    assert page.exists()
    told = json.loads(aleator(*words, "--json").out)
    drawn = {step["phase"] for step in told["steps"]}
    assert {"answer", "speech"} <= drawn
    for name in ("mass cut by top_k", "mass cut by temperature"):
        assert len(told["curves"][name]) == 24
    cut = told["curves"]["mass cut by top_k"]
    assert all(x == 0 for x, s in zip(cut, told["steps"], strict=True) if s["phase"] == "speech")


def test_a_generation_is_the_one_that_generate_makes(
    aleator: Command, model: LanguageModel
) -> None:
    result = aleator(*TO_BE, "-n", "9", "--mirostat", "2")
    generation = model.generate("To be", max_tokens=9, seed=7, mirostat=2)
    labels = [repr(model.vocab.token_bytes(token).decode()) for token in generation.tokens]
    steps = re.findall(r"^ +(\d+)  (.+?) +[\d.e-]+% -> .* mu [\d.]+$", result.out, re.MULTILINE)
    assert steps == [(str(i), label) for i, label in enumerate(labels)]
    assert f"text: {generation.text!r}, ended by: length\n" in result.out
    assert re.search(r"^mu of mirostat_v2 +10 ", result.out, re.MULTILINE)
    few = aleator(*TO_BE, "-n", "9", "--top", "0").out
    assert len(few.splitlines()) < len(result.out.splitlines())


def test_a_text_that_ends_early(aleator: Command, model: LanguageModel) -> None:
    (eog,) = model.vocab.eog
    result = aleator(*TO_BE, "-n", "9", "-l", f"{eog}+inf")
    assert result.code == 0
    assert "text: '', ended by: eog" in result.out
    assert result.out.count("<|endoftext|>") >= 1


def test_json(aleator: Command, model: LanguageModel) -> None:
    made = json.loads(
        aleator(*TO_BE, "-n", "4", "--json", "--top", "2").out, parse_constant=pytest.fail
    )
    generation = model.generate("To be", max_tokens=4, seed=7)
    assert made["text"] == generation.text
    assert made["prompt_tokens"] == list(generation.request.tokens)
    assert [step["draw"]["token"]["id"] for step in made["steps"]] == generation.tokens
    assert [step["draw"]["position"] for step in made["steps"]] == [0, 1, 2, 3]
    assert made["curves"]["candidates left"] == [
        s["stages"][-1]["after"]["candidates"] for s in made["steps"]
    ]


@pytest.mark.parametrize("n", ["1", "3"])
def test_png(aleator: Command, tmp_path: Path, n: str) -> None:
    path = tmp_path / "picture.png"
    result = aleator(*TO_BE, "-n", n, "--png", str(path))
    assert result.code == 0
    assert f"picture: {path}\n" in result.err
    assert path.read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = aleator(*TO_BE, "--png", "picture.png")
    assert (result.code, result.out) == (1, "")
    assert "pip install 'aleator[plot]'" in result.err
    assert not Path("picture.png").exists()


def test_png_that_cannot_be_written(aleator: Command, tmp_path: Path) -> None:
    result = aleator(*TO_BE, "--png", str(tmp_path / "missing" / "picture.png"))
    assert result.code == 3
    assert "picture.png: No such file or directory" in result.err
    assert aleator(*TO_BE, "--png", str(tmp_path / "picture.abc")).code == 2


def test_terminals_without_block_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    from aleator.cli.explain import put

    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    put("' a' 10%  ██▓▓░ ▁█")
    assert out.buffer.getvalue() == b"' a' 10%  ##++. _#\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0"], "0 is out of range: 1 or more"),
        (["--top", "-1"], "-1 is out of range"),
        (["--xtc-probability", "2"], "xtc_probability=2.0 is out of range"),
    ],
)
def test_bad_input(aleator: Command, words: list[str], message: str) -> None:
    result = aleator(*TO_BE, *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize(
    "words",
    [
        ("--json-schema", '{"type": "integer"}'),
        ("--regex", "[a-z]+"),
        ("--grammar", 'root ::= "yes"'),
    ],
)
def test_a_page_of_a_constrained_text(
    aleator: Command, tmp_path: Path, words: tuple[str, str]
) -> None:
    page = tmp_path / "steps.html"
    result = aleator("explain", "-p", "x", "-n", "3", "--seed", "1", *words, "--html", str(page))
    assert (result.code, page.is_file()) == (0, True)


def test_a_page_of_two_chains_on_one_seed(aleator: Command, tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    words = ("--compare", "--temp 3 --top-k 0 --regex '[a-z ]+'", "--html", str(page))
    result = aleator(*TO_BE, "-n", "6", "--json-schema", "{}", *words)
    assert result.code == 0
    (found,) = re.findall(r'id="record">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    held = json.loads(found)
    a, b = held["texts"]
    assert (a["name"], b["name"], a["seed"], b["seed"]) == ("A", "B", 7, 7)
    assert "--json-schema" in a["spelled"]["cli"]
    assert "--regex" in b["spelled"]["cli"]
    assert "--json-schema" not in b["spelled"]["cli"]
    ids = [[step["token"]["id"] for step in text["steps"]] for text in (a, b)]
    at = held["shown"]["step"]
    assert ids[0][:at] == ids[1][:at]
    assert ids[0][at] != ids[1][at]
    assert f"diverge at token {at}" in result.err
    assert (held["shown"]["view"], held["shown"]["compare"]) == ("compare", [0, 1])
    assert [(each["text"], each["step"]) for each in held["draws"]] == [(0, at), (1, at)]


def test_a_page_with_branches(aleator: Command, tmp_path: Path) -> None:
    page = tmp_path / "tree.html"
    words = ("--branch", "2=#70", "--branch", "0= king", "--html", str(page))
    for chain in ((), ("--mirostat", "2")):
        assert aleator(*TO_BE, "-n", "6", *chain, *words).code == 0
        (found,) = re.findall(r'id="record">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
        held = json.loads(found)
        text, first, second = held["texts"]
        assert [each["parent"] for each in held["texts"]] == [None, 0, 0]
        assert (first["at"], second["at"], held["shown"]["text"]) == (2, 0, 0)
        assert first["steps"][0]["token"]["id"] == 70
        assert second["steps"][0]["token"]["text"] == " king"
        assert len(text["steps"]) == len(second["steps"]) == 6
        assert len(first["steps"]) == 4
        assert len({text["seed"], first["seed"], second["seed"]}) == 1


def test_a_branch_behind_the_end_of_a_text_is_left_out(
    aleator: Command, model: LanguageModel, tmp_path: Path
) -> None:
    page, (eog,) = tmp_path / "tree.html", model.vocab.eog
    words = ("--branch", "0=#70", "--branch", "3=#71", "-l", f"{eog}+inf", "--html", str(page))
    result = aleator(*TO_BE, "-n", "6", *words)
    assert result.code == 0
    assert "no branch at 3: the text ended after 1 tokens" in result.err
    (found,) = re.findall(r'id="record">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert [each["parent"] for each in json.loads(found)["texts"]] == [None, 0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--branch", "1=a"], "--branch needs --html FILE"),
        (["--branch", "a", "--html", "x"], "give AT=TOKEN, AT from 0 to 0"),
        (["--branch", "1=a", "--html", "x"], "AT from 0 to 0"),
        (["--branch", "0=#99999", "--html", "x"], "#99999 is not in the vocabulary"),
        (["--branch", "0=king of all", "--html", "x"], "tokens, #"),
        (["--compare", "--temp 2"], "--compare needs --html FILE"),
        (["--compare", "--tempp 2", "--html", "x"], "unknown option --tempp; did you mean --temp"),
        (["--compare", "'--temp 2", "--html", "x"], "No closing quotation"),
        (["--compare", "--help", "--html", "x"], "unknown option --help; did you mean"),
        (["--compare", "-n 3", "--html", "x"], "unknown option -n"),
    ],
)
def test_options_of_a_second_text(aleator: Command, words: list[str], message: str) -> None:
    result = aleator(*TO_BE, *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_options_of_the_text(aleator: Command, model: LanguageModel, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("explain", "-p", "ROMEO: <think>\nWhat", "--seed", "3", "-n", "16", "--json")
    cases: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (
            ("--reasoning-budget", "4", "--reasoning-budget-message", "So."),
            {"reasoning_budget": 4, "reasoning_budget_message": "So."},
        ),
        (("--banned-string", "th", "--html", str(page)), {"banned_strings": ["th"]}),
        (("--heal",), {"heal": True}),
        (("--stop-loops", "2,4", "--top-k", "1"), {"stop_loops": (2, 4), "top_k": 1}),
    ]
    for flags, options in cases:
        told = json.loads(aleator(*words, *flags).out)
        made = model.generate("ROMEO: <think>\nWhat", seed=3, max_tokens=16, **options)
        assert told["text"] == made.text
        assert len(told["steps"]) == len(made.tokens)
        assert told["tokens"] == made.tokens
        drawn = [step["draw"]["token"]["id"] for step in told["steps"]]
        shown = aleator(*[word for word in words if word != "--json"], *flags).out
        assert (drawn == made.tokens) == ("drawn anew for a ban: " not in shown)
    assert page.exists()
