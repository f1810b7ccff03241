"""The equality tool in Chromium, Firefox, Node and Deno, with small numbers."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import equality_javascript
import pytest

from tests.javascript import firefox
from tests.javascript.conftest import needs
from tests.playground import browser as chromium


def missing(place: str) -> str:
    """What must be installed for this; "" if it is."""
    if place == "chromium":
        return chromium.missing()
    if place == "firefox":
        return firefox.missing()
    return "" if shutil.which(place) else place


@pytest.mark.parametrize("place", equality_javascript.PLACES)
def test_draws_logits_and_texts_are_the_same(place: str, tmp_path: Path) -> None:
    needs()
    if absent := missing(place):
        pytest.skip(f"{absent} is not installed")
    out = tmp_path / "report.md"
    small = ["--draws", "72", "--models", "2", "--texts", "3", "--files", "40", "--out", str(out)]
    assert equality_javascript.main(["--where", place, *small]) == 0
    counts = out.read_text().splitlines()[-1].strip("| ").split(" | ")
    assert counts[2:7] + counts[8:] == ["72", "0", "2", "0", "3", "0", "40", "0"]


def test_what_differs_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = equality_javascript.Place("here")
    place.told.put([[1, 2], [3, 5]])
    work = [("chains", name, {"rows": ["", ""]}, [1, int(name)]) for name in "24"]
    done: Counter[str] = Counter()
    equality_javascript.compare([place], iter(work), done)
    assert (place.wrong, done) == ({"chains": 1}, {"chains": 2, "draws": 4, "tokens": 0})
