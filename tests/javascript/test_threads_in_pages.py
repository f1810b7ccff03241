"""Threads of the npm package in pages: in workers of isolated ones, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aleator.models.hub.bundled import bundled_model
from tests.javascript import firefox
from tests.javascript.conftest import PACKAGE, needs
from tests.javascript.site_window import Files, Served
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


class _Moved(Files):
    def do_GET(self) -> None:
        if self.path != "/moved" or "Location" not in self.more:
            return super().do_GET()
        self.send_response(302)  # where a Location counts
        self.end_headers()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page, its worker, the package and a model."""
    needs()
    made = tmp_path / "site"
    made.mkdir()
    for name, text in (("deed.js", DEED), ("worker.js", WORKER), ("index.html", PAGE)):
        (made / name).write_text(text)
    (made / "aleator").symlink_to(PACKAGE)
    (made / "model.gguf").symlink_to(bundled_model())
    return made


Ask = Callable[[str], Any]


@pytest.fixture(params=["chromium", "firefox"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ask]:
    """Gives what the title of a page says, once it is JSON."""
    kind = chromium if request.param == "chromium" else firefox
    if kind.missing():
        pytest.skip(f"{kind.missing()} is not installed")

    def asked(open_page: Callable[[str], object], title: Callable[[], str]) -> Ask:
        def ask(address: str) -> Any:
            open_page("about:blank")
            open_page(address)
            firefox.until(lambda: title().startswith("["), "the title")
            return json.loads(title())

        return ask

    if kind is chromium:
        with chromium.Browser() as made:
            yield asked(made.driver.get, lambda: made.driver.title)
    else:
        (tmp_path / "profile").mkdir()
        with firefox.Firefox(tmp_path / "profile") as other:
            yield asked(other.open, lambda: str(other.script("return document.title")))


def test_workers_of_isolated_pages_have_threads(ask: Ask, folder: Path) -> None:
    texts = set()
    for headers, wanted in ((ISOLATED, 3), ({}, 1)):
        with Served(folder, headers, Files) as served:
            told = ask(served.root)
        assert [threads for threads, _ in told] == [wanted, 1, 1]
        texts |= {text for _, text in told}
    assert len(texts) == 1


def test_a_worker_that_is_killed_ends_what_is_asked(ask: Ask, folder: Path) -> None:
    (folder / "worker.js").write_text(KILLED)
    page = PAGE.replace(", await told(3), await told()", "")
    (folder / "index.html").write_text(page)
    with Served(folder, ISOLATED, Files) as served:
        [[n, *told]] = ask(served.root)
    gone, again = (each.removeprefix("StateError: ") for each in (GONE, AGAIN))
    assert (n, told) == (2, ["a text", gone, again, again])


def test_a_service_worker_isolates_the_second_visit(ask: Ask, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "index.html").write_text(VISITED)
    worker = (PACKAGE.parent / "site" / "offline.js").read_text()
    (here / "offline.js").write_text(f'const VERSION = "1", FILES = ["./"]\n{worker}')
    (there / "file").write_text("of another site")
    with Served(there, {"Access-Control-Allow-Origin": "*"}, Files) as other:
        file = f"{other.root}file"
        with Served(here, {"Location": file}, _Moved) as served:
            # Who reads a file sees that it came from another site.
            assert [ask(served.root) for _ in range(2)] == [[False, file], [True, file]]
