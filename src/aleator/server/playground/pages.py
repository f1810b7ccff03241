"""The page itself: files of the package, sent with a policy that lets nothing else run."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aleator.server.playground.saved import PAGE

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def read(path: str) -> bytes | None:
    """A file of the page; None if there is none of that name."""
    place = PAGE
    for part in path.split("/"):
        if not part or part.startswith("."):
            return None
        place = place / part
    return place.read_bytes() if place.is_file() else None


async def page(request: Request) -> Response:
    """GET / and /playground/{path}."""
    path = request.path_params.get("path", "index.html")
    found, ending = read(path), path.rpartition(".")[2]
    if found is None or ending not in TYPES:
        return Response("there is no such file", 404, HEADERS, "text/plain; charset=utf-8")
    return Response(found, 200, HEADERS, TYPES[ending])


ROUTES = [
    Route("/", page, methods=["GET"]),
    Route("/playground/{path:path}", page, methods=["GET"]),
]
