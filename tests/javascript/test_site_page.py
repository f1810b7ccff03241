"""The page without a server, and live pictures, in Chromium and Firefox, under the policy of the site."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import site_page

import aleator
from aleator.models.hub.bundled import bundled_model
from tests.javascript import firefox
from tests.javascript.site_window import CUT, RANGED, SLOW, TEXT, Handler, Served, Window, link
from tests.playground import browser as chromium


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Another file of the bundled model."""
    return Path(shutil.copy(bundled_model(), tmp_path / "own.gguf"))


def test_a_link_gives_the_text_that_python_writes(
    window: Window, served: Served, wanted: list[str]
) -> None:
    window.writes(served.address + link())
    assert window.tokens() == wanted
    window.shows("Step 3", ".opened h2")
    assert "top_k=40" in window.shows("temperature=0.8", ".stages thead")
    window.press("Next token")
    window.shows("17 tokens, ended by")


def test_the_page_opens_without_a_network(window: Window, folder: Path, wanted: list[str]) -> None:
    served = Served(folder)
    window.open(served.address)
    kept = "return caches.keys().then((k) => k.length > 0 && navigator.serviceWorker.controller !== null)"
    window.until(lambda: window.script(kept), "the files are kept")
    served.close()
    window.writes(served.address + link())
    assert window.tokens() == wanted
    assert window.script("return crossOriginIsolated")  # its engine may have threads


def test_a_link_of_another_model_is_not_written_with_this_one(
    window: Window, served: Served, model: aleator.LanguageModel
) -> None:
    window.open(served.address + link(model={"name": "Other", "fingerprint": "0" * 32}))
    window.shows("this link was made with another model, Other")
    assert window.tokens() == []
    window.press("Open it with this model")
    window.shows("ended by: length")
    window.writes(served.address + link(model={"name": "x", "fingerprint": model.fingerprint}))


def test_texts_of_the_first_model_are_forgotten_while_a_link_waits(
    window: Window, served: Served, own: Path
) -> None:
    window.open(served.address + link(model={"name": "Other", "fingerprint": "0" * 32}))
    window.shows("this link was made with another model, Other")
    window.press("Write")
    window.shows("ended by")
    window.upload(own)
    window.shows("Write a text, then", ".main")
    window.shows("this link was made with another model, Other")


def test_a_link_names_views_of_the_page_only(window: Window, served: Served) -> None:
    window.writes(served.address + link(view="constructor", shade="toString"))


def test_a_file_is_a_model(window: Window, served: Served, wanted: list[str], own: Path) -> None:
    window.writes(served.address + link())
    window.upload(own)
    window.shows("Write a text, then", ".main")  # the other model's text is gone
    window.press("Write")
    window.shows("ended by: length")
    assert window.tokens()[: len(wanted)] == wanted


def test_a_file_is_kept(window: Window, served: Served, own: Path) -> None:
    window.open(served.address)
    window.upload(own)
    window.press("Keep own.gguf in this browser")
    window.shows("Use own.gguf")
    window.writes(served.address + link())
    window.press("Use own.gguf")
    window.shows("Write a text, then", ".main")
    window.press("Forget own.gguf")
    window.shows("Keep own.gguf")  # it is still used, but not kept


def test_files_of_other_pages_of_the_site_are_not_shown(window: Window, served: Served) -> None:
    window.open(served.address)
    window.script(
        "return navigator.storage.getDirectory()"
        ".then((all) => all.getFileHandle('other.db', {create: true})).then(() => 1)"
    )
    window.open(served.address)
    window.shows("Another model")
    window.shows("Write a text")
    assert "other.db" not in window.shows("Another model", ".models")


def test_another_model_answers_what_the_first_one_has_not(
    window: Window, served: Served, wanted: list[str], own: Path
) -> None:
    Handler.ended.clear()
    window.open(f"{served.address}?model={SLOW}{link()}")
    window.shows("Another model", ".models")
    imports = not isinstance(window.browser, firefox.Firefox)  # Firefox's scripts of tests do not
    if imports:
        window.script(
            "import('./transport.js').then((page) => page.send('', {method: 'GET', headers: {}}))"
            ".then((answer) => answer.json()).then(({model}) => (window.told = model.n_vocab))"
        )
    window.upload(own)
    window.shows("ended by: length")
    assert window.tokens() == wanted
    if imports:
        assert window.until(lambda: window.script("return window.told"), "an answer") == 2048
    Handler.ended.set()


def test_a_link_names_no_model_of_another_site(window: Window, served: Served) -> None:
    other = served.address.replace("127.0.0.1", "localhost")
    window.open(f"{served.address}?model={other}model.gguf")
    window.shows("give the name of a file beside this page")


def test_a_new_version_replaces_what_the_browser_has_of_the_old_one(
    window: Window, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "site")
    served = Served(tmp_path / "site")
    window.open(served.address)
    kept = (
        "const one = (all) => navigator.serviceWorker.controller && all.length === 1 && all[0];"
        "return caches.keys().then(one)"
    )
    before = window.until(lambda: window.script(kept), "the files are kept")
    page = tmp_path / "site" / "try"
    (page / "live.html").write_text("The new version")
    shutil.copy(site_page.SITE / "offline.js", page)
    site_page.offline(page)
    window.open(served.address)
    window.until(lambda: window.script(kept) not in (False, before), "another version is kept")
    found = window.script("return fetch('live.html').then((answer) => answer.text())")
    served.close()
    assert found == "The new version"


def test_bad_files_end_in_messages_and_the_model_stays(
    window: Window, served: Served, wanted: list[str], tmp_path: Path
) -> None:
    data = bundled_model().read_bytes()
    window.writes(served.address + link())
    for name, size, part in [
        ("cut.gguf", len(data) // 2, "ends"),
        ("none.gguf", 0, "GGUF"),
        ("large.gguf", 5 << 30, "4 GiB"),
    ]:
        with (tmp_path / name).open("wb") as file:
            file.write(data[: min(size, len(data) // 2)])
            file.truncate(size)
        window.upload(tmp_path / name)
        window.shows(part, ".models .problem")
        (tmp_path / name).unlink()
    window.press("Continue")
    window.shows("32 tokens, ended by")
    assert window.tokens()[:16] == wanted


def test_a_download_that_ends_early_says_so(window: Window, served: Served) -> None:
    window.open(f"{served.address}?model={CUT}")
    window.shows("Try again")
    assert window.script("return document.querySelector('.problem').innerText")
    window.shows("Another model")


def test_a_download_can_be_cancelled(window: Window, served: Served) -> None:
    Handler.ended.clear()
    window.open(f"{served.address}?model={SLOW}")
    window.shows("MiB", ".models")
    window.press("Cancel")
    window.shows("it was cancelled")
    window.shows("Try again")
    Handler.ended.set()


def test_a_download_comes_in_ranges_and_is_kept(
    window: Window, served: Served, wanted: list[str]
) -> None:
    Handler.ranges.clear()
    window.writes(f"{served.address}?model={RANGED}{link()}")
    assert window.tokens() == wanted
    assert len(Handler.ranges) == 2
    window.writes(f"{served.address}?model={RANGED}{link()}")
    assert window.tokens() == wanted
    assert Handler.ranges[2:] == Handler.ranges[:1]  # is it the same file?
    window.press(f"Forget the download {RANGED}")
    gone = "return !document.querySelector('.models').textContent.includes('Forget the download')"
    window.until(lambda: window.script(gone), "it is gone")
    window.writes(f"{served.address}?model={RANGED}{link()}")
    assert len(Handler.ranges) == 5


def test_a_link_holds_bans_and_loops(
    window: Window, served: Served, model: aleator.LanguageModel
) -> None:
    pytest.importorskip("re2")
    options: dict[str, Any] = {
        "banned_regex": [r"\bm[a-z]{1,3}\b|(?m:^)[A-C]", {"regex": "[ou]", "probability": 0.5}],
        "stop_loops": {"repeats": 2, "min_tokens": 2, "temperature": 3.5, "for": 4},
    }
    made = model.generate(TEXT["prompt"], preset="llama.cpp", seed=7, max_tokens=16, **options)
    texts = [{**TEXT, "parent": None, **options}]
    window.writes(served.address + link(options=options, texts=texts))
    shown = [model.vocab.token_bytes(token).decode() for token in made.tokens]
    assert window.tokens() == [each.replace("\n", "↵") for each in shown]
    for name, given in options.items():
        value = f"return document.querySelector('input[aria-label={name}]').value"
        assert json.loads(window.script(value)) == given


def test_what_cannot_be_had_here_says_so(window: Window, served: Served) -> None:
    window.open(served.address + link(chain={"draw": "watermark"}, texts=[]))
    window.press("Write")
    window.shows("is available in Python's package: it needs a key", ".problem")


def test_a_live_picture_follows_its_slider(window: Window, served: Served) -> None:
    window.open(f"{served.address}live.html?chain=%7B%22top_k%22%3A5%7D")
    assert "5 left" in window.shows("top_k=5", ".stages thead")
    window.script(
        "const slider = document.querySelector('input[type=range]'); slider.value = 3;"
        "slider.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert "3 left" in window.shows("top_k=3", ".stages thead")
    assert window.script("return document.querySelectorAll('.draws tbody tr').length") == 3


def test_a_phone_has_no_sideways_scroll(window: Window, served: Served) -> None:
    window.resize(400, 800)
    window.writes(served.address + link())
    assert window.script("return document.documentElement.scrollWidth <= innerWidth")
    window.resize(1280, 900)


@pytest.mark.skipif(not chromium.AXE.is_file(), reason="axe-core is not installed: make page")
def test_axe_finds_no_violation(window: Window, served: Served) -> None:
    window.writes(served.address + link())
    window.shows("temperature=0.8", ".stages thead")
    window.script(chromium.AXE.read_text())
    assert chromium.violations(window.browser) == []
    window.press("Beams")
    window.press("Search")
    window.shows("ended by", ".beams [role=status]")
    assert chromium.violations(window.browser) == []
    window.press("Cache")
    window.shows("9. defrag", ".cache h2")
    assert chromium.violations(window.browser) == []
    window.open(f"{served.address}live.html?chain=%7B%22top_k%22%3A5%7D")
    window.shows("top_k=5", ".stages thead")
    window.script(chromium.AXE.read_text())
    assert chromium.violations(window.browser) == []
