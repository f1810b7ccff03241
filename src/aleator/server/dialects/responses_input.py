"""Converts requests of OpenAI's Responses to messages, tools and options of a chat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aleator.core.errors import ParameterError
from aleator.server import fields
from aleator.server.accepted import LABEL, OPENAI, Accepted
from aleator.server.auth import namespace_asked
from aleator.server.chat import ChatRequest
from aleator.server.dialects import nested
from aleator.server.dialects.nested import Nested
from aleator.server.fields import SPELLINGS, Body, Field, Fields, wrong
from aleator.server.openai_fields import OURS, TIMES, template_arguments

LOGPROBS = "message.output_text.logprobs"
STATELESS = "responses are not stored here: send the earlier items in input"
RESPONSES: Mapping[str, Accepted] = {
    **{name: OPENAI[name] for name in ("user", "safety_identifier", "service_tier")},
    **{name: OPENAI[name] for name in ("prompt_cache_key", "prompt_cache_retention")},
    "store": Accepted("responses are not stored, and say so in their field store"),
    "max_tool_calls": Accepted("it limits tools of the server's own, of which there are none"),
    "stream_options": Accepted(
        "obfuscation hides the lengths of events; it is not part of the text"
    ),
    "previous_response_id": Accepted(STATELESS, ()),
    "conversation": Accepted(STATELESS, ()),
    "background": Accepted("a response is made while the request waits", (False,)),
    "prompt": Accepted("prompt templates are OpenAI's: send input", ()),
    "truncation": Accepted("shorten the input", ("disabled",)),
    "modalities": Accepted("only text is written", (["text"],)),
    "context_management": Accepted("shorten the input", ([],)),
    "moderation": Accepted("nothing is moderated", ()),
    "prompt_cache_options": Accepted("the prompt cache changes no text"),
    "background_options": Accepted("a response is made while the request waits", ()),
    "image": Accepted("pictures are not supported", ()),
    "access_programs": LABEL,
}
"""Fields of the request that are accepted, or refused except for some values."""

_TOOL: Mapping[str, Accepted] = {
    "defer_loading": Accepted("the model sees all tools", (False,)),
    "allowed_callers": Accepted("only the model calls tools", (["direct"],)),
    "output_schema": Accepted("it is for tools that programs call", ()),
}
_TEXT: Mapping[str, Accepted] = {"verbosity": Accepted("ask for it in a message", ("medium",))}
_NO_SUMMARY = Accepted("reasoning is given as it is, without a summary", ("auto",))
_REASONING: Mapping[str, Accepted] = {
    "summary": _NO_SUMMARY,
    "generate_summary": _NO_SUMMARY,
    "context": Accepted("send the items that are to be read", ("auto",)),
    "mode": Accepted("there is one mode", ("standard",)),
}
INCLUDED = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
)
"""Values of ``include``.  Only the first adds something.  Reasoning is always given in ``content``; the others
concern tools and pictures that a request cannot have."""


def _include(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise wrong(name, value, "give a list of texts")
    for i, each in enumerate(value):
        if each not in INCLUDED:
            raise wrong(f"{name}[{i}]", each, f"give one of {', '.join(INCLUDED)}")
    return value


FIELDS = Fields(
    Field("model", fields.text),
    Field("input", fields.anything, required=True),
    Field("instructions", fields.text),
    Field("tools", fields.anything),
    Field("tool_choice", fields.anything),
    Field("parallel_tool_calls", fields.switch, True),
    Field("text", fields.anything),
    Field("reasoning", fields.anything),
    Field("include", _include, ()),
    Field("top_logprobs", fields.whole(0, 20)),
    Field("metadata", fields.mapping),
    Field("stream", fields.switch, False),
    Field("chat_template_kwargs", fields.mapping),
    *TIMES,
    *OURS,
    without=("logprobs", "echo", "json_schema", "parse_special"),
    accepted=RESPONSES,
    spellings={**SPELLINGS, "max_output_tokens": "max_tokens"},
)


def request_of(body: Body) -> ChatRequest:
    """Convert a request to a chat request."""
    own, options, given = body.own, body.options, nested.of_body(body)
    wanted, effort = _format(given), _effort(given)
    if wanted["type"] != "text":
        body.force("text.format", {"json_schema": wanted.get("schema", {"type": "object"})})
    if LOGPROBS in own["include"]:
        options["logprobs"] = own["top_logprobs"] or 0
    elif own["top_logprobs"]:
        raise wrong("top_logprobs", own["top_logprobs"], f"it needs include=[{LOGPROBS!r}]")
    return ChatRequest(
        messages=messages_of(given),
        tools=[_as_chat(tool) for tool in _tools(given)],
        tool_choice=_tool_choice(given),
        parallel_tool_calls=own["parallel_tool_calls"],
        template_arguments=template_arguments(own, effort),
        options=options,
        deadline=own["deadline"],
        namespace=namespace_asked(own),
    )


def repeated(body: Body) -> dict[str, Any]:
    """Fields of a request that its response repeats."""
    own, given = body.own, nested.of_body(body)
    return {
        "instructions": own["instructions"],
        "max_output_tokens": body.options.get("max_tokens"),
        "metadata": own["metadata"] or {},
        "parallel_tool_calls": own["parallel_tool_calls"],
        "reasoning": {"effort": _effort(given), "summary": None},
        "text": {"format": _format(given), "verbosity": "medium"},
        "tool_choice": own["tool_choice"] or "auto",
        "tools": _tools(given),
        "top_logprobs": own["top_logprobs"] or 0,
    }


def _format(body: Nested) -> dict[str, Any]:
    """The format of the content, as the response repeats it."""
    holder = body.within("text")
    holder.take(_TEXT)
    wanted = holder.nested("format", "an object with a type")
    holder.done()
    if wanted is None:
        return {"type": "text"}
    made: dict[str, Any] = {"type": wanted.choice("type", "text", "json_object", "json_schema")}
    if made["type"] == "json_schema":
        made |= {
            "name": wanted.text("name"),
            "description": wanted.optional("description", fields.text),
            "schema": wanted.optional("schema", fields.mapping),
            "strict": wanted.flag("strict"),
        }
        if made["schema"] is None:
            raise wrong(wanted.path("schema"), None, "give a JSON schema")
    wanted.done()
    return made


def _effort(body: Nested) -> str | None:
    """The reasoning effort, for templates that use it."""
    reasoning = body.within("reasoning")
    reasoning.take(_REASONING)
    effort = reasoning.optional("effort", fields.text)
    reasoning.done()
    return effort


def _tools(body: Nested) -> list[dict[str, Any]]:
    """Tools, as the response repeats them."""
    made = []
    for tool in body.objects("tools", "a list of tools"):
        kind = tool.value("type")
        if kind != "function":
            raise wrong(tool.path("type"), kind, "only tools of type 'function' are supported")
        tool.take(_TOOL)
        made.append(
            {
                "type": "function",
                "name": tool.text("name"),
                "description": tool.optional("description", fields.text),
                "parameters": tool.optional("parameters", fields.mapping),
                "strict": tool.flag("strict"),
            }
        )
        tool.done()
    return made


def _as_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat completions declare it."""
    given = {k: v for k, v in tool.items() if k != "type" and v not in (None, False)}
    return {"type": "function", "function": given}


def _tool_choice(body: Nested) -> str | dict[str, Any] | None:
    """The choice as chat completions have it."""
    given: object = body.value("tool_choice")
    if given is None or isinstance(given, str):
        return given
    named = body.within("tool_choice", "'auto', 'none', 'required', or an object")
    if named.value("type") != "allowed_tools":
        return _named(named, "function' or 'allowed_tools")
    listed = [_as_chat({"name": _named(each)}) for each in named.objects("tools")]
    allowed = {"mode": named.value("mode"), "tools": listed}
    named.done()
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _named(tool: Nested, known: str = "function") -> str:
    """The name of a tool that is chosen or allowed."""
    if tool.value("type") != "function":
        raise wrong(tool.path("type"), tool.value("type"), f"give '{known}'")
    name = tool.text("name")
    tool.done()
    return name


def messages_of(body: Nested) -> list[dict[str, Any]]:
    """Input items as messages of a chat.

    Consecutive items of the assistant become one message: its reasoning, its text, its calls.
    """
    made: list[dict[str, Any]] = []
    given = body.value("input")
    if body.has("instructions"):
        made.append({"role": "system", "content": body.text("instructions")})
    if isinstance(given, str):
        return [*made, {"role": "user", "content": given}]
    items = body.objects("input", "a text, or a list of items")
    if not items:
        raise wrong("input", given, "give a text, or a list of items")
    for item in items:
        kind = item.value("type") or ("message" if item.has("role") else None)
        if kind == "item_reference":
            raise wrong(item.path("type"), kind, STATELESS)
        if not isinstance(kind, str) or kind not in _ITEMS:
            known = ", ".join(map(repr, _ITEMS))
            raise wrong(item.path("type"), kind, f"give one of {known}")
        item.accept(*_OF_ITEMS)
        _ITEMS[kind](item, made)
        item.done()
    return made


def _message(item: Nested, made: list[dict[str, Any]]) -> None:
    role = item.choice("role", "user", "assistant", "system", "developer")
    if item.value("content") is None:
        raise ParameterError(
            item.path("content"), f"{item.path('content')} is missing: give a text"
        )
    content = _content(item, "content", role)
    if role == "assistant":
        _assistant(made, "content", "tool_calls")["content"] = content
    else:
        made.append({"role": role, "content": content})


def _content(item: Nested, name: str, role: str) -> str | list[dict[str, str]]:
    """A text, or a list of parts with texts, in the form of chat completions."""
    if isinstance(item.value(name), str):
        return item.text(name)
    parts = item.objects(name, "a text, or a list of parts")
    return nested.content_of(list(_texts(parts, role)))


def _texts(parts: Iterable[Nested], role: str) -> Iterable[str]:
    for part in parts:
        part.accept("annotations", "logprobs")
        if role == "assistant" and part.value("type") == "refusal":
            yield part.text("refusal")
        else:
            yield nested.text_part(part, "output_text" if role == "assistant" else "input_text", "text",
                            "input_text")  # fmt: skip
        part.done()


def _reasoning(item: Nested, made: list[dict[str, Any]]) -> None:
    item.accept("encrypted_content")
    content = [_part(part, "reasoning_text") for part in item.objects("content", "a list of parts")]
    summary = [_part(part, "summary_text") for part in item.objects("summary", "a list of parts")]
    texts = content or summary
    if not texts:
        raise ParameterError(
            item.path("content"),
            f"{item.path('content')} is missing: give the text of the reasoning, for what is encrypted cannot "
            "be read here",
        )
    last = _assistant(made, "reasoning_content", "content", "tool_calls")
    last["reasoning_content"] = "\n".join(texts)


def _part(part: Nested, kind: str) -> str:
    text = nested.text_part(part, kind, "text")
    part.done()
    return text


def _call(item: Nested, made: list[dict[str, Any]]) -> None:
    function, arguments = item.text("name"), nested.arguments_of(item, "arguments")
    call = nested.chat_call(item.text("call_id"), function, arguments)
    _assistant(made).setdefault("tool_calls", []).append(call)


def _output(item: Nested, made: list[dict[str, Any]]) -> None:
    content = _content(item, "output", "tool")
    made.append(
        {"role": "tool", "tool_call_id": nested.answered(item, "call_id", made), "content": content}
    )


def _assistant(made: list[dict[str, Any]], *absent: str) -> dict[str, Any]:
    """The assistant's message at the end; a new one if the last is of another role or has one of ``absent``."""
    if not made or made[-1]["role"] != "assistant" or any(name in made[-1] for name in absent):
        made.append({"role": "assistant"})
    return made[-1]


_OF_ITEMS = ("id", "status", "namespace", "phase", "caller", "created_by")
"""Fields of items that do not affect the text."""

_ITEMS: Mapping[str, Callable[[Nested, list[dict[str, Any]]], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
}
