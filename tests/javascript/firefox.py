"""Firefox by its own protocol, Marionette: Debian has no geckodriver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
PROGRAM = "firefox-esr"
PATIENCE = 60.0
PORT = "MarionetteActivePort"
PREFERENCES = {
    "marionette.port": 0,  # any; it is told in a file of the profile
    "app.update.auto": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}


def missing() -> str:
    """The program if it is not installed; "" if it is."""
    return "" if shutil.which(PROGRAM) else PROGRAM


class Firefox:
    """A window of Firefox without a screen; ``profile`` is an empty folder."""

    def __init__(self, profile: Path) -> None:
        lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});\n" for k, v in PREFERENCES.items()]
        (profile / "user.js").write_text("".join(lines))
        command = [PROGRAM, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "HOME": str(profile)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = until(lambda: int((profile / PORT).read_text()), "the port")
            self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
            self._received, self._number = b"", 0
            self._receive()  # a greeting
            self.command("WebDriver:NewSession")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Firefox:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        if hasattr(self, "_socket"):
            self._socket.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _receive(self) -> Any:
        while b":" not in self._received:
            self._more()
        size, _, rest = self._received.partition(b":")
        self._received = rest
        while len(self._received) < int(size):
            self._more()
        text, self._received = self._received[: int(size)], self._received[int(size) :]
        return json.loads(text)

    def _more(self) -> None:
        part = self._socket.recv(1 << 20)
        if not part:
            raise ConnectionError("Firefox has ended")
        self._received += part

    def command(self, name: str, **given: Any) -> Any:
        """The result of a command."""
        self._number += 1
        text = json.dumps([0, self._number, name, given]).encode()
        self._socket.sendall(b"%d:%s" % (len(text), text))
        number = 0
        while number != self._number:  # an answer that nobody waited for may come before
            _, number, error, result = self._receive()
        if error:
            raise RuntimeError(f"{name}: {error['error']}: {error['message']}")
        return result

    def open(self, address: str) -> None:
        """Open an address afresh."""
        self.command("WebDriver:Navigate", url="about:blank")
        self.command("WebDriver:Navigate", url=address)

    def script(self, text: str, *given: Any) -> Any:
        """What JavaScript returns."""
        return self.command("WebDriver:ExecuteScript", script=text, args=list(given))["value"]

    def upload(self, selector: str, path: Path) -> None:
        """Choose a file in a field."""
        found = self.command("WebDriver:FindElement", using="css selector", value=selector)
        [element] = found["value"].values()
        self.command("WebDriver:ElementSendKeys", id=element, text=str(path))


def until(condition: Callable[[], T], what: str) -> T:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while True:
        seen: object = None
        try:
            found = condition()
        except (OSError, ValueError, RuntimeError) as error:  # not yet
            seen = error
        else:
            seen = found
            if found:
                return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: {seen}")
        time.sleep(0.05)
