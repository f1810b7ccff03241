"""The page without a server, served under the policy of the site, and a window of either browser on it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import site_page

from aleator.models.hub.bundled import bundled_model
from tests.javascript import firefox

TEXT: dict[str, Any] = {"prompt": "ROMEO:\n", "seed": 7, "max_tokens": 16, "preset": "llama.cpp"}
OF_SITE = {"Content-Security-Policy": site_page.POLICY, "Cache-Control": "max-age=3600"}
CUT, SLOW, RANGED, STALLED = "cut.gguf", "slow.gguf", "ranged.gguf", "stalled.gguf"


class Files(SimpleHTTPRequestHandler):
    """Serves files with these headers."""

    def __init__(self, *given: Any, headers: Mapping[str, str], **more: Any) -> None:
        self.more = headers
        super().__init__(*given, **more)

    def end_headers(self) -> None:
        for name, value in self.more.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Handler(Files):
    """Serves the site; of ``cut.gguf`` only half of the bytes come that are
    announced, ``slow.gguf`` stops half-way, ``ranged.gguf`` comes in ranges, which are counted, and so does
    ``stalled.gguf``, but for now only the first, and of others some bytes."""

    ended = threading.Event()
    ranges: ClassVar[list[str]] = []
    stalls = True

    def do_GET(self) -> None:
        if self.path.endswith((f"/{RANGED}", f"/{STALLED}")):
            return self.send_range()
        if not self.path.endswith((f"/{CUT}", f"/{SLOW}")):
            return super().do_GET()
        data = bundled_model().read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        if self.path.endswith(SLOW):
            self.ended.wait(60)
        self.close_connection = True

    def send_range(self) -> None:
        data = bundled_model().read_bytes()
        asked = self.headers["Range"]
        self.ranges.append(asked)
        begin, end = map(int, asked.removeprefix("bytes=").split("-"))
        part = data[begin : end + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")
        self.send_header("ETag", '"one"')
        self.end_headers()
        if begin and self.stalls and self.path.endswith(STALLED):
            self.wfile.write(part[:1000])
            self.ended.wait(60)
        else:
            self.wfile.write(part)


class Served:
    """A server of the folder, which can be away; without other headers it has those of the site."""

    def __init__(
        self, folder: Path, headers: Mapping[str, str] = OF_SITE, handler: type[Files] = Handler
    ) -> None:
        made = partial(handler, directory=str(folder), headers=headers)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), made)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.root = f"http://127.0.0.1:{self._server.server_port}/"
        self.address = f"{self.root}try/"

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Window:
    """What both browsers can."""

    def __init__(self, browser: Any, until: Callable[..., Any]) -> None:
        self.browser, self.until = browser, until

    def open(self, address: str) -> None:
        if isinstance(self.browser, firefox.Firefox):
            self.browser.open(address)
        else:  # not until the page is there, which it may never be
            self.browser.driver.get("about:blank")
            self.browser.driver.get(address)

    def resize(self, width: int, height: int) -> None:
        """Have the page this size; one that is higher than wide is a phone's."""
        if isinstance(self.browser, firefox.Firefox):
            self.browser.command("WebDriver:SetWindowRect", width=width, height=height)
        else:
            self.browser.resize(width, height, mobile=height > width)

    def script(self, text: str, *given: Any) -> Any:
        return self.browser.script(text, *given)

    def writes(self, address: str) -> None:
        """Open an address that says a text, which is written."""
        self.open(address)
        self.shows("ended by: length")

    def shows(self, part: str, selector: str = "body") -> str:
        """The text of an element, once this is in it."""

        def shown() -> str:
            text: str = self.script(
                "return document.querySelector(arguments[0])?.innerText ?? ''", selector
            )
            return text if part in text else ""

        found: str = self.until(shown, f"{selector}: {part!r}")
        return found

    def press(self, label: str) -> None:
        """Click a button."""
        self.until(
            lambda: self.script(
                "const all = ['main button', 'button'].flatMap((each) => [...document.querySelectorAll(each)]);"
                "const found = all.find((each) => each.textContent.trim() === arguments[0]);"
                "found?.click(); return Boolean(found)",
                label,
            ),
            f"button {label}",
        )

    def upload(self, path: Path) -> None:
        """Choose a model."""
        self.shows("Another model", ".models")
        if isinstance(self.browser, firefox.Firefox):
            self.browser.upload(".models input", path)
        else:
            self.browser.find(".models input").send_keys(str(path))

    def tokens(self) -> list[str]:
        """The tokens of the text as they are shown."""
        shown: list[str] = self.script(
            "return [...document.querySelectorAll(`[id^='main-'][data-i]`)].map((e) => e.textContent)"
        )
        return shown


def link(**more: Any) -> str:
    """What an address says of a text."""
    said = {
        "prompt": TEXT["prompt"],
        "length": 16,
        "seed": 7,
        "texts": [{**TEXT, "parent": None}],
        "text": 0,
        "step": 3,
        **more,
    }
    return packed(said)


def packed(said: dict[str, Any]) -> str:
    """The part of an address behind its sign."""
    return "#" + base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
