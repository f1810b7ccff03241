"""Converts requests of Ollama's chat and generate to messages, tools and options of a chat."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aleator.core.errors import ParameterError
from aleator.server import fields
from aleator.server.accepted import Accepted
from aleator.server.auth import namespace_asked
from aleator.server.chat import ChatRequest
from aleator.server.dialects.nested import Nested, arguments_of, chat_call, of_body
from aleator.server.fields import SPELLINGS, Body, Field, Fields, wrong
from aleator.server.openai_fields import OURS, template_arguments

_LOADED = Accepted("one model stays loaded; of several, each as long as it says")
_MACHINE = Accepted("it says how the machine works, and changes no text")
_PICTURES = Accepted("pictures are not supported, only text", ([],))

REQUEST: Mapping[str, Accepted] = {
    "keep_alive": _LOADED,
    "images": _PICTURES,
    "truncate": Accepted("a prompt is not cut: shorten it", (False,)),
    "shift": Accepted("give context_shift among the options", (False,)),
    **dict.fromkeys(("width", "height", "steps"), Accepted("pictures are not made", (0,))),
}
"""Fields of requests that are accepted, or refused except for some values."""

GENERATE: Mapping[str, Accepted] = {
    **REQUEST,
    "suffix": Accepted("give /infill the text before and after", ("",)),
    "template": Accepted("templates are chosen at the start: aleator serve --chat-template", ("",)),
    "context": Accepted("give /api/chat the messages so far", ([],)),
}

MACHINE: Mapping[str, Accepted] = {
    **dict.fromkeys(
        (
            "numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "use_mmap", "use_mlock",
            "num_thread", "logits_all", "draft_num_predict",
        ),
        _MACHINE,
    ),
    "vocab_only": Accepted("the model is loaded whole", (False,)),
    "embedding_only": Accepted("give /v1/embeddings the text", (False,)),
    "penalize_newline": Accepted("the penalties treat all tokens alike: give logit_bias", (True,)),
    "tfs_z": Accepted("give min_p or top_p", (1, 1.0)),
}  # fmt: skip
"""Options that are accepted, or refused except for some values."""


def _format(name: str, value: Any) -> Any:
    """Check a format: an empty text for any text; "json"; or a JSON schema."""
    if value not in ("", "json") and not isinstance(value, Mapping):
        raise wrong(name, value, 'give "json" or a JSON schema')
    return value


_SHARED = (
    Field("model", fields.text, required=True),
    Field("options", fields.mapping),
    Field("format", _format, ""),
    Field("stream", fields.switch, True),
    Field("think", fields.of_type(bool | str, "give true, false, or a level such as 'low'")),
    Field("logprobs", fields.switch, False),
    Field("top_logprobs", fields.whole(0, 20), 0),
    Field("chat_template_kwargs", fields.mapping),
    *OURS,
)
CHAT = Fields(
    *_SHARED,
    Field("messages", fields.listing, ()),
    Field("tools", fields.anything),
    options={},
    accepted=REQUEST,
)
GENERATION = Fields(
    *_SHARED,
    Field("prompt", fields.text, ""),
    Field("system", fields.text, ""),
    Field("raw", fields.switch, False),
    options={},
    accepted=GENERATE,
)
OPTIONS = Fields(
    Field("num_ctx", fields.whole(0, 2**31 - 1), 0),
    without=("logprobs", "echo", "json_schema", "parse_special"),
    accepted=MACHINE,
    spellings={**SPELLINGS, "num_predict": "max_tokens", "num_keep": "n_keep"},
    engines=("llama.cpp",),
    strict=(),
)


def checked_options(body: Body, n_ctx: int) -> Body:
    """Read the options of a request; ParameterError for wrong ones."""
    try:
        given = OPTIONS.read(body.own["options"] or {}, body.lenient)
    except ParameterError as error:
        raise ParameterError(f"options.{error.parameter}", f"options: {error}") from None
    wanted = given.own["num_ctx"]
    if wanted > n_ctx:
        raise ParameterError(
            "options.num_ctx",
            f"options.num_ctx={wanted}: the server has {n_ctx} positions: start it with a larger --ctx-size",
        )
    return given


def options_of(body: Body, n_ctx: int) -> dict[str, Any]:
    """Options of a generation by their names here; the client's spelling is noted in the body."""
    given = checked_options(body, n_ctx)
    body.spelled |= {name: f"options.{word}" for name, word in given.spelled.items()}
    made = dict(given.options)
    most = made.get("max_tokens")
    if most == -2:  # until the context is full
        made["max_tokens"] = -1
    if body.own["logprobs"]:
        made["logprobs"] = body.own["top_logprobs"]
    elif body.own["top_logprobs"]:
        raise wrong("top_logprobs", body.own["top_logprobs"], "it needs logprobs=true")
    shape = body.own["format"]
    if shape:
        body.force("format", {"json_schema": {"type": "object"} if shape == "json" else shape})
    return made | body.options


def chat_of(body: Body, n_ctx: int) -> ChatRequest:
    """Convert a request of ``/api/chat`` to a chat request."""
    return _asked(body, messages_of(of_body(body)), body.own["tools"], n_ctx)


def generation_of(body: Body, n_ctx: int) -> ChatRequest:
    """Convert a request of ``/api/generate`` to a chat request."""
    messages = [
        {"role": role, "content": body.own[name]}
        for role, name in (("system", "system"), ("user", "prompt"))
        if body.own[name]
    ]
    return _asked(body, messages, None, n_ctx)


def _asked(body: Body, messages: object, tools: object, n_ctx: int) -> ChatRequest:
    think = body.own["think"]
    level = think if isinstance(think, str) else None
    return ChatRequest(
        messages=messages,
        tools=tools,
        enable_thinking=None if level else think,
        template_arguments=template_arguments(body.own, level),
        options=options_of(body, n_ctx),
        deadline=body.own["deadline"],
        namespace=namespace_asked(body.own),
    )


def messages_of(body: Nested) -> list[dict[str, Any]]:
    """Messages of a chat.

    Ollama's calls need no ids, so missing ones are added; a result without an id answers its tool's first call
    that has no answer yet.
    """
    made: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    open_calls: list[dict[str, Any]] = []  # without a result
    for message in body.objects("messages", "a list of messages"):
        message.take({"images": _PICTURES})
        if message.value("role") is None:
            raise ParameterError("messages", f"{message.path('role')} is missing: give 'user'")
        role = message.choice("role", "user", "assistant", "system", "tool")
        content = message.optional("content", fields.text) or ""
        entry: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            thought = message.optional("thinking", fields.text)
            if thought:
                entry["reasoning_content"] = thought
            here = [
                _call(each, len(calls) + i) for i, each in enumerate(message.objects("tool_calls"))
            ]
            if here:
                entry["tool_calls"] = here
            calls += here
            open_calls += here
        elif role == "tool":
            entry |= _answer(message, calls, open_calls)
        message.done()
        made.append(entry)
    return made


def _call(call: Nested, place: int) -> dict[str, Any]:
    """A call in the form of chat completions; a missing id is made from its place."""
    call.accept("type")
    given = call.optional("id", fields.text)
    function = call.nested("function", "an object with a name and arguments")
    call.done()
    if function is None:
        raise wrong(call.path("function"), None, "give an object with a name and arguments")
    function.accept("index")
    name, arguments = function.text("name"), arguments_of(function, "arguments")
    function.done()
    return chat_call(given or f"call{place:05d}", name, arguments)


def _answer(
    message: Nested, calls: Sequence[dict[str, Any]], open_calls: list[dict[str, Any]]
) -> dict[str, str]:
    """The tool result as the answer to its call."""
    given = message.optional("tool_call_id", fields.text)
    name = message.optional("tool_name", fields.text)
    if given is not None:
        found = [call for call in calls if call["id"] == given]
        if not found:
            raise wrong(message.path("tool_call_id"), given, "no call before it has this id")
    else:
        found = [call for call in open_calls if name in (None, call["function"]["name"])]
    made = {"name": name} if name is not None else {}
    if found:
        if found[0] in open_calls:
            open_calls.remove(found[0])
        made["tool_call_id"] = found[0]["id"]
    return made


_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_PART = re.compile(rf"(\d+\.?\d*|\.\d+)({'|'.join(_UNITS)})", re.ASCII)
_MOST = 64  # characters of a duration


def seconds_of(value: object) -> float:
    """The seconds of ``keep_alive``: a number, or a duration such as "1h30m"; ParameterError for others."""
    made, given = math.nan, value
    if isinstance(value, int | float) and not isinstance(value, bool):
        made = float(min(max(value, -1e18), 1e18))
    elif isinstance(value, str) and len(value) <= _MOST:
        sign = -1.0 if value.startswith("-") else 1.0
        value = value.removeprefix("-" if sign < 0 else "+")
        if value and not _PART.sub("", value):
            made = sign * math.fsum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value))
        elif value == "0":
            made = 0.0
    if math.isnan(made):
        raise wrong(
            "keep_alive",
            given,
            'give seconds, or a duration such as "5m", "1h30m", "0", or "-1s" for always',
        )
    return made
