"""The site's button at blocks of Python, in Chromium under the site's policy."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

import pytest
import site_python

import aleator
from tests.javascript.site_window import Served
from tests.playground import browser as chromium
from tests.pyodide.test_wheel import PYODIDE, wheels

ROOT = Path(__file__).parents[2]
WRITE = """
import aleator
for piece in aleator.load().generate("ROMEO:", seed=4, max_tokens=40):
    print(piece, end="")
"""
BLOCKS = (WRITE, "1 / 0", "while True: pass")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    if chromium.missing():
        pytest.skip(f"{chromium.missing()} is not installed")
    wheels()
    site_python.write_python(tmp_path / "try", PYODIDE)
    blocks = "".join(
        f'<div class="run highlight"><pre><code>{html.escape(each)}</code></pre></div>'
        for each in BLOCKS
    )
    script = '<script type="module" src="run.js"></script>'
    (tmp_path / "try" / "page.html").write_text(
        f"<!doctype html><link rel=icon href=data:,>{blocks}{script}"
    )
    served = Served(tmp_path)
    yield f"{served.address}page.html"
    served.close()


def test_blocks_run_one_after_another(page: str, model: aleator.LanguageModel) -> None:
    with chromium.Browser() as window:
        window.driver.get(page)
        buttons, outputs = window.all("button"), window.all("pre[role=log]")

        def said(number: int) -> str:
            buttons[number].click()
            window.until(lambda: buttons[number].text == "Run", f"block {number} ends")
            return str(outputs[number].get_attribute("textContent"))

        text = model.generate("ROMEO:", seed=4, max_tokens=40).text
        assert said(0) == f"Loading Python ...\n{text}"
        assert "ZeroDivisionError" in said(1)
        buttons[2].click()
        window.until(lambda: buttons[2].text == "Stop" and not buttons[0].is_enabled(), "it runs")
        buttons[2].click()
        assert window.until(lambda: buttons[0].is_enabled(), "another can run")
        assert window.reports() == []


def test_blocks_that_need_more_have_no_button() -> None:
    text = (ROOT / "docs" / "tutorial-constrain.md").read_text()
    made = site_python.with_buttons(text)
    assert made.count("``` { .python .run }") == 1
    assert "```python" in made
    assert (
        site_python.with_buttons("```python\nEngine(model)\n```") == "```python\nEngine(model)\n```"
    )
