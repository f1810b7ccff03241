"""``/v1/chat/completions``: OpenAI's chats."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.generate.generation import writing_of
from aleator.server.auth import own_namespace
from aleator.server.chat import ChatAnswer, ChatChoice, ChatEvent, ChatRequest
from aleator.server.dialects.openai_forms import (
    FINISH,
    SHARED,
    Head,
    chat_logprobs,
    failed,
    texts_of_chunks,
)
from aleator.server.errors import spelled_as
from aleator.server.fields import Body, Field, Fields, switch, whole
from aleator.server.openai_fields import CHAT, NOT_OF_CHATS, force_chat
from aleator.server.service import read_body
from aleator.server.slots import Slots
from aleator.server.streaming import EventStream, Line, dumps, unless_gone

MOST_SLOT = 2**31 - 1
"""``id_slot`` is looked at once it is known how many there are."""

FIELDS = Fields(
    *SHARED,
    *CHAT,
    Field("parallel_tool_calls", switch, True),
    Field("id_slot", whole(-1, MOST_SLOT), -1),
    without=NOT_OF_CHATS,
)


async def chat_completions(request: Request) -> Response:
    """Answer messages, at once or as a stream."""
    service, body = await read_body(request, FIELDS)
    own = body.own
    head = Head(service, "chat.completion", "chatcmpl", own)
    slots: Slots = request.app.state.slots
    caller = own_namespace(own["cache_salt"])
    asked = replace(chat_request(body), namespace=slots.namespace(own["id_slot"], caller))
    with spelled_as(body.names):
        answer = await service.chat(asked)

    def over() -> None:
        for choice in answer.choices:
            made = choice.generation
            tokens = made.request.tokens
            slots.ended(
                own["id_slot"], caller, [*tokens, *writing_of(made).completion.tokens], len(tokens)
            )

    def gone() -> None:
        answer.cancel()
        over()

    headers = {"x-aleator-seed": str(answer.seed)}
    if own["stream"]:
        writer = ChunkWriter(answer, head.of("chat.completion.chunk"))
        line = Line[ChatEvent](writer.chunks)
        events = writer.stream(line, over, own["return_progress"])
        return EventStream(events, gone, failed, headers=headers, line=line)
    try:
        await unless_gone(request, answer.collected(), answer.cancel)
    finally:
        over()
    made = head.whole(
        [_choice(choice) for choice in answer.choices],
        answer.usage,
        answer.generations,
        answer.generations[0],
        answer.choices[0].completion_tokens,
    )
    return JSONResponse(made, headers=headers)


async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a chat has; llama-server's."""
    service, body = await read_body(request, FIELDS)
    asked = chat_request(body)
    with spelled_as(body.names):
        tokens = await service.chat_tokens(asked)
    return JSONResponse({"input_tokens": len(tokens)})


def chat_request(body: Body) -> ChatRequest:
    """What a body asks for, as all dialects ask it."""
    own, arguments = body.own, force_chat(body)
    return ChatRequest(
        messages=own["messages"],
        tools=own["tools"],
        tool_choice=own["tool_choice"],
        parallel_tool_calls=own["parallel_tool_calls"],
        enable_thinking=own["enable_thinking"],
        template_arguments=arguments,
        options=body.options,
        n=own["n"],
        deadline=own["deadline"],
        namespace=own_namespace(own["cache_salt"]),
    )


def _choice(choice: ChatChoice) -> dict[str, Any]:
    """An answer that has ended."""
    message = choice.message
    made: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning_content:
        made["reasoning_content"] = message.reasoning_content
    if message.tool_calls:  # also one that was cut off, as far as it came
        made["tool_calls"] = [call.as_json() for call in message.tool_calls]
        made["content"] = message.content or None
    return {
        "index": choice.index,
        "message": made,
        "finish_reason": FINISH.get(choice.stop or "stop", "stop"),
        "stop_reason": choice.stop_string,
        "logprobs": chat_logprobs(choice.logprobs),
    }


class ChunkWriter:
    """Writes an answer as the chunks of a stream."""

    def __init__(self, answer: ChatAnswer, head: Head) -> None:
        self._answer, self._head = answer, head
        end = '},"logprobs":null,"finish_reason":null}]'
        # What stands around a text, by the kind of its event and its choice, where it is all that is told.
        self._around = {
            (kind, i): head.around(f'[{{"index":{i},"delta":{{"{name}":', end)
            for kind, name in (("content", "content"), ("reasoning", "reasoning_content"))
            for i in range(len(answer.choices))
        }

    async def stream(
        self, line: Line[ChatEvent], over: Callable[[], None], progress: bool
    ) -> AsyncGenerator[bytes, None]:
        """All chunks; what is there together is sent together."""
        answer, head = self._answer, self._head
        role = {"role": "assistant", "content": ""}
        yield b"".join(head.chunk(dumps([_delta(each.index, role)])) for each in answer.choices)
        if progress:
            async for told in writing_of(answer.generations[0]).prompt_progress():
                yield head.progress(_delta(0, {}), told)
        async for events in answer.events(line):
            data = line.write(events)
            if data:
                yield data
        over()
        yield head.end(answer.usage, answer.generations, answer.choices[0].completion_tokens)

    def chunks(self, events: Sequence[ChatEvent]) -> bytes:
        """The chunks of events; b"" where they have none."""
        made = []
        for event in events:
            around = None if event.logprobs else self._around.get((event.kind, event.choice))
            if around is not None:
                made.append(texts_of_chunks([event.text], around))
            elif event.kind != "call_end" or event.logprobs:
                choice = self._answer.choices[event.choice]
                more = self._head.timed(choice.generation, choice.completion_tokens)
                made.append(self._head.chunk(dumps([_told(event, choice)]) + more))
        return b"".join(made)


def _told(event: ChatEvent, choice: ChatChoice) -> dict[str, Any]:
    """What a chunk tells of an answer."""
    delta: dict[str, Any] = {}
    if event.kind == "content":
        delta = {"content": event.text}
    elif event.kind == "reasoning":
        delta = {"reasoning_content": event.text}
    elif event.kind == "call":
        function = {"name": event.text, "arguments": ""}
        call = {"index": event.index, "id": event.id, "type": "function", "function": function}
        delta = {"tool_calls": [call]}
    elif event.kind == "arguments":
        delta = {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    made = _delta(event.choice, delta)
    if event.logprobs:
        made["logprobs"] = chat_logprobs(event.logprobs)
    if event.stop is not None:
        made["finish_reason"] = FINISH.get(event.stop, "stop")
        made["stop_reason"] = choice.stop_string
    return made


def _delta(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/chat/completions/input_tokens", input_tokens, methods=["POST"]),
    Route("/chat/completions/input_tokens", input_tokens, methods=["POST"]),
]
