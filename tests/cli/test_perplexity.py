"""aleator perplexity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aleator import LanguageModel
from tests.cli.conftest import Command

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
