"""Endpoints that other servers of these dialects have and this one has not.

One rule for all: they answer 501 and say why, in the form of their dialect.  Any other path is 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aleator.server.dialects import anthropic, llama_errors, ollama, openai_errors
from aleator.server.errors import ApiError

Render = Callable[[ApiError], dict[str, Any]]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
RERANK, LORA = "documents are not reranked", "LoRA adapters are not supported"
AUDIO, ROUTER = "audio is not supported", "one server serves one model"
PICTURES, STORED = (
    "no pictures or videos are made",
    "nothing is stored: send all that a request needs",
)
MCP = "the server runs no tools, and speaks no MCP"
STREAMS = "streams cannot be resumed"
PULLED = "models are chosen when the server is started: aleator serve -m"

LLAMA_SERVER = {
    "/rerank": RERANK,
    "/reranking": RERANK,
    "/v1/rerank": RERANK,
    "/v1/reranking": RERANK,
    "/lora-adapters": LORA,
    "/audio/transcriptions": AUDIO,
    "/v1/audio/transcriptions": AUDIO,
    "/models": ROUTER,  # GET is another endpoint's
    "/models/load": ROUTER,
    "/models/unload": ROUTER,
    "/models/sse": ROUTER,
    "/tools": MCP,
    "/mcp": MCP,
    "/cors-proxy": "the server fetches nothing from other servers",
    "/v1/stream": STREAMS,
    "/v1/streams/lookup": STREAMS,
    "/v1/chat/completions/control": "a chat under way cannot be steered",
}
OPENAI = {
    "/v1/audio": AUDIO,
    "/v1/images": PICTURES,
    "/v1/videos": PICTURES,
    "/v1/moderations": "texts are not judged",
    "/v1/realtime": "there are no sessions: send requests, with stream for pieces",
    "/v1/files": STORED,
    "/v1/uploads": STORED,
    "/v1/batches": "nothing is stored: send the requests, or run aleator batch",
    "/v1/conversations": STORED,
    "/v1/vector_stores": STORED,
    "/v1/containers": STORED,
    "/v1/assistants": STORED,
    "/v1/threads": STORED,
    "/v1/evals": "texts are not judged",
    "/v1/fine_tuning": "models are not trained",
}
ANTHROPIC = {
    "/v1/messages/batches": "nothing is stored: send the requests",
    "/v1/complete": "give /v1/messages the messages",
}
OLLAMA = {
    "/api/embeddings": "give /api/embed the text as input",
    "/api/pull": PULLED,
    "/api/push": PULLED,
    "/api/create": PULLED,
    "/api/copy": PULLED,
    "/api/delete": PULLED,
    "/api/blobs": PULLED,
}


class NotBuilt:
    """Endpoints of a dialect that there are not.

    Args:
        paths: Why, by path; what lies below a path is meant too.
        render_error: Writes errors as the dialect has them.

    Attributes:
        ROUTES: One for each path, and one for what lies below it.
        render_error: As given.
    """

    def __init__(self, paths: Mapping[str, str], render_error: Render) -> None:
        self.ROUTES = [
            Route(each, refused, methods=METHODS)
            for path, why in paths.items()
            for refused in [_refused(why)]
            for each in (path, f"{path}/{{below:path}}")
        ]
        self.render_error = render_error


def _refused(why: str) -> Callable[[Request], Awaitable[Response]]:
    async def refused(request: Request) -> Response:
        raise llama_errors.not_built(f"{request.url.path!r:.200}: {why}")

    return refused


ALL: Sequence[NotBuilt] = (
    NotBuilt(LLAMA_SERVER, llama_errors.render_error),
    NotBuilt(ANTHROPIC, anthropic.render_error),
    NotBuilt(OLLAMA, ollama.render_error),
    NotBuilt(OPENAI, openai_errors.render_error),
)
