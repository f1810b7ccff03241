"""``aleator playground``: the options of its server, the address, and a browser where there is a screen."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from aleator.cli import main, playground
from aleator.server.options import ServerOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a server was to do, and what a browser was to open."""
    seen: dict[str, Any] = {"opened": []}
    opened = threading.Event()

    def serve(arguments: Any, options: ServerOptions, *rest: Any) -> None:
        seen["options"] = options
        rest[-1](None, "http://127.0.0.1:1")
        opened.wait(0.0 if arguments.no_open or not playground.has_browser() else 10.0)

    def open_page(address: str) -> bool:
        seen["opened"].append(address)
        opened.set()
        return True

    monkeypatch.setattr(playground, "serve", serve)
    monkeypatch.setattr("webbrowser.open", open_page)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return seen


def test_the_address_is_printed_and_opened_where_there_is_a_screen(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["playground"]) == 0
    assert "the playground is at http://127.0.0.1:1/" in capsys.readouterr().err
    assert asked["opened"] == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert main(["playground", "--no-open"]) == 0
    assert asked["opened"] == []
    assert main(["playground"]) == 0
    assert asked["opened"] == ["http://127.0.0.1:1/"]


def test_another_port_is_taken_where_the_usual_one_is(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        busy = listening.getsockname()[1]
        monkeypatch.setattr(playground, "taken", lambda options: options.port == 8080)
        assert main(["playground"]) == 0
        assert asked["options"].port == 0
        assert main(["playground", "--port", str(busy)]) == 0
        assert asked["options"].port == busy  # which the server then refuses by name
    assert not asked["options"].log_requests


def test_whether_a_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        options = ServerOptions(port=listening.getsockname()[1])
        assert playground.taken(options)
    assert not playground.taken(options)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_systems_with_a_screen_always_have_a_browser(
    asked: dict[str, Any], platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not playground.has_browser()
    monkeypatch.setattr("sys.platform", platform)
    assert playground.has_browser()
