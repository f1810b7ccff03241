"""Endpoints that other servers of these dialects have and this one has not.

One rule for all: they answer 501 and say why, in the form of their dialect.  Any other path is 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aleator.server.errors import not_built

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _routes(paths: Mapping[str, Sequence[str]]) -> list[Route]:
    """A route for each path, and one for what lies below it; the paths are given by why they are not there."""

    def refusing(why: str) -> Callable[[Request], Awaitable[Response]]:
        async def refused(request: Request) -> Response:
            raise not_built(f"{request.url.path!r:.200}: {why}")

        return refused

    return [
        Route(each, refusing(why), methods=METHODS)
        for why, those in paths.items()
        for path in those
        for each in (path, f"{path}/{{below:path}}")
    ]


LLAMA_SERVER = _routes(
    {
        "documents are not reranked": ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
        "LoRA adapters are not supported": ("/lora-adapters",),
        "audio is not supported": ("/audio/transcriptions", "/v1/audio/transcriptions"),
        # GET /models is another endpoint's.
        "one server serves one model": ("/models", "/models/load", "/models/unload", "/models/sse"),
        "the server runs no tools, and speaks no MCP": ("/tools", "/mcp"),
        "the server fetches nothing from other servers": ("/cors-proxy",),
        "streams cannot be resumed": ("/v1/stream", "/v1/streams/lookup"),
        "a chat under way cannot be steered": ("/v1/chat/completions/control",),
    }
)
OPENAI = _routes(
    {
        "audio is not supported": ("/v1/audio",),
        "no pictures or videos are made": ("/v1/images", "/v1/videos"),
        "texts are not judged": ("/v1/moderations", "/v1/evals"),
        "there are no sessions: send requests, with stream for pieces": ("/v1/realtime",),
        "nothing is stored: send all that a request needs": (
            "/v1/files", "/v1/uploads", "/v1/conversations", "/v1/vector_stores", "/v1/containers",
            "/v1/assistants", "/v1/threads",
        ),
        "nothing is stored: send the requests, or run aleator batch": ("/v1/batches",),
        "models are not trained": ("/v1/fine_tuning",),
    }
)  # fmt: skip
ANTHROPIC = _routes(
    {
        "nothing is stored: send the requests": ("/v1/messages/batches",),
        "give /v1/messages the messages": ("/v1/complete",),
    }
)
OLLAMA = _routes(
    {
        "give /api/embed the text as input": ("/api/embeddings",),
        "models are chosen when the server is started: aleator serve -m": (
            "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs",
        ),
    }
)  # fmt: skip
