"""``/v1/responses``: OpenAI's Responses, on top of a chat.

Nothing is stored: a request contains the whole input, and a response says ``"store": false``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from copy import deepcopy
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.generate.generation import reader_of
from aleator.server.chat import ChatAnswer, ChatEvent, ChatStop, Usage
from aleator.server.dialects.nested import in_words, with_records
from aleator.server.dialects.openai_forms import progressed, timings
from aleator.server.dialects.responses_input import FIELDS, STATELESS, repeated, request_of
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import Body
from aleator.server.openai_fields import token_logprobs
from aleator.server.service import Service, read_body
from aleator.server.streaming import EventStream, typed_events, unless_gone

Event = dict[str, Any]

INCOMPLETE: Mapping[ChatStop, str | None] = {
    "stop": None,
    "tool_calls": None,
    "length": "max_output_tokens",
    "loop": "loop",
    "deadline": "deadline",
    "interrupted": "interrupted",
}
"""Why a response is incomplete, by why the answer ended; None: it is complete."""

WORDS = {
    ".function.": ".",
    "tool_choice.allowed_tools": "tool_choice",
    "json_schema": "text.format.schema",
    "messages": "input",
    "chat_template_kwargs has 'reasoning_effort'": "reasoning.effort",
    "chat_template_kwargs": "reasoning.effort",
}
"""Responses' names for what errors of a chat mention."""


class ResponseWriter:
    """Writes a response as it is made; ``output`` has the items so far."""

    def __init__(self, name: str, created: int, fixed: Mapping[str, Any]) -> None:
        self._name, self._created, self._fixed = name, created, fixed
        self.output: list[dict[str, Any]] = []
        self._number = 0
        self._open = False

    def begin(self) -> list[Event]:
        """The events before the answer."""
        response = self.response("in_progress", None)
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def progress(self, about: Mapping[str, Any]) -> list[Event]:
        """The event of a prompt chunk, in llama-server's form."""
        said = {"id": f"resp_{self._name}", "object": "response", "status": "in_progress"}
        return [self._event("response.in_progress", response=said, **about)]

    def push(self, event: ChatEvent) -> list[Event]:
        """The events of a piece of the answer."""
        if event.kind == "call":
            call = {"call_id": event.id, "name": event.text, "arguments": ""}
            return self._add("fc", "function_call", call)
        if event.kind == "arguments":
            self.output[-1]["arguments"] += event.text
            return [self._of_item("response.function_call_arguments.delta", delta=event.text)]
        if event.kind == "call_end":
            return self._close()
        if event.kind == "end":  # the remaining tokens have no text
            return []
        begun = self._begin("reasoning" if event.kind == "reasoning" else "message")
        part, said = self._part, Event(delta=event.text)
        part["text"] += event.text
        if "logprobs" in part:
            said["logprobs"] = token_logprobs(event.logprobs)
            part["logprobs"] += said["logprobs"]
        return [*begun, self._of_part(f"response.{part['type']}.delta", said)]

    def end(self, stop: ChatStop, usage: Usage) -> list[Event]:
        """The events after the answer; the last one holds the whole response."""
        incomplete = INCOMPLETE[stop]
        status = "completed" if incomplete is None else "incomplete"
        empty = [] if self.output else self._begin("message")
        closed = [*empty, *self._close(status)]
        response = self.response(status, usage_of(usage), incomplete)
        response["completed_at"] = int(time.time())
        return [*closed, self._event(f"response.{status}", response=response)]

    def fail(self, error: ApiError) -> list[Event]:
        """The events of an error after the response has begun."""
        response = self.response("failed", None)
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return [self._event("response.failed", response=response)]

    def response(
        self, status: str, usage: Mapping[str, Any] | None, incomplete: str | None = None
    ) -> dict[str, Any]:
        """The response so far."""
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "completed_at": None,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            **self._fixed,
            "output": [dict(item) for item in self.output],
            "previous_response_id": None,
            "max_tool_calls": None,
            "prompt_cache_key": None,
            "safety_identifier": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "usage": usage,
        }

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self.output[-1]["content"][-1]
        return part

    def _begin(self, kind: str) -> list[Event]:
        """Begin a message or reasoning item, unless one is open."""
        if self._open and self.output[-1]["type"] == kind:
            return []
        part: dict[str, Any]
        if kind == "message":
            begun = self._add("msg", kind, {"role": "assistant", "content": []})
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            begun = self._add("rs", kind, {"summary": [], "content": [], "encrypted_content": None})
            part = {"type": "reasoning_text", "text": ""}
        self.output[-1]["content"] = [part]
        return [*begun, self._of_part("response.content_part.added", {"part": deepcopy(part)})]

    def _add(self, word: str, kind: str, more: Mapping[str, Any]) -> list[Event]:
        """End the open item, and begin another."""
        closed = self._close()
        name = f"{word}_{self._name}_{len(self.output)}"
        self.output.append({"id": name, "type": kind, "status": "in_progress", **more})
        self._open = True
        return [*closed, self._of_output("added")]

    def _close(self, status: str = "completed") -> list[Event]:
        """End the open item."""
        if not self._open:
            return []
        self._open = False
        item = self.output[-1]
        item["status"] = status
        if item["type"] == "function_call":
            said = {"name": item["name"], "arguments": item["arguments"]}
            made = [self._of_item("response.function_call_arguments.done", **said)]
        else:
            part = self._part
            said = {name: part[name] for name in ("text", "logprobs") if name in part}
            made = [
                self._of_part(f"response.{part['type']}.done", said),
                self._of_part("response.content_part.done", {"part": dict(part)}),
            ]
        return [*made, self._of_output("done")]

    def _of_output(self, what: str) -> Event:
        number, item = len(self.output) - 1, dict(self.output[-1])
        return self._event(f"response.output_item.{what}", output_index=number, item=item)

    def _of_part(self, kind: str, fields: Mapping[str, Any]) -> Event:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        item = self.output[-1]
        return self._event(kind, item_id=item["id"], output_index=len(self.output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def usage_of(used: Usage) -> dict[str, Any]:
    """Token counts in the form of Responses."""
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.total,
    }


async def responses(request: Request) -> Response:
    """Answer input items, as a whole or as a stream."""
    service, body = await read_body(request, FIELDS)
    asked = request_of(body)
    with in_words(WORDS, body):
        answer = await service.chat(asked)
    writer = ResponseWriter(secrets.token_hex(12), int(time.time()), _fixed(service, body, answer))
    headers = {"x-aleator-seed": str(answer.seed)}
    if body.own["stream"]:
        return EventStream(
            _events(service, body, answer, writer),
            answer.cancel,
            lambda error: typed_events(writer.fail(api_error(error))),
            headers=headers,
        )
    for each in await unless_gone(request, answer.collected(), answer.cancel):
        writer.push(each)
    last = writer.end(answer.choices[0].stop or "stop", answer.usage)[-1]
    made = with_records(service, body, answer, last["response"]) | _times(body, answer)
    return JSONResponse(made, headers=headers)


async def input_tokens(request: Request) -> Response:
    """Return the number of prompt tokens of a response; generates nothing."""
    service, body = await read_body(request, FIELDS)
    asked = request_of(body)
    with in_words(WORDS, body):
        tokens = await service.chat_tokens(asked)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})


async def stored(request: Request) -> Response:
    """Look up a stored response, which never exists."""
    raise ApiError(404, STATELESS, "response_id", "not_found")


def _fixed(service: Service, body: Body, answer: ChatAnswer) -> dict[str, Any]:
    """The parts of a response that are known from its beginning."""
    params = answer.choices[0].generation.request.params
    return {
        **repeated(body),
        "model": body.own["model"],
        "seed": answer.seed,
        "system_fingerprint": service.fingerprint,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }


async def _events(
    service: Service, body: Body, answer: ChatAnswer, writer: ResponseWriter
) -> AsyncGenerator[bytes, None]:
    yield typed_events(writer.begin())
    if body.own["return_progress"]:
        async for progress in reader_of(answer.choices[0].generation).prompt_progress():
            about = progressed(progress, body.own["timings_per_token"])
            yield typed_events(writer.progress(about))
    async for events in answer.events():
        made = [each for event in events for each in writer.push(event)]
        for each in made:
            if each["type"].endswith(".delta"):
                each |= _times(body, answer)
        yield typed_events(made)
    end = writer.end(answer.choices[0].stop or "stop", answer.usage)
    with_records(service, body, answer, end[-1]["response"])
    end[-1] |= _times(body, answer)
    yield typed_events(end)


def _times(body: Body, answer: ChatAnswer) -> dict[str, Any]:
    """llama-server's ``timings`` so far, if requested."""
    if not body.own["timings_per_token"]:
        return {}
    choice = answer.choices[0]
    return {"timings": timings(choice.generation.stats, choice.completion_tokens)}


ROUTES = [
    Route("/v1/responses", responses, methods=["POST"]),
    Route("/responses", responses, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/v1/responses/{name:path}", stored, methods=["GET", "DELETE", "POST"]),
]
