"""A service of the bundled model, and a client that speaks to it in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import aleator
from aleator.server.app import create_app
from aleator.server.options import ServerOptions
from aleator.server.service import Service

TEMPLATE = (
    "{% if tools %}Tools: {{ tools | tojson }} Call one with <tool_call>.\n\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "\n\n{% endfor %}JULIET:\n"
)
"""Shows tools in Hermes' manner; the bundled model's own template does not."""

REASONING = (
    "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ reasoning_effort }}\n"
    "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
)
"""Has the model reason first, if asked to."""


class InProcess:
    """Speaks to an application in this process."""

    app: Any

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        """The response to one request."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.request(method, path, **given)

        return asyncio.run(ask())


class Client(InProcess):
    """Speaks to a service; ``options`` are those of the server.

    Attributes:
        service: Answers.
        app: The application.
    """

    def __init__(
        self, model: aleator.LanguageModel, engine: aleator.Engine, **options: Any
    ) -> None:
        defaults = options.pop("defaults", None)
        self.service = Service(model, engine, ServerOptions(**options), defaults)
        self.app = create_app(self.service)

    def get(self, path: str) -> httpx.Response:
        """The response to a GET."""
        return self.request("GET", path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        """The response to a body, whatever it is."""
        return self.request("POST", path, json=body)

    def made(self, path: str, **body: Any) -> dict[str, Any]:
        """The response to a body that is answered."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        made: dict[str, Any] = response.json()
        return made

    def refused(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error of a body that is refused, as OpenAI writes it."""
        response = self.post(path, **body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream that ends as it should."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="package")
def served_engine(model: aleator.LanguageModel) -> Iterator[aleator.Engine]:
    """An engine for four requests at a time."""
    with model.engine(n_seq_max=4) as engine:
        yield engine


MakeClient = Callable[..., Client]


@pytest.fixture(scope="package")
def make_client(model: aleator.LanguageModel, served_engine: aleator.Engine) -> MakeClient:
    """Clients of services with other options."""

    def make(**options: Any) -> Client:
        return Client(model, served_engine, **options)

    return make


@pytest.fixture(scope="package")
def client(make_client: MakeClient) -> Client:
    """A client of a service with the options that hold by default, and a template that shows tools."""
    return make_client(chat_template=TEMPLATE)
