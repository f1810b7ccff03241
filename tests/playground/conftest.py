"""A server's application with a playground, and a client that speaks to it in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import aleator
from aleator.server.app import create_app
from aleator.server.options import ServerOptions
from aleator.server.playground.recording import Recording
from aleator.server.service import Service
from tests.server.conftest import InProcess

if TYPE_CHECKING:
    from tests.playground.browser import Browser

ROOT = "/api/playground"


class Client(InProcess):
    """Speaks to the playground of a service; ``options`` are those of the server."""

    def __init__(
        self, model: aleator.LanguageModel, engine: aleator.Engine, **options: Any
    ) -> None:
        self.model = model
        self.app = create_app(Service(model, engine, ServerOptions(**options)))

    def get(self, path: str = "") -> Any:
        """What GET answers."""
        response = self.request("GET", ROOT + path)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """What a body is answered with."""
        response = self.request("POST", ROOT + path, json=body)
        assert response.status_code == 200, response.text
        made: dict[str, Any] = response.json()
        return made

    def refused(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error of a body that is refused."""
        response = self.request("POST", ROOT + path, json=body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def write(self, **body: Any) -> Written:
        """A text as the stream tells it."""
        response = self.request("POST", f"{ROOT}/texts", json=body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert lines[-1]["event"] == "end", lines[-1]
        return Written(lines[0], lines[1:-1], lines[-1])

    def recording(self, written: Written) -> Recording:
        """What the server keeps of a text."""
        found: Recording = self.app.state.playground.recordings[written.id]
        return found


class Written:
    """A text as the stream told it."""

    def __init__(
        self, start: dict[str, Any], steps: list[dict[str, Any]], end: dict[str, Any]
    ) -> None:
        self.start, self.steps, self.end = start, steps, end
        self.id: str = start["id"]

    @property
    def tokens(self) -> list[int]:
        """The tokens drawn in this request."""
        return [step["token"]["id"] for step in self.steps]


MakeClient = Callable[..., Client]


@pytest.fixture(scope="package")
def make_client(model: aleator.LanguageModel) -> Iterator[MakeClient]:
    """Clients of services with other options, over one engine."""
    with model.engine(n_seq_max=4) as engine:
        yield lambda **options: Client(model, engine, **options)


@pytest.fixture(scope="package")
def client(make_client: MakeClient) -> Client:
    """A client of a service with the options that hold by default."""
    return make_client()


@pytest.fixture(scope="package")
def server(model: aleator.LanguageModel) -> Iterator[tuple[str, Any]]:
    """The address of a server, and its application."""
    from tests.playground.browser import served  # selenium is optional

    engine = model.engine(n_seq_max=4)
    with served(Service(model, engine, ServerOptions())) as found:
        yield found
        engine.close()  # before the server waits for its requests, some of which may wait for the engine


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A window of Chromium."""
    from tests.playground.browser import Browser  # selenium is optional

    with Browser() as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser, server: tuple[str, Any]) -> Iterator[Browser]:
    """The page; at the end nothing was reported, and nobody else was asked."""
    address, _ = server
    chromium.resize(1280, 900)
    chromium.open(address)
    yield chromium
    assert chromium.reports() == []
    assert chromium.hosts() <= {address}
