"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages, on top of a chat."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Container, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.chat import ChatAnswer, ChatChoice, ChatEvent, ChatStop, Usage
from aleator.server.dialects.anthropic_input import COUNTED, FIELDS, request_of
from aleator.server.dialects.nested import in_words, input_of, thinking_if_known, with_records
from aleator.server.errors import ApiError
from aleator.server.fields import Body
from aleator.server.service import Service, read_body
from aleator.server.streaming import EventStream, failing, typed_events, unless_gone

Event = dict[str, Any]
STOPS: Mapping[ChatStop, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "loop": "max_tokens",
    "deadline": "max_tokens",
    "interrupted": "pause_turn",
}
"""Anthropic's ``stop_reason``."""

_BLOCKS = {"content": ("text", "text"), "reasoning": ("thinking", "thinking")}

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
"""Anthropic's kinds of errors; others are "invalid_request_error" below 500, else "api_error"."""
WORDS = {
    ".function.parameters": ".input_schema",
    ".function.": ".",
    "json_schema": "output_config.format.schema",
    "reasoning_budget": "thinking.budget_tokens",
    "enable_thinking=True": "thinking.type='enabled'",
    "enable_thinking": "thinking.type",
    "chat_template_kwargs has 'reasoning_effort'": "output_config.effort",
    "chat_template_kwargs": "output_config.effort",
}
"""Anthropic's names for what errors of a chat mention."""


class MessageWriter:
    """Writes a message as it is made; ``content`` has the blocks so far, including calls that were cut off."""

    def __init__(self, name: str, model: str) -> None:
        self._name, self._model = name, model
        self.content: list[dict[str, Any]] = []
        self._open = False
        self._arguments = ""
        self._cut_off: set[int] = set()  # indices of calls that were cut off

    def begin(self, usage: Usage) -> list[Event]:
        """The events before the answer."""
        nothing = {"stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": self.message(nothing, usage)}]

    def push(self, event: ChatEvent) -> list[Event]:
        """The events of a piece of the answer."""
        if event.kind == "call":
            self._arguments = ""
            block = {"type": "tool_use", "id": event.id, "name": event.text, "input": {}}
            return [*self._close(), *self._begin(block)]
        if event.kind == "arguments":
            self._arguments += event.text
            return [self._delta(type="input_json_delta", partial_json=event.text)]
        if event.kind == "call_end":
            self.content[-1]["input"] = input_of(self._arguments)
            return self._close(complete=True)
        if event.kind == "end":
            return []
        kind, field = _BLOCKS[event.kind]
        begun: list[Event] = []
        if not (self._open and self.content[-1]["type"] == kind):
            block = {"type": kind, field: ""}
            if kind == "thinking":
                block["signature"] = ""
            begun = [*self._close(), *self._begin(block)]
        self.content[-1][field] += event.text
        return [*begun, self._delta(**{"type": f"{kind}_delta", field: event.text})]

    def end(self, stop: Mapping[str, str | None], usage: Usage) -> list[Event]:
        """The events after the answer."""
        return [
            *self._close(),
            {"type": "message_delta", "delta": dict(stop), "usage": usage_of(usage)},
            {"type": "message_stop"},
        ]

    def message(self, stop: Mapping[str, str | None], usage: Usage) -> dict[str, Any]:
        """The message so far, without calls that were cut off."""
        return {
            "id": f"msg_{self._name}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [
                dict(block) for i, block in enumerate(self.content) if i not in self._cut_off
            ],
            **stop,
            "usage": usage_of(usage),
        }

    def _begin(self, block: dict[str, Any]) -> list[Event]:
        self._open = True
        self.content.append(block)
        index = len(self.content) - 1
        return [{"type": "content_block_start", "index": index, "content_block": dict(block)}]

    def _close(self, complete: bool = False) -> list[Event]:
        """End the current block; ``complete``: it is a call that the model completed."""
        if not self._open:
            return []
        self._open = False
        index, kind = len(self.content) - 1, self.content[-1]["type"]
        if kind == "tool_use" and not complete:
            self._cut_off.add(index)
        signed = [self._delta(type="signature_delta", signature="")] if kind == "thinking" else []
        return [*signed, {"type": "content_block_stop", "index": index}]

    def _delta(self, **delta: Any) -> Event:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


def usage_of(used: Usage) -> dict[str, int]:
    """Token counts in Anthropic's form: prompt tokens exclude cached ones."""
    return {
        "input_tokens": used.prompt - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.completion,
    }


def stop_of(choice: ChatChoice, sequences: Container[str]) -> dict[str, str | None]:
    """Why an answer ended; ``sequences`` are the request's, since a model has stop strings of its own."""
    text = choice.stop_string
    if text is not None and text in sequences:
        return {"stop_reason": "stop_sequence", "stop_sequence": text}
    full = choice.stop == "length" and choice.generation.stop_reason == "context"
    reason = "model_context_window_exceeded" if full else STOPS[choice.stop or "stop"]
    return {"stop_reason": reason, "stop_sequence": None}


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of an error response."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


async def messages(request: Request) -> Response:
    """Answer messages, as a whole or as a stream."""
    service, body = await read_body(request, FIELDS)
    asked = request_of(body)
    with in_words(WORDS, body):
        answer = await service.chat(thinking_if_known(asked, service))
    writer = MessageWriter(secrets.token_hex(12), body.own["model"])
    stops = asked.options.get("stop", ())
    headers = {"x-aleator-seed": str(answer.seed)}
    if body.own["stream"]:
        return EventStream(
            _events(service, body, answer, writer, stops),
            answer.cancel,
            failing(render_error, "error"),
            headers=headers,
        )
    for each in await unless_gone(request, answer.collected(), answer.cancel):
        writer.push(each)
    stop = stop_of(answer.choices[0], stops)
    writer.end(stop, answer.usage)
    made = with_records(service, body, answer, writer.message(stop, answer.usage))
    return JSONResponse(made, headers=headers)


async def count_tokens(request: Request) -> Response:
    """Return the number of tokens of a request's prompt."""
    service, body = await read_body(request, COUNTED)
    asked = request_of(body)
    with in_words(WORDS, body):
        tokens = await service.chat_tokens(thinking_if_known(asked, service))
    return JSONResponse({"input_tokens": len(tokens)})


async def _events(
    service: Service, body: Body, answer: ChatAnswer, writer: MessageWriter, stops: Container[str]
) -> AsyncGenerator[bytes, None]:
    begun = False
    async for events in answer.events():
        made = [] if begun else writer.begin(answer.usage)  # usage is known after the prefill
        begun = True
        yield typed_events([*made, *(each for event in events for each in writer.push(event))])
    end = writer.end(stop_of(answer.choices[0], stops), answer.usage)
    with_records(service, body, answer, end[-1])
    yield typed_events(end)


ROUTES = [
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]
