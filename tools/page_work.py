"""Measures the cost of viewing a long text on the playground's page.

Only the page's main thread is timed, so other programs on the machine do not count.  Needs
selenium, and Debian's chromium and chromium-driver: ``python tools/page_work.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import aleator  # noqa: E402
from aleator.server.options import ServerOptions  # noqa: E402
from aleator.server.service import Service  # noqa: E402
from tests.playground.browser import Browser, missing, served, tokens  # noqa: E402
from tests.playground.test_browser_for_all import LONG  # noqa: E402

TIMES = 60
FRAMES = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WORK = {
    "nothing": "",
    "a step of scrolling": "const text = document.querySelector('.text');"
    f"text.scrollTop = arguments[0] * text.scrollHeight / {TIMES};",
    "a token under the pointer": "document.getElementById(`main-${arguments[0]}`).dispatchEvent("
    "new PointerEvent('pointerover', {bubbles: true, clientX: 300, clientY: 300}));",
    "a step opened": "import('/playground/text.js').then((t) => (t.opened.value = 60 * arguments[0]));",
}


def computed(page: Browser) -> float:
    """Milliseconds of work of the page's main thread so far."""
    driver: Any = page.driver
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * float(next(each["value"] for each in found if each["name"] == "TaskDuration"))


def main() -> int:
    """Print the cost of each action."""
    if missing():
        print(f"{missing()} is not installed")
        return 1
    model = aleator.load(n_threads=1)
    with (
        model.engine(n_seq_max=1) as engine,
        served(Service(model, engine, ServerOptions())) as (address, _),
        Browser() as page,
    ):
        page.command("Performance.setTimeDomain", timeDomain="threadTicks")
        page.command("Performance.enable", timeDomain="threadTicks")
        page.open(address)
        page.script(f"return (async () => {{{LONG}}})()")
        page.until(lambda: len(tokens(page)) == 4000, "the text")
        for name, work in WORK.items():
            page.script("document.querySelector('.text').scrollTop = 0")
            costs = []
            for i in range(TIMES):
                before = computed(page)
                page.script(work + FRAMES, i)
                costs.append(computed(page) - before)
            costs.sort()
            print(f"{name}: {costs[TIMES // 2]:.1f} ms, at most {costs[-1]:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
