from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from aleator import LanguageModel
from aleator.cli import eval as command
from aleator.cli.eval_page import Measured
from tests.cli.conftest import Command

FEW = ("eval", "samplers", "-n", "12", "--texts", "2", "-p", "ROMEO:", "-p", "The king", "-t", "1")


def test_what_is_counted() -> None:
    texts = [(1, 2, 3, 1, 2, 3, 1, 2, 3), (1, 2, 3, 4)]
    assert command.distinct_share(texts, 1) == 4 / 13
    assert command.distinct_share(texts, 2) == 4 / 11
    assert command.repeat_share(texts) == pytest.approx(1 - (3 + 1) / (6 + 1))
    assert command.repeat_share([(1, 2)]) == 0


def test_a_table_a_page_and_a_plot(aleator: Command, tmp_path: Path) -> None:
    page, svg = tmp_path / "page.html", tmp_path / "plot.svg"
    made = aleator(
        *FEW, "--temps", "0,1.5", "--only", "top-p 0.9, p-less", "--setting", "mine <&>=--min-p 0.3",
        "--html", str(page), "--svg", str(svg),
    )  # fmt: skip
    assert made.code == 0
    lines = made.out.splitlines()
    assert lines[0].split()[:4] == ["setting", "temp", "tokens", "perplexity"]
    assert [line[:20].strip() for line in lines[1::2]] == ["top-p 0.9", "p-less", "mine <&>"]
    # At temperature 0 all settings, and all texts of a prompt, are the same.
    assert len({re.sub(r"^.{20}", "", line) for line in lines[1::2]}) == 1
    text = page.read_text()
    assert "mine &lt;&amp;&gt;" in text
    assert "Perplexity is that of the model itself." in text
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert text.count("<svg") == 3
    drawn = ET.fromstring(svg.read_text())
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 6


def test_the_model_is_its_own_judge_or_another_is(aleator: Command) -> None:
    words = (*FEW, "--only", "top-k 40", "--temps", "1", "--json")
    (own,) = json.loads(aleator(*words).out)["settings"]
    bundled = command_model()
    told = json.loads(aleator(*words, "--judge", str(bundled.weights.path)).out)
    assert told["judge"] == told["model"]
    (judged,) = told["settings"]
    assert judged["distinct"] == own["distinct"]
    assert judged["perplexity"] == pytest.approx(own["perplexity"], rel=0.2)
    made = bundled.generate_batch(
        ["ROMEO:"] * 2 + ["The king"] * 2,
        seed=[0, 1, 2, 3],
        max_tokens=12,
        preset="neutral",
        top_k=40,
    )
    assert own["tokens"] == sum(len(each.tokens) for each in made)


def command_model() -> LanguageModel:
    import aleator

    return aleator.load()


def test_ctrl_c_leaves_what_is_done(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = command.measured
    done: list[Measured] = []

    def interrupted(*arguments: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(measured(*arguments))
        return done[0]

    monkeypatch.setattr(command, "measured", interrupted)
    made = aleator(*FEW, "--only", "top-k 40", "--temps", "1,2")
    assert made.code == 130
    assert len(made.out.splitlines()) == 2
    assert "interrupted: the results are those of the settings that were done" in made.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval"], "write: aleator eval samplers"),
        ([*FEW, "--only", "top-x"], "there is no setting 'top-x': choose of temperature alone,"),
        ([*FEW, "--temps", "warm"], "give numbers with commas between, such as 0.5,"),
        ([*FEW, "--setting", "--top-p 0.5"], "give NAME=OPTIONS"),
        ([*FEW, "--setting", "mine=--top-pp 0.5"], "unknown option --top-pp; did you mean --top-p"),
        ([*FEW, "--setting", "mine=--top-k 3 --log-disable"], "--log-disable"),
        ([*FEW, "--setting", "mine=--temp 0.5"], "leave its temperature out: those of --temps are"),
        ([*FEW, "--setting", "mine=--seed 5"], "leave its seed out: the seed of a text is its number"),
        ([*FEW, "--setting", "mine=--mirostat 2 --draw gumbel"], "draw='gumbel' would have no effect"),
        ([*FEW, "--setting", "p-less=--top-k 5"], "two settings have that name"),
        ([*FEW, "--svg", "."], ".: give a file's name in a folder that exists"),
        ([*FEW, "--html", "/no/such/page.html"], "/no/such/page.html: give a file's name in a"),
        ([*FEW, "--temps", "-1"], "temperature=-1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(aleator: Command, words: list[str], message: str) -> None:
    result = aleator(*words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_plot_needs_no_page(aleator: Command, tmp_path: Path) -> None:
    page, svg = tmp_path / "page.html", tmp_path / "plot.svg"
    words = (*FEW, "--temps", "1", "--only", "p-less")
    assert aleator(*words, "--svg", str(svg)).code == 0
    assert ET.fromstring(svg.read_text()).tag.endswith("svg")
    assert [*tmp_path.iterdir()] == [svg]
    assert aleator(*words, "--html", str(page)).code == 0
    assert "<svg" in page.read_text()
