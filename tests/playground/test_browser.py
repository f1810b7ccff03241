"""The page in a real browser: every view's main flow, and a hostile model's tokens, which are text.

Needs selenium, and Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import aleator
from aleator.server.options import ServerOptions
from aleator.server.playground.told import Telling
from aleator.server.service import Service
from aleator.text.special_tokens import SpecialTokens, TokenAttribute
from aleator.text.vocabulary import BYTE_CHARACTERS, Vocabulary
from tests.playground.browser import Browser, missing, served

if missing():
    pytest.skip(f"{missing()} is not installed", allow_module_level=True)

AXE = Path(__file__).parents[2] / "build/page/node_modules/axe-core/axe.min.js"
VIEWS = ("write", "chain", "compare", "constrain", "cache", "reproduce")


@pytest.fixture(scope="module")
def server(model: aleator.LanguageModel) -> Iterator[tuple[str, Any]]:
    """The address of a server, and its application."""
    with (
        model.engine(n_seq_max=4) as engine,
        served(Service(model, engine, ServerOptions())) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser, server: tuple[str, Any]) -> Iterator[Browser]:
    """The page; at the end nothing was reported, and nobody else was asked."""
    address, _ = server
    chromium.resize(1280, 900)
    chromium.open(address)
    yield chromium
    assert chromium.reports() == []
    assert chromium.hosts() <= {address}


def write(page: Browser, tokens: int = 24) -> None:
    page.fill("form.controls input[type=number][min='1']", str(tokens))
    page.button("Write")
    page.shows(".status", "ended by")


def tokens(page: Browser, where: str = "main") -> list[str]:
    """The tokens of a text as they are shown."""
    shown: list[str] = page.script(
        "return [...document.querySelectorAll(`[id^='${arguments[0]}-'][data-i]`)].map((e) => e.textContent)",
        where,
    )
    return shown


def test_a_text_is_written_and_a_step_opened(page: Browser, model: aleator.LanguageModel) -> None:
    write(page)
    assert page.shows(".status", "ended by: length").startswith("24 tokens")
    wanted = model.generate("ROMEO:\n", preset="llama.cpp", seed=7, max_tokens=24)
    vocab = model.vocab
    shown = [vocab.token_bytes(t).decode().replace("\n", "↵") for t in wanted.tokens]
    assert tokens(page) == shown
    page.click("#main-3")
    page.shows(".opened h2", "Step 3")
    head = page.shows(".stages thead", "top_k=40")
    assert "logits" in head
    assert "temperature=0.8" in head
    drawn = page.find(".stages tr.drawn")
    assert "drawn" in drawn.text


def test_the_likely_tokens_show_on_hover(page: Browser) -> None:
    write(page, 8)
    page.script(
        "const over = new PointerEvent('pointerover', {bubbles: true, clientX: 90, clientY: 300});"
        "document.getElementById('main-2').dispatchEvent(over)"
    )
    assert len(page.until(lambda: page.all(".hover tr"), "rivals")) == 8


def test_another_token_is_a_branch(page: Browser) -> None:
    write(page)
    before = tokens(page)
    page.click("#main-5")
    page.click(".opened .pick")
    page.shows(".tree", "at 5, 24 tokens")
    status = page.shows(".status", "ended by")
    assert "1 computed" in status
    after = tokens(page)
    assert after[:5] == before[:5]
    assert after[5] != before[5]
    assert len(after) == 30
    assert page.find("#main-5.picked")
    page.shows(".stages tbody", "written")
    page.button("24 tokens")
    page.until(lambda: tokens(page) == before, "the first text again")
    page.click("[aria-label='Forget text 1']")
    page.until(lambda: not page.all(".tree li"), "an empty tree")


def test_a_text_goes_on_and_stops(page: Browser) -> None:
    write(page, 6)
    page.button("Next token")
    page.shows(".status", "7 tokens, ended by")
    page.button("Continue")
    page.shows(".status", "13 tokens, ended by")


def test_the_keyboard_opens_steps(page: Browser) -> None:
    write(page, 8)
    page.keys(".text", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.shows(".opened h2", "Step 2")
    assert page.find(".text").get_attribute("aria-activedescendant") == "main-2"
    page.keys(".text", Keys.END)
    page.shows(".opened h2", "Step 7")
    page.keys(".text", Keys.ESCAPE)
    page.until(lambda: not page.all(".opened"), "the step closed")


def test_a_chain_is_changed_moved_and_copied(page: Browser) -> None:
    write(page)
    page.view("chain")
    page.shows("main", "0 of 24 tokens would be others")
    page.fill("input[aria-label='temperature']", "0.1\t")
    page.until(lambda: not page.text("main [role=status]").startswith("0"), "changes")
    assert page.all(".t.differs")
    page.shows(".copying pre", " 0.1")
    page.button("Python")
    page.shows(".copying pre", "aleator.SamplingParams.preset('llama.cpp', temperature=0.1)")
    names = [each.get_attribute("data-sampler") for each in page.all("[data-sampler]")]
    page.keys("#handle-top_k", Keys.ARROW_DOWN)
    moved = [*names[:3], names[4], names[3], *names[5:]]
    page.until(
        lambda: [e.get_attribute("data-sampler") for e in page.all("[data-sampler]")] == moved,
        "the order",
    )
    page.button("JSON")
    page.until(
        lambda: json.loads(page.text(".copying pre")).get("samplers") == moved, "the order in JSON"
    )
    page.click("[aria-label='Take min_p out']")
    page.until(lambda: "min_p" not in page.text(".copying pre"), "min_p out")
    page.button("Undo all changes")
    page.shows("main", "0 of 24 tokens would be others")


def test_a_card_is_dragged(page: Browser) -> None:
    page.view("chain")
    page.find("#handle-temperature")
    order = [each.get_attribute("data-sampler") for each in page.all("[data-sampler]")]
    handle, target = page.find("#handle-top_k"), page.find("[data-sampler=penalties] h3")
    page.script("scrollTo(0, 0)")
    ActionChains(page.driver).click_and_hold(handle).move_to_element(target).release().perform()
    wanted = ["top_k", *(name for name in order if name != "top_k")]
    page.until(
        lambda: [e.get_attribute("data-sampler") for e in page.all("[data-sampler]")] == wanted,
        "the order",
    )


def test_a_chain_that_cannot_be_says_why_beside_its_field(page: Browser) -> None:
    write(page, 4)
    page.view("chain")
    page.script("document.querySelector('[data-sampler=dry] details').open = true")
    page.fill("input[aria-label='dry_base']", "0.5\t")
    assert "dry_base=0.5 is out of range" in page.shows(".parameter.wrong", "out of range")


def test_two_chains_are_compared(page: Browser) -> None:
    page.fill("form.controls input[type=number][min='1']", "12")
    page.view("compare")
    page.button("Write both")
    at = int(page.shows("[role=status]", "diverge at token").split()[-1].rstrip("."))
    one, other = tokens(page, "compare-A"), tokens(page, "compare-B")
    assert one[:at] == other[:at]
    assert one[at] != other[at]
    page.until(lambda: len(page.all(".draws")) == 2, "draws")
    captions = page.all(".draws caption")
    assert [each.text for each in captions] == ["1,000 draws over the exact probabilities"] * 2


def test_a_text_is_constrained_and_a_fault_shown(page: Browser) -> None:
    page.view("constrain")
    page.button("Write")
    assert "the text is complete" in page.shows("[role=status]", "ended by")
    assert page.all(".t.forced")
    page.click("#constrained-0")
    page.shows(".stages thead", "grammar")
    page.fill("#constraint", 'root ::= "a"\nb ::= ]')
    page.shows(".problem", "line 2")
    page.shows("button", "Show line 2")


def test_a_text_is_reproduced_by_button_link_and_record(
    page: Browser, server: tuple[str, Any], tmp_path: Path
) -> None:
    write(page)
    page.click("#main-5")
    page.click(".opened .pick")
    page.shows(".status", "30 tokens, ended by")
    wanted = tokens(page)
    page.view("reproduce")
    page.button("Write it again and compare")
    page.shows(".proof", "Equal: all 30 tokens.")
    link = page.text(".reproduce pre")
    page.open(link)
    page.shows(".status", "30 tokens, ended by")
    assert tokens(page) == wanted
    record = tmp_path / "record.json"
    made = page.script(
        "const done = arguments[0]; return import('/playground/reproduce.js').then(async (r) => {"
        "const t = await import('/playground/texts.js'); return JSON.stringify(r.recorded(t.current.value)); })"
    )
    record.write_text(made)
    page.open(server[0])
    page.view("reproduce")
    page.keys("input[type=file]", str(record))
    page.shows(".proof", "Equal: all 30 tokens.")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    page.keys("input[type=file]", str(wrong))
    page.shows(".problem", "not a record")


def test_a_conversation_goes_on_from_turns_that_can_be_edited(page: Browser) -> None:
    page.script(
        "const kind = document.querySelector('form.controls select'); kind.value = 'chat';"
        "kind.dispatchEvent(new Event('change'))"
    )
    page.fill("[aria-label='Turn 1']", "What say you?")
    write(page, 12)
    assert "What say you?" in page.text(".text .prompt")
    page.button("Keep the text as a turn")
    kept = page.find("[aria-label='Turn 2']").get_attribute("value")
    assert kept == "".join(tokens(page)).replace("↵", "\n").strip()
    page.button("Add a turn")
    page.fill("[aria-label='Turn 3']", "Farewell.")
    page.click("form.controls .primary")
    page.shows(".text .prompt", "Farewell.")


def test_cells_move_with_every_operation(page: Browser) -> None:
    page.view("cache")
    page.shows(".cache h2", "9. defrag")
    page.button("Begin anew")
    page.shows(".cache h2", "1. decode 0 12")
    used = len(page.all(".cells .cell:not(.free)"))
    assert used > 12
    page.button("Do it")
    page.shows(".cache h2", "2. decode 0 8")
    assert len(page.all(".cells .cell:not(.free)")) == used + 8
    page.shows(".cache section h2", "The server's own cells, now")
    page.find(".strip span:not(.free)")
    page.fill(".cache form label:nth-of-type(3) input", "90")
    page.button("Do it")
    page.shows(".problem", "decode 0 90")


def test_a_saved_file_opens_without_a_server(
    page: Browser, server: tuple[str, Any], tmp_path: Path
) -> None:
    write(page, 9)
    wanted = tokens(page)
    made = page.script("return import('/playground/texts.js').then((t) => t.current.value.id)")
    path = tmp_path / "text.html"
    with urllib.request.urlopen(f"{server[0]}/api/playground/texts/{made}/page") as response:
        path.write_bytes(response.read())
    page.driver.get(path.as_uri())
    page.find(".stages table")
    assert tokens(page) == wanted
    page.click("#main-4")
    page.shows(".opened h2", "Step 4")
    assert page.reports() == []
    page.open(server[0])


HOSTILE = [
    b"<img src=x onerror=alert(1)>",
    b"\xf0\x9f",
    b"\x00\x1b[2J",
    "\u202eabc".encode(),
    b"y" * 10_000,
    "ש".encode(),
    b"\xcc\x81",
    b"</span>",
]


def hostile_vocabulary(n: int) -> Vocabulary:
    pieces = [HOSTILE[i % len(HOSTILE)] for i in range(n)]
    names = ["".join(BYTE_CHARACTERS[byte] for byte in piece) for piece in pieces]
    return Vocabulary(
        kind="bpe",
        tokens=names,
        ids={},
        attributes=np.full(n, TokenAttribute.NORMAL, np.uint8),
        special=SpecialTokens(),
        eog=frozenset(),
        add_bos=False,
        add_eos=False,
        add_space_prefix=False,
    )


def test_tokens_of_a_hostile_model_are_text(
    page: Browser, server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, app = server
    hostile = Telling(hostile_vocabulary(2048))
    monkeypatch.setattr(app.state.playground.writer, "telling", hostile)
    write(page, 60)
    shown = tokens(page)
    assert {"<img src=x onerror=alert(1)>", "⟨f0 9f⟩", "␀␛[2J", "⟨U+202E⟩abc", "</span>"} <= set(
        shown
    )
    assert any("10000 characters" in each for each in shown)
    assert max(map(len, shown)) < 200
    page.click("#main-7")
    page.find(".stages table")
    assert page.all("img, iframe, object") == []
    assert page.all("#main-59")


def test_a_server_that_goes_away_is_told_and_what_was_written_stays(page: Browser) -> None:
    write(page, 5)
    page.script(
        "window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('gone'))"
    )
    page.button("Write")
    page.shows(".offline", "does not answer")
    assert len(tokens(page)) == 5
    page.script("window.fetch = window.real")
    page.click(".offline button")
    page.until(lambda: not page.all(".offline"), "the server is back")


def test_the_page_asks_for_the_key_that_the_server_wants(
    chromium: Browser, model: aleator.LanguageModel
) -> None:
    with (
        model.engine(n_seq_max=1) as engine,
        served(Service(model, engine, ServerOptions(api_key=("secret",))), guarded=True) as found,
    ):
        chromium.driver.get(found[0])
        chromium.keys("input[name=key]", "secret", Keys.ENTER)
        write(chromium, 3)
        assert len(tokens(chromium)) == 3
        assert ["401 (Unauthorized)" in each for each in chromium.reports()] == [True]
        chromium.driver.get("about:blank")


def test_a_phone_shows_every_view_without_scrolling_sideways(page: Browser) -> None:
    page.resize(375, 800, mobile=True)
    write(page, 10)
    page.click("#main-2")
    page.find(".stages table")
    for name in VIEWS:
        page.view(name)
        wide = page.script("return document.documentElement.scrollWidth")
        assert wide <= 375, name


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: make page")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(page: Browser, scheme: str) -> None:
    page.colours(scheme)
    write(page, 10)
    page.click("#main-2")
    page.find(".stages table")
    page.script(AXE.read_text())
    for name in VIEWS:
        page.view(name)
        if name in ("compare", "constrain"):
            page.click("button.primary")
            page.find(f"{'.draws' if name == 'compare' else '.allowed i'}")
        found = page.script(
            "return axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
            " `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + n.failureSummary)}`))"
        )
        assert found == [], name
