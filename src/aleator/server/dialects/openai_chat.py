"""``/v1/chat/completions``: OpenAI's chats; and the responses and chunks that completions have, too."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from json.encoder import encode_basestring
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.engine.replay import KEY
from aleator.generate.generation import Generation, PromptProgress, reader_of
from aleator.server import fields, openai_fields
from aleator.server.auth import namespace_asked, own_namespace
from aleator.server.chat import ChatAnswer, ChatChoice, ChatEvent, ChatRequest, Usage
from aleator.server.dialects.llama_slots import Slots
from aleator.server.dialects.openai_beams import BEAMS, found_by, search_of
from aleator.server.dialects.openai_forms import (
    chat_logprobs,
    progressed,
    render_error,
    replay_field,
    timings,
    usage,
)
from aleator.server.fields import MOST_COMPLETIONS, Body, Field, Fields
from aleator.server.service import Service, read_body
from aleator.server.streaming import DONE, EventStream, Line, dumps, failing, unless_gone

FINISH = {
    "tool_calls": "tool_calls",
    "length": "length",
    "context": "length",
    "loop": "loop",
    "deadline": "length",
    "interrupted": "interrupted",
}
"""OpenAI's ``finish_reason`` where it is not "stop"."""

MOST_SLOT = 2**31 - 1
"""``id_slot`` is looked at once it is known how many there are."""


def _stream_options(name: str, value: Any) -> dict[str, Any]:
    made = fields.mapping(name, value)
    fields.known_keys(name, made, ("include_usage", "include_obfuscation"))
    for each, wanted in made.items():
        fields.switch(f"{name}.{each}", False if wanted is None else wanted)
    if made.get("include_obfuscation"):
        raise ParameterError(name, f"{name}.include_obfuscation=true: nothing is obfuscated")
    return made


failed = failing(render_error)

SHARED = (
    Field("model", fields.text),
    Field("stream", fields.switch, False),
    Field("stream_options", _stream_options, {}),
    Field("n", fields.whole(1, MOST_COMPLETIONS), 1),
    Field("return_token_ids", fields.switch, False),
    openai_fields.KEPT,
    *BEAMS,
    *openai_fields.OURS,
    *openai_fields.TIMES,
)
"""Fields of completions and chats alike."""

FIELDS = Fields(
    *SHARED,
    *openai_fields.CHAT,
    Field("parallel_tool_calls", fields.switch, True),
    Field("id_slot", fields.whole(-1, MOST_SLOT), -1),
    without=openai_fields.NOT_OF_CHATS,
)


class Head:
    """What all chunks of one response begin with, and what they have in common."""

    def __init__(self, service: Service, kind: str, prefix: str, own: Mapping[str, Any]) -> None:
        self._service = service
        self.token_ids = own["return_token_ids"]  # whether tokens are given, too, in vLLM's fields
        self._times, self._replay = own["timings_per_token"], own["aleator_replay"]
        self._fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": own["model"],
            "system_fingerprint": service.fingerprint,
        }
        self._begin = f'data: {dumps(self._fields)[:-1]},"choices":'.encode()
        if own["stream_options"] and not own["stream"]:
            raise ParameterError("stream_options is for streams: give stream=true")
        # JSON of the usage of a chunk that has none; "": chunks have no such field.
        self.nothing = "null" if own["stream_options"].get("include_usage") else ""

    def whole(
        self,
        choices: Sequence[Mapping[str, Any]],
        used: Usage,
        generations: Iterable[Generation],
        first: Generation,
        n: int,
    ) -> dict[str, Any]:
        """A response that is no stream; timings are those of the first completion, which has ``n`` tokens."""
        made = {**self._fields, "choices": choices, "usage": usage(used), "seed": first.seed}
        if self._times:
            made["timings"] = timings(first.stats, n)
        if self._replay:
            made[KEY] = replay_field(self._service, generations)
        return made

    def chunk(self, choices: str, usage: str | None = None, more: str = "") -> bytes:
        """An event of a stream; all arguments are JSON.

        ``choices`` may have :meth:`timed` behind it; ``usage``: "": there is no such field, None: that of a
        chunk without.
        """
        usage = self.nothing if usage is None else usage
        generations = f',"usage":{usage}' if usage else ""
        return b"".join(
            (self._begin, choices.encode(), generations.encode(), more.encode(), b"}\n\n")
        )

    def around(self, before: str, after: str) -> tuple[bytes, bytes] | None:
        """What stands around a text in its chunk; None where they differ in more than it."""
        if self._times or self.token_ids:
            return None
        first, last = self.chunk(f"{before}\0{after}").split(b"\0")
        return first, last

    def timed(self, made: Generation, n: int) -> str:
        """``timings`` so far, as JSON that follows another field; "" where nobody asks for them."""
        return f',"timings":{dumps(timings(made.stats, n))}' if self._times else ""

    def progress(self, choice: Mapping[str, Any], progress: PromptProgress) -> bytes:
        """A chunk before the text, which says how far the prompt is."""
        return self.chunk(f"{dumps([choice])},{dumps(progressed(progress, self._times))[1:-1]}")

    def end(self, used: Usage, generations: Sequence[Generation], n: int) -> bytes:
        """The end of a stream: usage and records, where they are asked for."""
        made = b""
        if self.nothing:
            made = self.chunk("[]" + self.timed(generations[0], n), dumps(usage(used)))
        if self._replay:
            records = dumps(replay_field(self._service, generations))
            made += self.chunk("[]", "", f',"{KEY}":{records}')
        return made + DONE


def texts_of_chunks(texts: Sequence[str], around: tuple[bytes, bytes]) -> bytes:
    """The chunks of texts, one for each."""
    before, after = around
    return b"".join([b"%b%b%b" % (before, encode_basestring(x).encode(), after) for x in texts])


async def chat_completions(request: Request) -> Response:
    """Answer messages, at once or as a stream."""
    service, body = await read_body(request, FIELDS)
    own = body.own
    kind = "chat.completion.chunk" if own["stream"] else "chat.completion"
    head = Head(service, kind, "chatcmpl", own)
    slots: Slots = request.app.state.slots
    slot, caller = own["id_slot"], own_namespace(own["cache_salt"])
    asked = chat_request(body)
    service.check_kept(body, asked.n)

    async def answered(where: str, begin: bool = True) -> ChatAnswer:
        with body.spelling():
            return await service.chat(replace(asked, namespace=where), begin)

    async def look(where: str) -> int:
        return len((await answered(where, begin=False)).generations)

    answer = await answered(await slots.place(slot, own, look))

    def over() -> None:
        for made in answer.generations if slot >= 0 else ():
            slots.ended(slot, caller, made)

    def gone() -> None:
        answer.cancel()
        over()

    headers = {"x-aleator-seed": str(answer.seed)}
    if own["stream"]:
        writer = ChunkWriter(answer, head)
        line = Line[ChatEvent](writer.chunks)
        events = writer.stream(line, over, own["return_progress"])
        return EventStream(events, gone, failed, headers=headers, line=line)
    extras: list[dict[str, Any]] = [{} for _ in answer.choices]
    try:
        if asked.beams is not None:
            found = await unless_gone(request, found_by(answer.generations), answer.cancel)
            answer = answer.of([each for each, _ in found])
            extras = [more for _, more in found]
        await unless_gone(request, answer.collected(), answer.cancel)
    finally:
        over()
    made = head.whole(
        [_choice(choice) | more for choice, more in zip(answer.choices, extras, strict=True)],
        answer.usage,
        answer.generations,
        answer.generations[0],
        answer.choices[0].completion_tokens,
    )
    if head.token_ids:
        made["prompt_token_ids"] = answer.generations[0].request.tokens
        for each, choice in zip(made["choices"], answer.choices, strict=True):
            each["token_ids"] = choice.tokens
    return JSONResponse(made, headers=headers)


async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a chat has; llama-server's."""
    service, body = await read_body(request, FIELDS)
    asked = chat_request(body)
    with body.spelling():
        tokens = await service.chat_tokens(asked)
    return JSONResponse({"input_tokens": len(tokens)})


def chat_request(body: Body) -> ChatRequest:
    """What a body asks for, as all dialects ask it."""
    own, arguments = body.own, openai_fields.force_chat(body)
    beams = search_of(body)
    if own["best_of"] and beams is None:
        raise ParameterError("best_of needs use_beam_search=true in a chat: give n")
    return ChatRequest(
        messages=own["messages"],
        tools=own["tools"],
        tool_choice=own["tool_choice"],
        parallel_tool_calls=own["parallel_tool_calls"],
        enable_thinking=own["enable_thinking"],
        template_arguments=arguments,
        options=body.options,
        n=own["n"],
        beams=beams,
        deadline=own["deadline"],
        namespace=namespace_asked(own),
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
        **openai_fields.kept_tokens(choice.logprobs),
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
        prompt = answer.generations[0].request.tokens
        more = f',"prompt_token_ids":{dumps(prompt)}' if head.token_ids else ""
        yield b"".join(
            head.chunk(dumps([_delta(each.index, role)]) + more) for each in answer.choices
        )
        if progress:
            async for so_far in reader_of(answer.generations[0]).prompt_progress():
                yield head.progress(_delta(0, {}), so_far)
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
                continue
            ids = {"token_ids": event.tokens} if self._head.token_ids else {}
            if event.kind != "call_end" or event.logprobs or any(ids.values()):
                choice = self._answer.choices[event.choice]
                more = self._head.timed(choice.generation, choice.completion_tokens)
                made.append(self._head.chunk(dumps([_choice_of_chunk(event, choice) | ids]) + more))
        return b"".join(made)


def _choice_of_chunk(event: ChatEvent, choice: ChatChoice) -> dict[str, Any]:
    """The choice of a chunk, for an event of an answer."""
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
