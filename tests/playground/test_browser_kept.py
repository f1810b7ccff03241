"""What outlives a page: links, records, files; a server that goes away, other tabs, keys.

Needs selenium, and Debian's chromium and chromium-driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

import aleator
from aleator.server.options import ServerOptions
from aleator.server.service import Service
from tests.playground.browser import AXE, VIEWS, Browser, missing, served, tokens, violations, write

if missing():
    pytest.skip(f"{missing()} is not installed", allow_module_level=True)


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
    page.shows(".reproduce h2", "A record")
    page.view("write")
    page.shows(".status", "30 tokens, ended by")
    assert tokens(page) == wanted
    record = tmp_path / "record.json"
    made = page.script(
        "return import('/playground/record.js').then(async (r) => {"
        "const t = await import('/playground/text.js'); return JSON.stringify(r.recorded(t.current.value)); })"
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


def test_a_link_gives_the_same_page(page: Browser, server: tuple[str, Any]) -> None:
    write(page)
    page.click("#main-5")
    page.click(".opened .pick")
    page.shows(".status", "30 tokens, ended by")
    page.fill(".tree ul input", "another way")
    page.button("Next token")
    page.shows(".status", "31 tokens, ended by")
    page.click("#main-7")
    page.shows(".opened h2", "Step 7")
    page.script(
        "const by = document.querySelector('.bar-row select'); by.value = 'entropy';"
        "by.dispatchEvent(new Event('change'))"
    )
    branches = [each.text for each in page.all(".tree button.link")]
    wanted, opened = tokens(page), page.text(".opened .stages")
    page.view("compare")
    page.button("Write both")
    compared = page.shows("[role=status]", "diverge")
    page.view("chain")
    page.fill("input[aria-label='temperature']", "0.5\t")
    page.shows(".copying pre", " 0.5")
    page.view("write")

    def followed() -> bool:
        said = page.script(
            "return Promise.all([import('/playground/address.js')]).then(([a]) => a.link() === location.href)"
        )
        return bool(said)

    page.until(followed, "the address follows the page")
    link = page.script("return location.href")
    page.open(link)
    page.shows(".status", "31 tokens, ended by")
    page.shows(".opened h2", "Step 7")
    page.until(lambda: page.text(".opened .stages") == opened, "the same step")
    assert tokens(page) == wanted
    assert [each.text for each in page.all(".tree button.link")] == branches
    assert page.find(".tree ul input").get_attribute("value") == "another way"
    assert page.all(".text.shade-entropy")
    page.view("compare")
    page.until(lambda: page.text("main [role=status]") == compared, "the same comparison")
    page.view("chain")
    page.shows(".copying pre", " 0.5")
    page.view("write")
    page.until(lambda: page.script("return location.href") == link, "the same address")


def test_an_address_that_cannot_be_read_is_told(page: Browser, server: tuple[str, Any]) -> None:
    page.open(f"{server[0]}/#nonsense")
    page.shows(".problem", "the address cannot be opened")
    write(page, 3)


SAVE = """
const saved = window.saved = {};
URL.createObjectURL = (blob) => { blob.text().then((text) => (saved.text = text)); return "#"; };
HTMLAnchorElement.prototype.click = () => {};
"""


def test_a_saved_file_has_every_view_that_needs_no_model(
    page: Browser, server: tuple[str, Any], tmp_path: Path
) -> None:
    write(page, 9)
    first = tokens(page)
    page.click("#main-4")
    page.click(".opened .pick")
    page.shows(".status", "14 tokens, ended by")
    wanted = tokens(page)
    page.view("compare")
    page.button("Write both")
    compared = page.shows("[role=status]", "diverge")
    page.until(lambda: len(page.all(".draws")) == 2, "draws")
    drawn = page.all(".draws")[1].text
    page.view("constrain")
    page.button("Write")
    counts = page.shows("[role=status]", "the text is complete")
    page.view("cache")
    page.shows(".cache h2", "9. defrag")
    page.view("reproduce")
    page.script(SAVE)
    page.button("Save the page")
    made = page.until(lambda: page.script("return window.saved.text"), "the file")
    path = tmp_path / "text.html"
    path.write_text(made, "utf-8")
    page.driver.get(path.as_uri())
    page.find(".stages table")
    assert tokens(page) == wanted
    page.click("#main-6")
    page.shows(".opened h2", "Step 6")
    page.script(
        "const over = new PointerEvent('pointerover', {bubbles: true, clientX: 90, clientY: 300});"
        "document.getElementById('main-2').dispatchEvent(over)"
    )
    assert len(page.until(lambda: page.all(".hover tr"), "rivals")) == 8
    page.button("9 tokens")
    page.until(lambda: tokens(page) == first, "the first text")
    page.view("chain")
    page.shows(".copying pre", "--preset llama.cpp")
    assert "mass cut" in page.text(".curves")
    page.view("compare")
    assert page.shows("[role=status]", "diverge") == compared
    page.until(lambda: len(page.all(".draws")) == 2, "draws")
    assert page.all(".draws")[1].text == drawn
    page.view("constrain")
    assert page.shows("[role=status]", "the text is complete") == counts
    page.click("#constrained-0")
    page.shows(".stages thead", "grammar")
    page.view("cache")
    page.shows(".cache h2", "9. defrag")
    page.view("reproduce")
    page.shows(".reproduce", "seed 7")
    assert page.reports() == []
    if AXE.is_file():
        page.script(AXE.read_text())
        for name in (each for each in VIEWS if each != "beams"):
            page.view(name)
            assert violations(page) == [], name
    page.open(server[0])


def test_a_server_that_goes_away_is_told_and_what_was_written_stays(page: Browser) -> None:
    write(page, 5)
    page.script(
        "window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('gone'))"
    )
    page.button("Write")
    page.shows(".offline", "does not answer")
    assert len(tokens(page)) == 5
    page.script("window.fetch = window.real")
    page.until(lambda: not page.all(".offline"), "the page asks by itself until the server is back")
    write(page, 6)


def test_texts_that_a_new_server_does_not_know_are_written_again(
    page: Browser, server: tuple[str, Any]
) -> None:
    write(page, 9)
    page.click("#main-4")
    page.click(".opened .pick")
    page.shows(".status", "14 tokens, ended by")
    wanted = tokens(page)
    _, app = server
    app.state.playground.recordings._texts.clear()  # what the end of the server does to them
    page.click("#main-6")
    page.shows(".opened h2", "Step 6")
    page.find(".stages tbody tr.written")
    assert not page.all(".problem")
    page.button("Next token")
    page.shows(".status", "15 tokens, ended by")
    assert tokens(page)[:14] == wanted
    page.view("chain")
    page.shows("main", "1 of 15 tokens would be others")
    app.state.playground.recordings._texts.clear()
    page.view("reproduce")
    page.button("Write it again and compare")
    page.shows(".proof", "Equal: all 15 tokens.")


def forgotten(page: Browser) -> bool:
    """Whether no text is left, once each has been forgotten; a click that a busy machine lost is made again."""
    for each in page.all("[aria-label^='Forget text']"):
        each.click()
    return not page.all(".tree li")


def test_two_tabs_do_not_disturb_each_other(page: Browser, server: tuple[str, Any]) -> None:
    driver = page.driver
    first = driver.current_window_handle
    write(page, 12)
    wanted = tokens(page)
    driver.switch_to.new_window("tab")
    try:
        driver.get(server[0])
        write(page, 12)
        assert tokens(page) == wanted
        page.until(lambda: forgotten(page), "an empty tree")
        page.script(
            "const by = document.querySelector('[aria-label=Colours]'); by.value = 'dark';"
            "by.dispatchEvent(new Event('change'))"
        )
    finally:
        driver.close()
        driver.switch_to.window(first)
    page.until(
        lambda: page.script("return document.documentElement.dataset.theme") == "dark",
        "its colours",
    )
    page.script("localStorage.clear()")
    page.click("#main-3")
    page.find(".stages table")
    assert tokens(page) == wanted


def test_the_page_asks_for_the_key_that_the_server_wants(
    chromium: Browser, model: aleator.LanguageModel
) -> None:
    with (
        model.engine(n_seq_max=1) as engine,
        served(Service(model, engine, ServerOptions(api_key=("secret",))), guarded=True) as found,
    ):
        chromium.driver.get(found[0])
        chromium.keys("input[name=key]", "wrong", Keys.ENTER)
        chromium.shows(".key .problem", "refuses this key")
        chromium.fill("input[name=key]", "secret")
        chromium.keys("input[name=key]", Keys.ENTER)
        write(chromium, 3)
        assert len(tokens(chromium)) == 3
        assert "secret" not in chromium.script("return location.href")
        chromium.click("header [aria-expanded]")
        chromium.keys("input[name=key]", "wrong", Keys.ENTER)
        chromium.shows(".key .problem", "refuses this key")
        assert len(tokens(chromium)) == 3
        chromium.fill("input[name=key]", "secret")
        chromium.keys("input[name=key]", Keys.ENTER)
        chromium.until(lambda: not chromium.all(".key"), "the key is taken")
        write(chromium, 4)
        assert all("401 (Unauthorized)" in each for each in chromium.reports())
        chromium.driver.get("about:blank")
