"""Chromium under selenium, for tests and pictures of the page."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from aleator.server.app import create_app, create_guarded
from aleator.server.options import ServerOptions
from aleator.server.run import bound
from aleator.server.service import Service

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds that the page has for anything; most of it takes a tenth of one."""

AXE = Path(__file__).parents[2] / "build/page/node_modules/axe-core/axe.min.js"
"""Where ``make page`` puts it."""
VIEWS = ("write", "chain", "compare", "constrain", "beams", "cache", "reproduce")

LISTEN = """
window.pressed = false;
arguments[0].addEventListener("click", () => (window.pressed = true), {capture: true, once: true});
"""

WATCH = """
window.reported = [];
const report = (text) => window.reported.push(text);
document.addEventListener("securitypolicyviolation", (e) => report(`policy: ${e.violatedDirective}`));
window.addEventListener("error", (e) => report(`error: ${e.message}`));
window.addEventListener("unhandledrejection", (e) => report(`rejection: ${e.reason}`));
"""


def missing() -> str:
    """Which program is not installed; "" if none."""
    return next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), "")


@contextmanager
def served(service: Service, guarded: bool = False) -> Iterator[tuple[str, Any]]:
    """The address of a server in a thread, and its application, or all of its guards."""
    app = create_guarded(service).app if guarded else create_app(service)
    listening = bound(ServerOptions(port=0))
    # A page that is still open may hold a stream open, for which a server that ends would wait for ever.
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", app
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
        assert not thread.is_alive(), "the server did not end"


class Browser:
    """A window of Chromium."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
            options.add_argument(f"--{word}")
        for word in ("disable-background-networking", "no-first-run", "hide-scrollbars"):
            options.add_argument(f"--{word}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.command("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self.resize(1280, 900)

    def command(self, name: str, **given: Any) -> None:
        """Have Chromium's developer tools do something."""
        self.driver.execute_cdp_cmd(name, given)

    def close(self) -> None:
        """Close the window."""
        self.driver.quit()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        """Give the page another size, in its own pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def colours(self, scheme: str) -> None:
        """Have the system prefer "light" or "dark"."""
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=wanted)

    def open(self, address: str) -> None:
        """Open an address afresh, and wait for the page."""
        self.driver.get("about:blank")
        self.driver.get(address)
        self.find("[role=tablist]")

    def script(self, text: str, *given: Any) -> Any:
        """What JavaScript returns."""
        return self.driver.execute_script(text, *given)

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE
        while True:
            found: T | None = None
            try:
                found = condition()
            except Exception as error:  # elements come and go
                what_else: object = error
            else:
                what_else = found
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"{what}: {what_else}; {self.reports()}")
            time.sleep(0.03)

    def all(self, selector: str) -> list[WebElement]:
        """Elements by CSS."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def find(self, selector: str) -> WebElement:
        """An element, once it is there."""
        return self.until(lambda: self.all(selector)[:1], selector)[0]

    def press(self, element: WebElement) -> bool:
        """Click an element; return whether it got the click: while a page is laid out, it may be elsewhere."""
        self.script(LISTEN, element)
        element.click()
        return bool(self.script("return window.pressed"))

    def click(self, selector: str) -> None:
        """Click an element, until it gets the click."""
        self.until(lambda: self.press(self.find(selector)), f"click {selector}")

    def button(self, label: str) -> None:
        """Click the button of the view with this text, until it gets the click."""

        def press() -> bool:
            found = [each for each in self.all("main button") if each.text.strip() == label]
            return bool(found) and self.press(found[0])

        self.until(press, f"button {label}")

    def text(self, selector: str) -> str:
        """The text of an element that has one."""
        return self.until(lambda: self.find(selector).text, f"text of {selector}")

    def shows(self, selector: str, part: str) -> str:
        """Wait until an element has this text in it, and return all of it."""

        def shown() -> str:
            texts = [each.text for each in self.all(selector)]
            return next((text for text in texts if part in text), "")

        return self.until(shown, f"{selector}: {part!r}")

    def settle(self) -> None:
        """Wait until the page has been drawn anew."""
        self.script(
            "return new Promise((on) => requestAnimationFrame(() => requestAnimationFrame(on)))"
        )

    def rest(self) -> None:
        """Move the pointer out of the way."""
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)

    def keys(self, selector: str, *keys: str) -> None:
        """Type into an element."""
        self.find(selector).send_keys(*keys)

    def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field, typed until all of it is there; a tab at its end leaves the field."""
        typed = text.removesuffix("\t")

        def fill() -> bool:
            field = self.find(selector)
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(typed)
            return field.get_attribute("value") == typed

        self.until(fill, f"{selector}: {typed!r}")
        if typed != text:
            self.keys(selector, "\t")

    def switch(self, selector: str) -> None:
        """Turn a switch that something else covers, once it is there."""
        self.script("arguments[0].click()", self.find(selector))

    def view(self, name: str) -> None:
        """Open one of the views, and wait until it is there."""
        self.click(f"#tab-{name}")
        self.find(f"#tab-{name}[aria-selected=true]")

    def reports(self) -> list[str]:
        """Errors, policy reports, and what the console says of them."""
        log: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        severe = [each["message"] for each in log if each["level"] == "SEVERE"]
        # The view says what was refused, and brings back a text that the server does not know.
        said = ("400 (Bad Request)", "(Not Found)")
        logged = [m for m in severe if said[0] not in m and not ("/texts/" in m and said[1] in m)]
        return [*(self.script("return window.reported") or []), *logged]

    def hosts(self) -> set[str]:
        """Where the page asked for anything."""
        asked: list[str] = self.script(
            "return performance.getEntriesByType('resource').map((e) => new URL(e.name).origin)"
        )
        return set(asked)


def write(page: Browser, tokens: int = 24) -> None:
    """Have a text of so many tokens written, and wait for its end."""
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


def violations(page: Browser) -> list[str]:
    """What axe-core, which the page has loaded, finds."""
    found: list[str] = page.script(
        "return axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
        " `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + n.failureSummary)}`))"
    )
    return found
