"""The views of the page in a real browser: the main flow of each.

Needs selenium, and Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import aleator
from aleator.engine.engine_core import EngineCore
from aleator.generate.beams import BeamSearch
from aleator.generate.cache_script import OPERATIONS
from aleator.server.playground.as_json import StepFormatter
from tests.playground.browser import Browser, missing, tokens, write

if missing():
    pytest.skip(f"{missing()} is not installed", allow_module_level=True)


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
    page.shows(".stages tr.drawn", "drawn")


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


def order(page: Browser) -> list[str | None]:
    """The samplers of the chain in the order of their cards."""
    return [each.get_attribute("data-sampler") for each in page.all("[data-sampler]")]


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
    names = order(page)
    page.keys("#handle-top_k", Keys.ARROW_DOWN)
    moved = [*names[:3], names[4], names[3], *names[5:]]
    page.until(lambda: order(page) == moved, "the order")
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
    before = order(page)
    wanted = ["top_k", *(name for name in before if name != "top_k")]

    def dragged() -> bool:
        """Whether it lies where it was dragged; while it lies where it was, it is dragged again."""
        if order(page) == before:
            page.script("scrollTo(0, 0)")
            handle, target = page.find("#handle-top_k"), page.find("[data-sampler=penalties] h3")
            drag = ActionChains(page.driver).click_and_hold(handle).move_to_element(target)
            drag.release().perform()
            page.settle()
        return order(page) == wanted

    page.until(dragged, "the order")


def test_a_chain_that_cannot_be_says_why_beside_its_field(page: Browser) -> None:
    write(page, 4)
    page.view("chain")
    page.script("arguments[0].open = true", page.find("[data-sampler=dry] details"))
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


def test_a_text_has_options(page: Browser, model: aleator.LanguageModel) -> None:
    page.click(".options summary")
    page.fill("input[aria-label='banned_strings']", "th\t")
    page.fill("input[aria-label='stop_loops']", "1,4\t")
    page.button("Write")
    page.shows(".options .wrong", "repeats=1 is out of range")
    page.click("[aria-label='stop_loops as the preset has it']")
    write(page, 12)
    wanted = model.generate(
        "ROMEO:\n", preset="llama.cpp", seed=7, max_tokens=12, banned_strings="th"
    )
    shown = [model.vocab.token_bytes(t).decode().replace("\n", "↵") for t in wanted.tokens]
    assert tokens(page) == shown
    assert page.text(".options summary").endswith(": banned_strings")
    page.open(page.script("return import('/playground/address.js').then((a) => a.link())"))
    page.shows(".status", "12 tokens, ended by")
    assert tokens(page) == shown
    assert page.text(".options summary").endswith(": banned_strings")


def test_beams_grow_step_by_step(page: Browser, model: aleator.LanguageModel) -> None:
    page.view("beams")
    page.fill("input[aria-label='num_return_sequences']", "2\t")
    page.button("Search")
    found = model.beams("ROMEO:\n", num_return_sequences=2, max_tokens=12)
    page.shows("[role=status]", f"{len(found)} texts; ended by: {found[0].stop_reason}")
    buttons = page.all(".found button")
    scores = [f"{i}. score {each.score:.4f}" for i, each in enumerate(found, 1)]
    assert [each.text for each in buttons] == scores
    assert [each.get_attribute("aria-pressed") for each in buttons] == ["true", "false"]
    rows = page.all(".stages tbody tr")
    assert len(rows) >= len(found[1].tokens)
    assert len(page.all(".stages td.way")) == len(found[0].tokens)
    assert "given up" in page.text(".stages tbody")
    buttons[1].send_keys(Keys.ENTER)
    page.until(lambda: len(page.all(".stages td.way")) == len(found[1].tokens), "its way")
    assert buttons[1].get_attribute("aria-pressed") == "true"
    page.switch("input[aria-label=stochastic]")
    page.fill("input[aria-label='length_penalty']", "2\t")
    page.button("Search")
    page.shows(".parameter.wrong", "stochastic=True")
    page.click("[aria-label='length_penalty as the preset has it']")
    page.button("Search")
    page.shows("[role=status]", "ended by")
    drawn = [each.text for each in page.all(".found .text")]
    wanted = model.beams("ROMEO:\n", num_return_sequences=2, max_tokens=12, stochastic=True, seed=7)
    assert [each.score for each in wanted] == sorted((each.score for each in wanted), reverse=True)
    shown = [each.text for each in page.all(".found button")]
    assert shown == [f"{i}. score {each.score:.4f}" for i, each in enumerate(wanted, 1)]
    again = page.script("return import('/playground/address.js').then((a) => a.link())")
    page.open(again)
    page.shows("[role=status]", "ended by")
    assert [each.text for each in page.all(".found .text")] == drawn


def slow_down(monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> None:
    """Let each step take long, so that what is made goes on until somebody stops it."""
    quick = getattr(cls, name)

    def slowly(self: Any, *given: Any) -> Any:
        time.sleep(0.05)
        return quick(self, *given)

    monkeypatch.setattr(cls, name, slowly)


def test_a_text_is_stopped(
    page: Browser, server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, EngineCore, "step")
    stats = server[1].state.service.engine.stats
    page.fill("form.controls input[max]", "900\t")
    page.click("form.controls .primary")
    page.until(lambda: tokens(page), "tokens")
    page.button("Stop")
    page.shows(".status", "ended by: stopped")
    page.until(lambda: not server[1].state.service.engine.stats.running, "its end")
    assert server[1].state.service.engine.stats.submitted == stats.submitted + 1


def test_a_search_is_stopped_and_an_error_ends_it(
    page: Browser, server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, BeamSearch, "choose")
    page.view("beams")
    page.switch("input[aria-label=stochastic]")
    page.fill(".beams .field input[max]", "400\t")
    page.button("Search")
    page.shows(".stages tbody", "score")
    page.button("Stop")
    page.shows(".main [role=status]", "ended by: stopped")
    page.until(lambda: not server[1].state.service.engine.stats.running, "its end")
    page.shows(".beams .primary", "Search")
    monkeypatch.setattr(StepFormatter, "grown", lambda self, beams: 1 / 0)
    page.button("Search")
    page.shows(".problem", "internal error")
    page.shows(".main [role=status]", "ended by: error")


def test_another_model_begins_with_a_question(
    page: Browser, server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page.find(".prompt-field textarea").get_attribute("value") == "ROMEO:\n"
    write(page, 4)
    page.until(lambda: "#" in page.driver.current_url, "link")
    link = page.driver.current_url
    monkeypatch.setattr("aleator.server.playground.routes.bundled", lambda path: False)
    page.open(server[0])
    asked = page.find("[aria-label='Turn 1']").get_attribute("value")
    assert asked == "Why is the sky blue?"
    page.open(link)
    assert page.find(".prompt-field textarea").get_attribute("value") == "ROMEO:\n"


def test_a_conversation_goes_on_from_turns_that_can_be_edited(page: Browser) -> None:
    page.script(
        "const [kind] = arguments; kind.value = 'chat'; kind.dispatchEvent(new Event('change'))",
        page.find("form.controls select"),
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
    page.shows(".cache section h2", "The cells of the server, now")
    page.find(".strip span:not(.free)")
    page.fill(".cache form label:nth-of-type(2) input", "90")
    page.button("Do it")
    page.shows(".problem", "decode 0 90")


def test_every_verb_of_the_cache_is_a_button(page: Browser) -> None:
    page.view("cache")
    page.button("Begin anew")
    page.shows(".cache h2", "1. decode 0 12")
    page.button("add")
    page.button("Do it")
    page.shows(".cache h2", "2. add 0 4 -1 2")
    assert page.all(".cells .cell.rotates")
    page.button("div")
    page.button("Do it")
    page.shows(".cache h2", "3. div 0 0 -1 2")
    verbs = page.all(".verb")
    assert [each.text for each in verbs] == list(OPERATIONS)
