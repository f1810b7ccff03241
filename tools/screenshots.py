"""Make the pictures of docs/playground.md: every view with the bundled model in Chromium, light and dark.

Needs selenium, Pillow, and Debian's chromium and chromium-driver: ``python tools/screenshots.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import aleator  # noqa: E402
from aleator.server.options import ServerOptions  # noqa: E402
from aleator.server.service import Service  # noqa: E402
from tests.playground.browser import Browser, missing, served  # noqa: E402

COLOURS = 128
"""Of a picture: a third of the bytes, and nothing that one would miss."""
IMAGES = ROOT / "docs/images"


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


def cache(page: Browser) -> None:
    """Forks, a hole, and a slide."""
    page.view("cache")
    page.shows(".cache h2", "9. defrag")
    page.click(".steps li:nth-child(7) button")


SCENES: tuple[Callable[[Browser], None], ...] = (write, chain, compare, constrain, cache)


def main() -> int:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    given = parser.parse_args()
    if missing():
        print(f"{missing()} is not installed")
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    model = aleator.load(n_threads=1)
    with (
        model.engine(n_seq_max=2) as engine,
        served(Service(model, engine, ServerOptions())) as (address, _),
        Browser() as page,
    ):
        page.resize(given.width, given.height)
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.open(address)
            for scene in SCENES:
                scene(page)
                page.rest()
                path = given.folder / f"playground-{scene.__name__}-{scheme}.png"
                taken = Image.open(BytesIO(page.driver.get_screenshot_as_png())).convert("RGB")
                taken.quantize(COLOURS).save(path, optimize=True)
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
