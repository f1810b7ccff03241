"""``/v1/chat/completions``: OpenAI's chats."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.generate.generation import writing_of
from aleator.replay import KEY
from aleator.server.bodies import body_of
from aleator.server.caller import own_namespace
from aleator.server.chatting import ChatAnswer, ChatChoice, ChatEvent, ChatRequest, ChatStop
from aleator.server.dialects.openai_errors import render_error as render_error
from aleator.server.dialects.openai_forms import (
    SHARED,
    Head,
    chat_logprobs,
    check_stream_options,
    dumps,
    failed,
    texts_of_chunks,
    timed,
    usage,
    with_progress,
)
from aleator.server.dialects.timings import timings
from aleator.server.errors import spelled_as
from aleator.server.fields import (
    MOST_TOP,
    Body,
    Field,
    Fields,
    anything,
    mapping,
    switch,
    text,
    whole,
)
from aleator.server.records import replay_field
from aleator.server.service import Service
from aleator.server.slots import Slots
from aleator.server.sse import DONE, EventStream, unless_gone
from aleator.server.structured import force_form
from aleator.server.wire import Line

MOST_SLOT = 2**31 - 1
"""``id_slot`` is looked at once it is known how many there are."""

FIELDS = Fields(
    *SHARED,
    Field("messages", anything, required=True),
    Field("tools", anything),
    Field("tool_choice", anything),
    Field("parallel_tool_calls", switch, True),
    Field("logprobs", switch, False),
    Field("top_logprobs", whole(0, MOST_TOP)),
    Field("reasoning_effort", text),
    Field("enable_thinking", switch),
    Field("chat_template_kwargs", mapping),
    Field("id_slot", whole(-1, MOST_SLOT), -1),
    without=("echo", "parse_special", "shown_tokens", "reasoning_marks"),
)

FINISH: Mapping[ChatStop, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "deadline": "length",
    "interrupted": "interrupted",
}
"""OpenAI's ``finish_reason``."""


async def chat_completions(request: Request) -> Response:
    """Answer messages, at once or as a stream."""
    service: Service = request.app.state.service
    body = FIELDS.read(await body_of(request), service.options.lenient)
    own = body.own
    head = Head(service, "chat.completion", "chatcmpl", service.check_model(own["model"]))
    include_usage = check_stream_options(own)
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

    headers = {"x-aleator-seed": str(answer.seed)}
    if own["stream"]:
        head = head.of("chat.completion.chunk")
        replays = service if own["aleator_replay"] else None

        def gone() -> None:
            answer.cancel()
            over()

        nothing = "null" if include_usage else ""
        times: bool = own["timings_per_token"]
        around = {} if times else _around(answer, head, nothing)
        line = Line[ChatEvent](partial(_chunks, answer, head, nothing, times, around))
        return EventStream(
            _events(
                answer, head, include_usage, replays, over, line, times, own["return_progress"]
            ),
            gone,
            failed,
            headers=headers,
            line=line,
        )
    try:
        choices = await unless_gone(request, answer.finished(), answer.cancel)
    finally:
        over()
    made = {
        **head.fields,
        "choices": [_choice(choice) for choice in choices],
        "usage": usage(answer.usage),
        "seed": answer.seed,
    }
    if own["timings_per_token"]:
        made["timings"] = timings(answer.choices[0].generation.stats, choices[0].completion_tokens)
    if own["aleator_replay"]:
        made[KEY] = replay_field(service, (choice.generation for choice in answer.choices))
    return JSONResponse(made, headers=headers)


async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a chat has; llama-server's."""
    service: Service = request.app.state.service
    body = FIELDS.read(await body_of(request), service.options.lenient)
    service.check_model(body.own["model"])
    asked = chat_request(body)
    with spelled_as(body.names):
        tokens = await service.chat_tokens(asked)
    return JSONResponse({"input_tokens": len(tokens)})


def chat_request(body: Body) -> ChatRequest:
    """What a body asks for, as all dialects ask it.

    Raises:
        ParameterError: A field that cannot be honoured; names it.
    """
    own = body.own
    force_form(body)
    top = own["top_logprobs"]
    if top and not own["logprobs"]:
        raise ParameterError("top_logprobs", "top_logprobs needs logprobs=true")
    if own["logprobs"]:
        body.options["logprobs"] = top or 0
    arguments = own["chat_template_kwargs"]
    if own["reasoning_effort"] is not None:
        arguments = {**(arguments or {}), "reasoning_effort": own["reasoning_effort"]}
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
    made: dict[str, Any] = {
        "role": "assistant",
        "content": message.content,
        "refusal": None,
    }
    if message.reasoning_content:
        made["reasoning_content"] = message.reasoning_content
    if message.tool_calls:  # also one that was cut off, as far as it came
        made["tool_calls"] = [call.as_json() for call in message.tool_calls]
        made["content"] = message.content or None
    return {
        "index": choice.index,
        "message": made,
        "finish_reason": FINISH[choice.stop or "stop"],
        "stop_reason": choice.stop_string,
        "logprobs": chat_logprobs(choice.logprobs),
    }


async def _events(
    answer: ChatAnswer,
    head: Head,
    include_usage: bool,
    replays: Service | None,
    over: Callable[[], None],
    line: Line[ChatEvent],
    times: bool,
    progress: bool,
) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream; what is there together is sent together.

    Args:
        answer: Of the model.
        head: Of the chunks.
        include_usage: Whether it ends with its usage.
        replays: Makes the records that it ends with; None: it does not.
        over: Called when the answers have ended.
        line: Writes the chunks of events, and sends them itself where it can.
        times: Whether the usage has timings with it.
        progress: Whether the progress of the prompt is told before the answers.
    """
    nothing = "null" if include_usage else ""
    role = {"role": "assistant", "content": ""}
    yield b"".join(
        head.chunk(dumps([_delta(choice.index, role)]), nothing) for choice in answer.choices
    )
    if progress:
        begun = dumps([_delta(0, {})])
        async for each in writing_of(answer.choices[0].generation).prompt_progress():
            yield head.chunk(begun + with_progress(each, times), nothing)
    async for events in answer.events(line):
        data = line.write(events)
        if data:
            yield data
    over()
    end = b""
    if include_usage:
        more = _timings(answer.choices[0]) if times else ""
        end = head.chunk("[]" + more, dumps(usage(answer.usage)))
    if replays is not None:
        made = (choice.generation for choice in answer.choices)
        end += head.chunk("[]", replay=replay_field(replays, made))
    yield end + DONE


Around = Mapping[tuple[str, int], tuple[bytes, bytes]]
"""By the kind of an event and its choice, what stands around its text where the text is all that is told."""


def _around(answer: ChatAnswer, head: Head, nothing: str) -> Around:
    end = '},"logprobs":null,"finish_reason":null}]'
    return {
        (kind, i): head.around(f'[{{"index":{i},"delta":{{"{name}":', end, nothing)
        for kind, name in (("content", "content"), ("reasoning", "reasoning_content"))
        for i in range(len(answer.choices))
    }


def _chunks(
    answer: ChatAnswer,
    head: Head,
    nothing: str,
    times: bool,
    around: Around,
    events: Sequence[ChatEvent],
) -> bytes:
    """The chunks of events; b"" where they have none.

    Args:
        answer: Of the model.
        head: Of the chunks.
        nothing: JSON of their usage.
        times: Whether they tell how long the answer took so far.
        around: See :data:`Around`.
        events: Of one answer.
    """
    made = []
    for event in events:
        plain = None if event.logprobs else around.get((event.kind, event.choice))
        if plain is not None:
            made.append(texts_of_chunks([event.text], plain))
        elif event.kind != "call_end" or event.logprobs:
            more = _timings(answer.choices[event.choice]) if times else ""
            made.append(head.chunk(_written(event, answer) + more, nothing))
    return b"".join(made)


def _timings(choice: ChatChoice) -> str:
    return timed(choice.generation, choice.completion_tokens)


def _written(event: ChatEvent, answer: ChatAnswer) -> str:
    """The choices of a chunk, as JSON."""
    delta: dict[str, Any] = {}
    if event.kind == "content":
        delta = {"content": event.text}
    elif event.kind == "reasoning":
        delta = {"reasoning_content": event.text}
    elif event.kind == "call":
        function = {"name": event.text, "arguments": ""}
        delta = {
            "tool_calls": [
                {"index": event.index, "id": event.id, "type": "function", "function": function}
            ]
        }
    elif event.kind == "arguments":
        delta = {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    made = _delta(event.choice, delta)
    if event.logprobs:
        made["logprobs"] = chat_logprobs(event.logprobs)
    if event.stop is not None:
        made["finish_reason"] = FINISH[event.stop]
        made["stop_reason"] = answer.choices[event.choice].stop_string
    return dumps([made])


def _delta(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/chat/completions/input_tokens", input_tokens, methods=["POST"]),
    Route("/chat/completions/input_tokens", input_tokens, methods=["POST"]),
]
