"""The page without a server: texts that obey schemas and expressions, saved pages, a worker that goes."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import aleator
from tests.javascript.firefox import Firefox
from tests.javascript.site_window import TEXT, Handler, Served, Window, link, packed


def choose(window: Window, value: str) -> None:
    """Choose what the text of the view Constrain must obey."""
    window.press("Constrain")
    window.shows("What the text must obey")
    window.script(
        "const field = document.querySelector('.constrain select'); field.value = arguments[0];"
        "field.dispatchEvent(new Event('change', {bubbles: true}))",
        value,
    )


@pytest.mark.parametrize("kind", ["json_schema", "regex"])
def test_a_link_to_a_text_that_obeys_has_the_grammar_that_gives_it_everywhere(
    window: Window, served: Served, model: aleator.LanguageModel, kind: str
) -> None:
    window.open(served.address)
    window.shows("Write a text")
    choose(window, kind)
    window.press("Write")
    window.shows("the text is complete")
    said = window.until(
        lambda: state_of(window).get("constrain", {}).get("grammar") and state_of(window), "a link"
    )
    constrain = said["constrain"]
    assert constrain["kind"] == kind
    prompt, seed = said["prompt"], constrain["seed"]
    wanted = model.generate(
        prompt, grammar=constrain["grammar"], preset="llama.cpp", seed=seed, max_tokens=120
    )
    window.open("about:blank")
    window.open(served.address + packed(said))
    window.shows("the text is complete")
    shown = window.script(
        "return [...document.querySelectorAll('.constrain [data-i]')].map((e) => e.textContent)"
    )
    assert "".join(shown).replace("↵", "\n") == wanted.text
    assert (
        window.script("return document.getElementById('constraint').value") == constrain["source"]
    )


def state_of(window: Window) -> dict[str, Any]:
    """What the page's address says."""
    text: str = window.script("return location.hash.slice(1)")
    made: dict[str, Any] = json.loads(
        base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) or "{}"
    )
    return made


def test_a_saved_page_opens_alone(window: Window, served: Served) -> None:
    window.open(served.address + link())
    window.shows("ended by: length")
    tokens = window.tokens()
    window.press("Reproduce")
    window.script(
        "const {createObjectURL} = URL;"
        "const keep = (text) => (window.saved = text);"
        "URL.createObjectURL = (blob) => (blob.text().then(keep), createObjectURL(blob))"
    )
    window.press("Save the page")
    page = window.until(lambda: window.script("return window.saved"), "the page")
    (held,) = json.loads(page.split('id="record">')[1].split("</script>")[0])["texts"]
    assert len(held["steps"]) == len(held["full"]) == len(tokens)
    assert all(held["full"])


PART = 8 << 20
LOAD = """
const told = (found) => (window.told = found)
window.told = ''
import('./aleator/ranges.js').then(({ RETRIES }) => (RETRIES.wait = 1))
import('./aleator/index.js')
  .then(({ load }) => load('stalled.gguf', { stallTimeout: 300 }))
  .then((model) => model.generate('ROMEO:', { seed: 4, maxTokens: 8 }).text())
  .then(told, ({ message }) => told(message))
"""


def test_a_download_that_stalled_goes_on_with_what_is_kept(
    window: Window, served: Served, model: aleator.LanguageModel
) -> None:
    if isinstance(window.browser, Firefox):
        pytest.skip("Firefox's scripts of tests import nothing")
    window.open(served.address)
    window.shows("Write a text")
    Handler.ended.clear()
    found = []
    for stalls in (True, False):
        Handler.stalls, before = stalls, len(Handler.ranges)
        window.script(LOAD)
        text = window.until(lambda: window.script("return window.told"), "what it ends in")
        found.append((text, Handler.ranges[before:]))
    Handler.ended.set()
    [(error, asked), (text, more)] = found
    assert "tried 6 times: nothing came for 300 ms: load it again, or" in error
    begins = [[int(each[6:].split("-")[0]) for each in ranges] for ranges in (asked, more)]
    assert begins == [[0, *(PART + 1000 * n for n in range(6))], [0, PART]]
    assert text == model.generate("ROMEO:", seed=4, max_tokens=8).text


def test_an_engine_that_is_killed_is_told_and_begun_anew(
    window: Window, folder: Path, wanted: list[str], tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "site")
    transport = tmp_path / "site" / "try" / "transport.js"
    transport.write_text(
        transport.read_text() + "globalThis.kill = () => engine?.worker.terminate();\n"
    )
    served = Served(tmp_path / "site")
    window.open(served.address + link(texts=[{**TEXT, "max_tokens": 3000, "parent": None}]))
    window.until(lambda: len(window.tokens()) > 20, "a text")
    window.script("kill()")
    window.shows("the worker of the engine of this page is gone")
    window.press("Write")
    window.shows("ended by: length")
    assert window.tokens() == wanted
    served.close()
