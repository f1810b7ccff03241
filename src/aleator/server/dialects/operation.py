"""``/health`` and ``/metrics``: for those who run the server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.dialects.openai_errors import render_error as render_error
from aleator.server.errors import ApiError
from aleator.server.metrics import CONTENT_TYPE, Metrics
from aleator.server.service import Service


async def health(request: Request) -> Response:
    """Whether texts are made; needs no key, and says nothing else."""
    service: Service = request.app.state.service
    if service.engine.closed:
        raise ApiError(503, "the engine is closed", code="closed", kind="server_error")
    return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})


async def metrics(request: Request) -> Response:
    """Figures in Prometheus' text form."""
    shown: Metrics = request.app.state.metrics
    service: Service = request.app.state.service
    began = {"process-start-time-unix": str(service.started)}  # as llama-server has it
    return Response(shown.page(), media_type=CONTENT_TYPE, headers=began)


ROUTES = [
    Route("/health", health),
    Route("/v1/health", health),
    Route("/metrics", metrics),
]
