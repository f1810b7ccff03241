"""Make the pictures, light and dark, and the recorded pages of docs/playground.md with the bundled model.

Needs selenium, Pillow, and Debian's chromium and chromium-driver: ``python tools/screenshots.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import site_page
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import aleator  # noqa: E402
from aleator.generate.cache_script import EXAMPLE  # noqa: E402
from aleator.server.options import ServerOptions  # noqa: E402
from aleator.server.service import Service  # noqa: E402
from tests.playground.browser import Browser, missing, served  # noqa: E402

COLOURS = 128
"""Colours of a picture: a third of the bytes, without visible loss."""
STEP = 283, 864
"""Rows of the first picture that README's picture shows, as README has only two screens."""
IMAGES = ROOT / "docs/images"
PAGES = ROOT / "docs/pages"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Romeo", "Juliet"]},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def write(page: Browser) -> None:
    """A text, a branch of it, and the step where it begins."""
    page.click("form.controls .primary")
    page.shows(".status", "ended by")
    page.click("#main-9")
    page.click(".opened .pick")
    page.shows(".tree", "at 9, 80 tokens")
    page.shows(".stages tbody", "written")
    page.script("document.querySelector('textarea').rows = 1; scrollTo(0, 0)")


def chain(page: Browser) -> None:
    """A lower temperature over that text."""
    page.view("chain")
    page.fill("input[aria-label='temperature']", "0.3\t")
    page.until(lambda: len(page.all(".t.differs")) > 3, "changes")
    page.script("scrollTo(0, 0)")


def compare(page: Browser) -> None:
    """Two presets, and a thousand draws of each."""
    page.view("compare")
    page.click("form.controls .primary")
    page.until(lambda: len(page.all(".draws")) == 2, "draws")
    page.script("scrollTo(0, 0)")


def constrain(page: Browser) -> None:
    """A JSON schema."""
    page.view("constrain")
    page.script(
        "const kind = document.querySelector('.constrain select'); kind.value = 'json_schema';"
        "kind.dispatchEvent(new Event('change'))"
    )
    page.click(".constrain .primary")
    page.shows("[role=status]", "ended by")
    page.click("#constrained-3")
    page.find(".stages table")
    page.script("scrollTo(0, 0)")


def beams(page: Browser) -> None:
    """Four beams, and the path of the best text."""
    page.view("beams")
    page.fill("input[aria-label='num_return_sequences']", "3\t")
    page.button("Search")
    page.shows("main [role=status]", "ended by")
    page.script("scrollTo(0, 0)")


def cache(page: Browser) -> None:
    """Forks, a hole, and a slide."""
    page.view("cache")
    page.shows(".cache h2", "9. defrag")
    page.click(".steps li:nth-child(7) button")


class Texts:
    """Generates and saves texts.

    Args:
        address: The server's address.
    """

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=f"{address}/api/playground", timeout=60)

    def write(self, **asked: Any) -> tuple[str, list[dict[str, Any]]]:
        """A text's id and its steps."""
        lines = [*map(json.loads, self._http.post("/texts", json=asked).text.splitlines())]
        return lines[0]["id"], lines[1:-1]

    def save(self, path: Path, **body: Any) -> None:
        """Write a recorded page."""
        answer = self._http.post("/page", json=body)
        answer.raise_for_status()
        path.write_text(answer.text, "utf-8")
        print(path)


def recorded(address: str, folder: Path) -> None:
    """The recorded pages of the documentation."""
    texts = Texts(address)
    begin = {"prompt": "ROMEO:\n", "seed": 7, "max_tokens": 24}
    first, steps = texts.write(**begin, preset="llama.cpp")
    rivals = [each["token"]["id"] for each in steps[9]["top"]]
    rival = next(token for token in rivals if token != steps[9]["token"]["id"])
    second, _ = texts.write(parent=first, at=9, token=rival, max_tokens=16)
    third, _ = texts.write(parent=second, at=16, max_tokens=10, temperature=1.5)
    other, rest = texts.write(**begin, preset="neutral")
    both = [[step["token"]["id"] for step in told] for told in (steps, rest)]
    parted = next(i for i, (one, two) in enumerate(zip(*both, strict=True)) if one != two)
    names = {first: "llama.cpp", second: "another word", third: "hotter", other: "neutral"}
    texts.save(
        folder / "branches.html",
        texts=[{"id": each, "name": name} for each, name in names.items()],
        current=second,
        step=9,
        compare=[first, other],
        draws=[{"id": each, "step": parted} for each in (first, other)],
        script=[each.strip() for each in EXAMPLE.split(";")],
    )
    schema, _ = texts.write(
        prompt="A person of the play: ",
        seed=7,
        max_tokens=60,
        json_schema=SCHEMA,
        preset="llama.cpp",
    )
    texts.save(
        folder / "schema.html", texts=[{"id": schema, "name": "a person"}], view="constrain", step=1
    )


class Silent(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def alone() -> Iterator[str]:
    """The address of the page that needs no server but one for its files."""
    with tempfile.TemporaryDirectory() as folder:
        site_page.write_page(Path(folder, site_page.FOLDER))
        handler = partial(Silent, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/{site_page.FOLDER}/"
            server.shutdown()


def saved(page: Browser, path: Path) -> Image.Image:
    """Write what is seen; return it."""
    taken = Image.open(BytesIO(page.driver.get_screenshot_as_png())).convert("RGB")
    taken.quantize(COLOURS).save(path, optimize=True)
    print(path)
    return taken


SCENES: tuple[Callable[[Browser], None], ...] = (write, chain, compare, constrain, beams, cache)


def picture_alone(folder: Path, width: int, height: int) -> None:
    """The pictures of the page without a server: after "make wasm"."""
    with alone() as address, Browser() as page:
        page.resize(width, height)
        page.open(address)
        page.click("form.controls .primary")
        page.shows(".status", "ended by")
        page.click("#main-9")
        page.shows(".stages thead", "temperature")
        page.script("document.querySelector('textarea').rows = 1; scrollTo(0, 0)")
        page.rest()
        saved(page, folder / "playground-alone.png")
        chain = '{"temperature": 0.8, "top_p": 0.8}'
        page.driver.get(f"{address}live.html?chain={quote(chain)}")
        page.shows(".draws", "exact")
        saved(page, folder / "live-picture.png")


def main() -> int:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--pages", type=Path, default=PAGES)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    given = parser.parse_args()
    if missing():
        print(f"{missing()} is not installed")
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    model = aleator.load(n_threads=1)
    with (
        model.engine(n_seq_max=4) as engine,
        served(Service(model, engine, ServerOptions())) as (address, _),
        Browser() as page,
    ):
        given.pages.mkdir(parents=True, exist_ok=True)
        recorded(address, given.pages)
        page.resize(given.width, given.height)
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.open(address)
            for scene in SCENES:
                scene(page)
                page.rest()
                path = given.folder / f"playground-{scene.__name__}-{scheme}.png"
                taken = saved(page, path)
                if scene is write and scheme == "light":
                    step = taken.crop((0, STEP[0], taken.width, STEP[1]))
                    step.quantize(COLOURS).save(given.folder / "playground-step.png", optimize=True)
    if site_page.WASM.is_file():
        picture_alone(given.folder, given.width, given.height)
    return 0


if __name__ == "__main__":
    sys.exit(main())
