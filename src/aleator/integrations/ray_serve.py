"""``aleator serve`` as a Ray Serve application: replicas of the server behind one address.

::

    from ray import serve
    from aleator.integrations.ray_serve import application

    serve.run(application("model.gguf", max_replicas=4), route_prefix="/")

Each replica has the model (its weights are shared on its node through the memory map of the file), an engine
and the whole ASGI application with its guards.  Requests of one conversation go to the same replica while it
has room, so that its prompt cache holds their prefix; the choice of replica changes no text.  Ray's proxies
choose a replica before they read a request, so a front reads it first, and passes it to the first replica with
room in the conversation's order (rendezvous hashing).  A stream that breaks with its replica can be resumed:
:class:`aleator.integrations.streams.TextStream`.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aleator.integrations.versions import require

require("ray", at_least="2.60", install="aleator[ray]")
require("starlette", at_least="0.40", install="aleator[ray]")

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

import aleator
from aleator.core.errors import EngineClosed, ParameterError
from aleator.engine.prompts import check_without_model
from aleator.integrations.conversations import conversation_of, ranked
from aleator.integrations.ray_generator import WorkerMemory, check_engine, check_load, mapped
from aleator.server.app import create_guarded
from aleator.server.options import ServerOptions
from aleator.server.service import Service
from aleator.server.streaming import disconnected

OURS = (
    "host", "alias", "any_model", "lenient", "chat_template", "slots", "n_cells", "api_key", "api_key_file",
    "allowed_host", "cors_origin", "max_body_bytes", "request_timeout", "client_timeout", "grammar_timeout",
    "log_format", "log_requests",
)  # fmt: skip
"""Options of the server that apply behind Ray Serve; the others concern its sockets, or one process."""
AT_FRONT = 1000
"""Maximum number of requests that a front passes on at the same time."""
REPLICA = b"x-aleator-replica"
"""Response header that names the process that answered."""


class ConversationRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types here
    """Sends a conversation to the first replica in its order that has room."""

    async def choose_replicas(
        self,
        candidate_replicas: Sequence[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return replicas by preference; in any order without a conversation."""
        args = [] if pending_request is None else pending_request.args
        key = str(args[0]) if args else ""
        if not key:
            return [random.sample(list(candidate_replicas), len(candidate_replicas))]
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        return [[by_name[name]] for name in ranked(key, list(by_name))]


class Replica:
    """A model that answers requests in its own process."""

    def __init__(
        self,
        model: str | None,
        load: Mapping[str, Any],
        engine: Mapping[str, Any],
        server: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> None:
        loaded = aleator.load(model, **load)
        options = ServerOptions(**server)
        self._engine = loaded.engine(**engine)
        self._app = create_guarded(Service(loaded, self._engine, options, defaults)).app
        self._name = f"{socket.gethostname()}/{os.getpid()}".encode()

    def check_health(self) -> None:
        """Check that it can answer; Ray replaces it if this raises."""
        if self._engine.closed:
            raise EngineClosed("the engine has ended")

    def memory(self) -> dict[str, Any]:
        """The memory of this process: fields of WorkerMemory."""
        return vars(WorkerMemory.now())

    async def answer(
        self, conversation: str, scope: Mapping[str, Any], body: bytes
    ) -> AsyncIterator[dict[str, Any]]:
        """The messages of a response, as in ASGI; ``conversation`` is for the router."""
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        left = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if left:
                return left.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (REPLICA, self._name)]}
            messages.put_nowait(message)

        answering = asyncio.ensure_future(self._app(dict(scope), receive, send))
        answering.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            answering.result()
        finally:
            gone.set()  # tell the application that the client has disconnected
            if not answering.done():
                answering.cancel()


class Front:
    """Takes requests from Ray's proxies."""

    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        self._app = ReplicaProxy(replicas, max_body_bytes)

    def __serve_build_asgi_app__(self) -> ReplicaProxy:
        return self._app


class ReplicaProxy:
    """An ASGI application that passes requests on to the replica of their conversation.

    It stops reading a request longer than ``max_body_bytes``, and refuses it.
    """

    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        self._answer = replicas.options(method_name="answer", stream=True)
        self._most = max_body_bytes

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        body = b""
        while len(body) <= self._most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        plain = {name: scope[name] for name in PLAIN if name in scope}
        made = self._answer.remote(conversation_of(scope["headers"], body), plain, body)
        watching = asyncio.ensure_future(disconnected(receive))
        watching.add_done_callback(lambda task: None if task.cancelled() else made.cancel())
        try:
            async for message in made:
                await send(message)
        finally:
            watching.cancel()


PLAIN = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
    "headers", "client", "server",
)  # fmt: skip
"""The parts of a scope that another process can use."""


async def _live(receive: Any, send: Any) -> None:
    """Answer ASGI's lifespan messages: there is nothing to start or end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def application(
    model: str | None = None,
    *,
    min_replicas: int = 1,
    max_replicas: int = 1,
    num_cpus: float = 1,
    load: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    actor: Mapping[str, Any] | None = None,
) -> Any:
    """Make an application for ``serve.run``.

    Args:
        model: As for :func:`aleator.load`; every node has it.
        min_replicas: Minimum number of replicas.
        max_replicas: Maximum number of replicas; Ray runs as many as keep the engines full.
        num_cpus: Cores per replica, and its threads unless ``load`` has ``n_threads``.
        load: Other options of :func:`aleator.load`.
        engine: Options of :class:`aleator.Engine`.
        server: Options of ``aleator serve`` that do not concern its sockets.  As there, only requests to names
            of this machine are answered unless ``allowed_host`` has others, or ``host`` is "0.0.0.0".
        defaults: Default options of requests.
        autoscaling: Fields of Ray's ``AutoscalingConfig``, instead of ours.
        actor: Fields of ``ray_actor_options``, such as ``memory``.

    Returns:
        A ``ray.serve.Application``.

    Raises:
        ParameterError: An option is unknown, out of range, or has no effect behind Ray Serve.
    """
    if not 1 <= min_replicas <= max_replicas:
        raise ParameterError(
            f"min_replicas={min_replicas}, max_replicas={max_replicas}: give 1 or more, and no fewer at most"
        )
    given = mapped("server", server)
    strange = next((name for name in given if name not in OURS), None)
    if strange is not None:
        raise ParameterError(
            strange, f"{strange} cannot be honoured behind Ray Serve: give one of {', '.join(OURS)}"
        )
    options = ServerOptions(**{**given, "playground": False})
    running = check_engine(engine, n_ctx=options.n_cells)
    requests = mapped("defaults", defaults)
    check_without_model(requests)
    n_seq_max: int = running["n_seq_max"]
    scaling = {
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "target_ongoing_requests": n_seq_max,
        **(autoscaling or {}),
    }
    loading = {"n_threads": max(1, int(num_cpus)), **check_load(load)}
    replicas = serve.deployment(
        Replica,
        name="Replica",
        autoscaling_config=AutoscalingConfig(**scaling),
        max_ongoing_requests=2 * n_seq_max,
        ray_actor_options={"num_cpus": num_cpus, **(actor or {})},
        request_router_config=RequestRouterConfig(request_router_class=ConversationRouter),
    ).bind(model, loading, running, {**given, "playground": False}, requests)
    front = serve.deployment(
        serve.ingress()(Front),
        name="Front",
        max_ongoing_requests=AT_FRONT,
        ray_actor_options={"num_cpus": 0},
    )
    return front.bind(replicas, options.max_body_bytes)


def replica_of(headers: Mapping[str, str]) -> str:
    """The process that answered, from the response headers: its node and number; "" if they do not say."""
    return next((value for name, value in headers.items() if name.encode() == REPLICA), "")
