"""Threads of the npm package in pages: in workers of isolated ones, and nowhere else."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aleator.models.hub.bundled import bundled_model
from tests.javascript import firefox
from tests.javascript.conftest import PACKAGE
from tests.javascript.test_threads import AGAIN, GONE
from tests.playground import browser as chromium

DEED = """
import { load } from './aleator/index.js'
export async function told(threads) {
  const model = await load('model.gguf', { threads })
  const text = await model.generate('ROMEO:', { seed: 4, maxTokens: 8 }).text()
  model.free()
  return [model.threads, text]
}
"""
WORKER = "import { told } from './deed.js'\npostMessage(await told(3))\n"
PAGE = """<!doctype html><title>busy</title><script type="module">
import { told } from './deed.js'
const worker = new Worker('worker.js', { type: 'module' })
const answer = new Promise((resolve) => (worker.onmessage = ({ data }) => resolve(data)))
document.title = JSON.stringify([await answer, await told(3), await told()])
</script>"""
VISITED = """<!doctype html><title>busy</title><script type="module">
const { serviceWorker } = navigator
const claimed = new Promise((resolve) => serviceWorker.addEventListener('controllerchange', resolve))
await serviceWorker.register('offline.js')
if (!serviceWorker.controller) await claimed
const { url } = await fetch('moved')
document.title = JSON.stringify([crossOriginIsolated, url])
</script>"""
KILLED = """
const { LOST } = await import('./aleator/threads.js')
LOST.looks = 3
const workers = []
const { Worker } = self
self.Worker = class extends Worker {
  constructor(...given) {
    super(...given)
    workers.push(this)
  }
}
const { load } = await import('./aleator/index.js')
const model = await load('model.gguf', { threads: 3 })
const text = () => model.generate('a', { maxTokens: 20 }).text().then(() => 'a text', ({ message }) => message)
const told = [workers.length, await text()]
workers[0].terminate()
let said // browsers may take seconds to end a worker
while ((said = await text()) === 'a text');
told.push(said, ...(await Promise.all([text(), text()])))
model.free()
postMessage(told)
"""
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *given: Any, headers: dict[str, str], **more: Any) -> None:
        self.more = headers
        super().__init__(*given, **more)

    def end_headers(self) -> None:  # a Location counts where it says 302
        for name, value in self.more.items():
            self.send_header(name, value)
        super().end_headers()

    def do_GET(self) -> None:
        if self.path != "/moved" or "Location" not in self.more:
            return super().do_GET()
        self.send_response(302)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _served(folder: Path, headers: dict[str, str]) -> Iterator[str]:
    handler = partial(_Handler, directory=str(folder), headers=headers)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page, its worker, the package and a model."""
    if not (PACKAGE / "aleator.wasm").is_file():
        pytest.skip("js/src/aleator.wasm is missing: make wasm")
    made = tmp_path / "site"
    made.mkdir()
    for name, text in (("deed.js", DEED), ("worker.js", WORKER), ("index.html", PAGE)):
        (made / name).write_text(text)
    (made / "aleator").symlink_to(PACKAGE)
    (made / "model.gguf").symlink_to(bundled_model())
    return made


@contextmanager
def _window(kind: str, profile: Path) -> Iterator[tuple[Callable[[str], Any], Callable[[], str]]]:
    """What opens an address, and what gives the page's title."""
    if kind == "chromium":
        with chromium.Browser() as made:
            yield made.driver.get, lambda: made.driver.title
    else:
        profile.mkdir()
        with firefox.Firefox(profile) as other:
            yield other.open, lambda: str(other.script("return document.title"))


@pytest.mark.parametrize("kind", ["chromium", "firefox"])
def test_workers_of_isolated_pages_have_threads(kind: str, folder: Path, tmp_path: Path) -> None:
    absent = (chromium if kind == "chromium" else firefox).missing()
    if absent:
        pytest.skip(f"{absent} is not installed")
    texts = set()
    with _window(kind, tmp_path / "profile") as (open_page, title):
        for headers, wanted in ((ISOLATED, 3), ({}, 1)):
            with _served(folder, headers) as address:
                open_page(address)
                firefox.until(lambda: title().startswith("["), "the texts")
                told = json.loads(title())
            assert [threads for threads, _ in told] == [wanted, 1, 1]
            texts |= {text for _, text in told}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", ["chromium", "firefox"])
def test_a_worker_that_is_killed_ends_what_is_asked(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    absent = (chromium if kind == "chromium" else firefox).missing()
    if absent:
        pytest.skip(f"{absent} is not installed")
    (folder / "worker.js").write_text(KILLED)
    page = PAGE.replace(", await told(3), await told()", "")
    (folder / "index.html").write_text(page)
    with (
        _served(folder, ISOLATED) as address,
        _window(kind, tmp_path / "profile") as (open_page, title),
    ):
        open_page(address)
        firefox.until(lambda: title().startswith("["), "the errors")
        [[n, *told]] = json.loads(title())
    assert (n, told) == (
        2,
        ["a text", *(each.removeprefix("StateError: ") for each in (GONE, AGAIN, AGAIN))],
    )


@pytest.mark.parametrize("kind", ["chromium", "firefox"])
def test_a_service_worker_isolates_the_second_visit(kind: str, tmp_path: Path) -> None:
    absent = (chromium if kind == "chromium" else firefox).missing()
    if absent:
        pytest.skip(f"{absent} is not installed")
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "index.html").write_text(VISITED)
    worker = (PACKAGE.parent / "site" / "offline.js").read_text()
    (here / "offline.js").write_text(f'const VERSION = "1", FILES = ["./"]\n{worker}')
    (there / "file").write_text("of another site")
    with (
        _served(there, {"Access-Control-Allow-Origin": "*"}) as other,
        _served(here, {"Location": f"{other}file"}) as address,
        _window(kind, tmp_path / "profile") as (open_page, title),
    ):
        for isolated in (False, True):
            open_page("about:blank")
            open_page(address)
            firefox.until(lambda: title().startswith("["), "the title")
            # Who reads a file sees that it came from another site.
            assert json.loads(title()) == [isolated, f"{other}file"]
