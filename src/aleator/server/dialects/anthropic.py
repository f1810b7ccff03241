"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages, made of a chat."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Container, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.bodies import body_of
from aleator.server.chatting import ChatAnswer
from aleator.server.dialects.anthropic_input import COUNTED, FIELDS, request_of
from aleator.server.dialects.anthropic_output import Event, MessageWriter, stop_of
from aleator.server.dialects.openai_forms import dumps
from aleator.server.dialects.translated import fitting, in_words, with_records
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import Body
from aleator.server.service import Service
from aleator.server.sse import EventStream, event, unless_gone

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
"""Anthropic's kinds of errors; what is left is an "invalid_request_error" below 500, else an "api_error"."""

WORDS = {
    ".function.parameters": ".input_schema",
    ".function.": ".",
    "json_schema": "output_config.format.schema",
    "reasoning_budget": "thinking.budget_tokens",
    "enable_thinking": "thinking.type",
    "chat_template_kwargs has 'reasoning_effort'": "output_config.effort",
    "chat_template_kwargs": "output_config.effort",
}
"""What errors of a chat are called here."""


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


async def messages(request: Request) -> Response:
    """Answer messages, at once or as a stream."""
    service: Service = request.app.state.service
    lenient = service.options.lenient
    body = FIELDS.read(await body_of(request), lenient)
    model = service.check_model(body.own["model"])
    asked = request_of(body, lenient)
    with in_words(WORDS, body):
        answer = await service.chat(fitting(asked, service))
    writer = MessageWriter(secrets.token_hex(12), model)
    stops = asked.options.get("stop", ())
    headers = {"x-aleator-seed": str(answer.seed)}
    if body.own["stream"]:
        return EventStream(
            _events(service, body, answer, writer, stops),
            answer.cancel,
            _failed,
            headers=headers,
        )
    for each in await unless_gone(request, answer.collected(), answer.cancel):
        writer.push(each)
    stop = stop_of(answer.choices[0], stops)
    writer.end(stop, answer.usage)
    made = with_records(service, body, answer, writer.message(stop, answer.usage))
    return JSONResponse(made, headers=headers)


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a request has."""
    service: Service = request.app.state.service
    lenient = service.options.lenient
    body = COUNTED.read(await body_of(request), lenient)
    service.check_model(body.own["model"])
    asked = request_of(body, lenient)
    with in_words(WORDS, body):
        tokens = await service.chat_tokens(fitting(asked, service))
    return JSONResponse({"input_tokens": len(tokens)})


async def _events(
    service: Service, body: Body, answer: ChatAnswer, writer: MessageWriter, stops: Container[str]
) -> AsyncGenerator[bytes, None]:
    begun = False
    async for events in answer.events():
        made = [] if begun else writer.begin(answer.usage)  # the prompt is read: its usage is known
        begun = True
        yield _written([*made, *(each for event in events for each in writer.push(event))])
    end = writer.end(stop_of(answer.choices[0], stops), answer.usage)
    with_records(service, body, answer, end[-1])
    yield _written(end)


def _written(events: Iterable[Event]) -> bytes:
    return b"".join(event(dumps(each), each["type"]) for each in events)


def _failed(error: BaseException) -> bytes:
    return event(dumps(render_error(api_error(error))), "error")


ROUTES = [
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]
