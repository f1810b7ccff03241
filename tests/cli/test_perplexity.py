"""aleator perplexity."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aleator import LanguageModel
from aleator.cli import perplexity
from aleator.cli.terminal import messages
from aleator.generate.scores import Perplexity
from tests.cli.conftest import Command
from tests.cli.test_terminal import Terminal

FILE = str(Path(__file__).parents[1] / "data" / "coriolanus.txt")
TEXT = Path(FILE).read_text().removesuffix("\n")


def test_a_line(aleator: Command, model: LanguageModel) -> None:
    found = model.perplexity(TEXT, n_ctx=64, chunks=2)
    result = aleator("perplexity", "-f", FILE, "-c", "64", "--chunks", "2")
    assert result.code == 0
    assert result.out.startswith(
        f"perplexity {found.value:.4f} ± {found.error:.5f} (62 tokens scored"
    )
    assert "2 of 2 chunks of 64" in result.out


def test_json(aleator: Command, model: LanguageModel) -> None:
    found = model.perplexity(TEXT, n_ctx=64, chunks=2)
    words = ("perplexity", "-f", FILE, "--n-ctx", "64", "--chunks", "2", "--json")
    fields = json.loads(aleator(*words).out)
    assert fields["perplexity"] == found.value
    assert (fields["chunks"], fields["n_ctx"], fields["complete"]) == (2, 64, True)
    assert fields["tokens_per_second"] > 0


def test_ctrl_c_writes_what_is_known(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LanguageModel.perplexity

    def stopped(self, text, *, progress, **options):  # type: ignore[no-untyped-def]
        def after(now):  # type: ignore[no-untyped-def]
            progress(now)
            if now.chunk == 2:
                raise KeyboardInterrupt

        return whole(self, text, progress=after, **options)

    monkeypatch.setattr(LanguageModel, "perplexity", stopped)
    result = aleator("perplexity", "-f", FILE, "-c", "32", "--chunks", "5")
    assert result.code == 130
    assert "2 of 5 chunks of 32" in result.out
    assert "interrupted" in result.err


def test_refused(aleator: Command) -> None:
    result = aleator("perplexity", "-p", "too short")
    assert result.code == 2
    assert "fewer than one chunk of n_ctx=512" in result.err
    assert aleator("perplexity", "-p", "x", "--chunks", "0").code == 2
    assert aleator("perplexity", "-p", "x", "--no-prompt-cache").code == 2


def measured(chunk: int) -> Perplexity:
    return Perplexity(value=9.5, error=0.1, n_scored=31 * chunk, n_ctx=64, chunk=chunk, n_chunks=4)


def test_a_terminal_has_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    progress = perplexity.Progress()
    progress.clear()
    assert shown.getvalue() == ""
    for chunk in (1, 2):
        progress(measured(chunk))
    first, second = (line.rstrip() for line in shown.getvalue().split("\r")[1:])
    assert (first[:9], second[:9]) == ("chunk 1/4", "chunk 2/4")
    progress.clear()
    assert shown.getvalue().endswith("\r" + " " * 79 + "\r")
    before = shown.getvalue()
    with messages(verbose=False, silent=True):  # --log-disable
        progress(measured(3))
        progress.clear()
    assert shown.getvalue() == before


def test_elsewhere_a_line_is_written_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perplexity, "QUIET", 10.0)
    times = iter((0.0, 1.0, 1.0, 11.0, 11.0, 11.0, 12.0, 12.0, 30.0, 30.0))
    monkeypatch.setattr(perplexity, "perf_counter", lambda: next(times))
    progress = perplexity.Progress()
    for chunk in (1, 2, 3):
        progress(measured(chunk))
    progress(measured(4))  # the result itself comes next
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["chunk 2/4"]


def test_ctrl_c_before_anything_is_known(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LanguageModel, "perplexity", stopped)
    result = aleator("perplexity", "-f", FILE, "-c", "32")
    assert (result.code, result.out) == (130, "")
