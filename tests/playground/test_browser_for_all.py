"""The page for everyone: hostile models, long texts, every script, phones, screen readers.

Needs selenium, and Debian's chromium and chromium-driver.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.server.playground.as_json import StepFormatter
from aleator.text.special_tokens import BYTE_CHARACTERS, SpecialTokens, TokenAttribute
from aleator.text.vocabulary import Vocabulary
from tests.playground.browser import AXE, VIEWS, Browser, missing, tokens, violations, write

if missing():
    pytest.skip(f"{missing()} is not installed", allow_module_level=True)


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
        kind="bpe", tokens=names, ids={}, attributes=np.full(n, TokenAttribute.NORMAL, np.uint8),
        special=SpecialTokens(), eog=frozenset(), add_bos=False, add_eos=False, add_space_prefix=False,
    )  # fmt: skip


def test_tokens_of_a_hostile_model_are_text(
    page: Browser, server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, app = server
    hostile = StepFormatter(hostile_vocabulary(2048))
    monkeypatch.setattr(app.state.playground, "formatter", hostile)
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


LONG = """
const {Text, texts, current} = await import("/playground/text.js");
const text = new Text({prompt: "x"}, null, "long");
text.id = "long";
text.prompt = [{id: 1, text: "Prompt.\\n"}];
const top = Array.from({length: 10}, (_, i) => ({token: {id: i, text: ` w${i}`}, before: 0.1, after: 0.1}));
for (let i = 0; i < 4000; i++) {
  const token = {id: i % 97, text: i % 12 === 11 ? ".\\n" : ` word${i % 97}`};
  const known = {before: (i % 10) / 10, after: 0.5, entropy: 1, entropy_after: 1, left: 3, stages: [], top};
  text.steps.push({step: i, token, picked: false, ...known});
}
text.reason.value = "length";
texts.value = [text];
current.value = text;
"""


def test_four_thousand_tokens_cost_no_more_to_look_at_than_forty(
    page: Browser, server: tuple[str, Any]
) -> None:
    """Counts of what is touched, for times depend on the machine."""
    page.script(f"return (async () => {{{LONG}}})()")
    page.until(lambda: len(tokens(page)) == 4000, "the text")
    parts, largest, shown = page.script(
        """const parts = [...document.querySelectorAll(".text .part")];
        const sizes = parts.map((part) => part.querySelectorAll(".t").length);
        const laidOut = (e) => e.checkVisibility({contentVisibilityAuto: true});
        const shown = parts.filter((part) => laidOut(part.firstElementChild));
        return [parts.length, Math.max(...sizes), shown.length];"""
    )
    assert parts > 40
    assert largest < 100
    assert shown < parts / 2  # the others are not laid out
    touched = page.script(
        """return (async () => {
            const {opened} = await import("/playground/text.js");
            const nodes = new Set();
            const watch = new MutationObserver((all) => all.forEach((each) => nodes.add(each.target)));
            const all = {subtree: true, childList: true, attributes: true, characterData: true};
            watch.observe(document.querySelector(".text"), all);
            const over = new PointerEvent("pointerover", {bubbles: true, clientX: 90, clientY: 300});
            for (let i = 0; i < 50; i++) document.getElementById(`main-${i}`).dispatchEvent(over);
            for (const step of [10, 3000]) {
                opened.value = step;
                while (!document.querySelector(`.text[aria-activedescendant=main-${step}]`))
                    await new Promise((next) => setTimeout(next, 10));
            }
            return nodes.size;
        })()"""
    )
    assert 0 < touched <= 3  # the text itself, and the two tokens that were open
    page.driver.get(server[0])


def test_characters_that_are_split_over_tokens_and_right_to_left_text_can_be_read(
    page: Browser, server: tuple[str, Any]
) -> None:
    told = page.script(
        """return import("/playground/token.js").then(({completed, together}) => {
            const half = (bytes) => ({id: 1, text: null, bytes});
            const split = ["f09f", "9880", "20f0", "9f98", "80"].map(half);
            const steps = [...split, {id: 2, text: "a"}].map((token) => ({token}));
            const special = {id: 0, text: "<s>", special: true};
            const prompt = [special, half("f09f"), half("9880"), {id: 2, text: "!"}, half("f0")];
            const shown = together(prompt).map((each) => each.text ?? each);
            return [steps.map((_, i) => completed(steps, i)), shown];
        })"""
    )
    assert told == [["", "😀", "", "", " 😀", ""], ["<s>", "😀!⟨f0⟩"]]
    prompt = "שלום עולם"
    page.script(
        "const field = document.querySelector('.prompt-field textarea'); field.value = arguments[0];"
        "field.dispatchEvent(new Event('input'))",
        prompt,
    )
    write(page, 2)
    assert page.text(".text .prompt").endswith(prompt)
    # A paragraph runs as its own letters do: the first letter stands at the right of the last.
    first, last = page.script(
        """const node = document.querySelector(".text .prompt").lastChild;
        const at = (from) => {
            const range = document.createRange();
            range.setStart(node, from);
            range.setEnd(node, from + 1);
            return range.getBoundingClientRect().left;
        };
        return [at(node.length - arguments[0]), at(node.length - 1)];""",
        len(prompt),
    )
    assert first > last


def test_a_phone_shows_every_view_without_scrolling_sideways(page: Browser) -> None:
    page.resize(375, 800, mobile=True)
    write(page, 10)
    page.click("#main-2")
    page.find(".stages table")
    for name in VIEWS:
        page.view(name)
        if name == "beams":
            page.click("button.primary")
            page.find(".found .text")
        wide = page.script("return document.documentElement.scrollWidth")
        assert wide <= 375, name


SHOWN = {"compare": ".draws", "constrain": ".allowed svg", "beams": ".found .text"}
"""What a view shows once its button was clicked."""


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
        if name in SHOWN:
            page.click("button.primary")
            page.find(SHOWN[name])
        assert violations(page) == [], name
