"""Converts requests of Anthropic's Messages to messages, tools and options of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aleator.core.errors import ParameterError
from aleator.server.accepted import LABEL, Accepted
from aleator.server.auth import namespace_asked
from aleator.server.chat import ChatRequest
from aleator.server.dialects import nested
from aleator.server.dialects.nested import Nested
from aleator.server.fields import Body, Field, Fields, anything, mapping, switch, text, whole, wrong
from aleator.server.openai_fields import OURS, template_arguments

_NO_SERVER_TOOLS = "the server has no tools of its own"
MESSAGES: Mapping[str, Accepted] = {
    "metadata": LABEL,
    "service_tier": Accepted("there is one tier"),
    "inference_geo": Accepted("the answer is made on this machine"),
    "cache_control": Accepted("the prompt cache compares tokens, and changes no text"),
    "container": Accepted(_NO_SERVER_TOOLS, ()),
    "mcp_servers": Accepted(_NO_SERVER_TOOLS, ([],)),
    "context_management": Accepted("send the messages that are to be read", ()),
    "diagnostics": LABEL,
    "speed": Accepted("there is one speed", ("standard",)),
    "user_profile_id": LABEL,
    "workspace_id": LABEL,
}
"""Fields of the request that are accepted, or refused except for some values."""

_THINKING: Mapping[str, Accepted] = {
    "display": Accepted("reasoning is given as it is", ("summarized",))
}
_TOOL: Mapping[str, Accepted] = {
    "cache_control": MESSAGES["cache_control"],
    "eager_input_streaming": Accepted("arguments are streamed as they come"),
    "defer_loading": Accepted("the model sees all tools", (False,)),
    "allowed_callers": Accepted("only the model calls tools", (["direct"],)),
    "input_examples": Accepted("write them into the description", ([],)),
}
ERROR = "Error: "
"""Prefix of a tool's result with ``is_error``, as chat templates have no field for it."""


def _texts_of(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise wrong(name, value, "give a list of texts")
    return value


_SHARED = (
    Field("model", text, required=True),
    Field("messages", anything, required=True),
    Field("system", anything),
    Field("tools", anything),
    Field("tool_choice", anything),
    Field("thinking", anything),
    Field("output_config", anything),
    Field("output_format", anything),
)
FIELDS = Fields(
    *_SHARED,
    Field("max_tokens", whole(1, 2**31 - 1), required=True, option=True),
    Field("stop_sequences", _texts_of, (), aliases=("stop",)),
    Field("stream", switch, False),
    Field("chat_template_kwargs", mapping),
    *OURS,
    without=("stop", "logprobs", "echo", "json_schema", "parse_special", "reasoning_budget"),
    accepted=MESSAGES,
    strict=("temperature", "top_p", "top_k"),
)
COUNTED = Fields(
    *_SHARED, Field("max_tokens", whole(1, 2**31 - 1), option=True), options={}, accepted=MESSAGES
)
"""Fields of ``/v1/messages/count_tokens``."""


def request_of(body: Body) -> ChatRequest:
    """Convert a request to a chat request."""
    own, options, given = body.own, body.options, nested.of_body(body)
    if own.get("stop_sequences"):
        options["stop"] = own["stop_sequences"]
    thinking, budget = _thinking(given)
    if budget is not None:
        options["reasoning_budget"] = budget
    schema = _schema(given, "output_format")
    output = given.within("output_config")
    effort = output.optional("effort", text)
    schema = schema or _schema(output, "format")
    output.done()
    if schema is not None:
        body.force("output_config.format", {"json_schema": schema})
    choice, parallel = _tool_choice(given)
    return ChatRequest(
        messages=messages_of(given),
        tools=[_tool(each) for each in given.objects("tools", "a list of tools")],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        enable_thinking=thinking,
        template_arguments=template_arguments(own, effort),
        options=options,
        deadline=own.get("deadline"),
        namespace=namespace_asked(own),
    )


def _thinking(body: Nested) -> tuple[bool | None, int | None]:
    """Whether the model reasons (None: the template's default), and its budget in tokens (None: no limit)."""
    thinking = body.within("thinking", "an object with a type")
    kind = thinking.choice("type", "adaptive", "enabled", "disabled")
    budget = thinking.optional("budget_tokens", whole(1, 2**31 - 1))
    thinking.take(_THINKING)
    thinking.done()
    if kind == "adaptive":
        return None, None
    if kind == "enabled" and budget is None:
        raise wrong("thinking.budget_tokens", None, "give a whole number from 1")
    return kind == "enabled", budget


def _schema(holder: Nested, name: str) -> dict[str, Any] | None:
    """The schema of the content; None: any text."""
    wanted = holder.nested(name, "an object with a type and a schema")
    if wanted is None:
        return None
    wanted.choice("type", "json_schema")
    schema = wanted.optional("schema", mapping)
    wanted.done()
    if schema is None:
        raise wrong(wanted.path("schema"), None, "give a JSON schema")
    return schema


def _tool(tool: Nested) -> dict[str, Any]:
    kind = tool.value("type")
    if kind not in (None, "custom"):
        raise wrong(
            tool.path("type"),
            kind,
            "only tools of your own are supported: leave type out, or give 'custom'",
        )
    tool.take(_TOOL)
    function: dict[str, Any] = {"name": tool.text("name")}
    description, schema = tool.optional("description", text), tool.optional("input_schema", mapping)
    if schema is None:
        raise wrong(tool.path("input_schema"), None, "give a JSON schema of type 'object'")
    if description is not None:
        function["description"] = description
    function["parameters"] = schema
    if tool.flag("strict"):
        function["strict"] = True
    tool.done()
    return {"type": "function", "function": function}


def _tool_choice(body: Nested) -> tuple[str | None, bool]:
    """Whether a tool must be called, in a chat's terms, and whether several calls are allowed."""
    choice = body.nested("tool_choice", 'an object such as {"type": "auto"}')
    if choice is None:
        return None, True
    kind = choice.choice("type", "auto", "any", "tool", "none")
    one = choice.flag("disable_parallel_tool_use")
    name = choice.text("name") if kind == "tool" else None
    choice.done()
    return name or {"any": "required"}.get(kind, kind), not one


def messages_of(body: Nested) -> list[dict[str, Any]]:
    """Messages of a chat, the system prompt first.

    Consecutive turns of one role become one message, as at Anthropic.  Tool results are messages of their own,
    in the order of the blocks.
    """
    made: list[dict[str, Any]] = []
    for text_of_system in _texts(body, "system"):
        _last(made, "system")["content"].append(text_of_system)
    messages = body.objects("messages", "a list of messages")
    if not messages:
        raise wrong("messages", body.value("messages"), "give at least one message")
    role = "user"
    for message in messages:
        role = message.choice("role", "user", "assistant", "system")
        content = message.value("content")
        if isinstance(content, str):
            _last(made, role)["content"].append(content)
        else:
            blocks = message.objects("content", "a text, or a list of blocks")
            if not blocks:
                raise wrong(message.path("content"), content, "give at least one block")
            for block in blocks:
                _add_block(block, role, made)
        message.done()
    if role == "assistant":
        raise ParameterError(
            f"messages[{len(messages) - 1}].role='assistant': going on with a text of the assistant's is not "
            "supported: end with a message of the user, or use /v1/completions"
        )
    return [{**each, "content": nested.content_of(each["content"]) or ""} for each in made]


def _add_block(block: Nested, role: str, made: list[dict[str, Any]]) -> None:
    kind = block.value("type")
    block.accept("cache_control")
    if role == "user" and kind == "tool_result":
        texts = _texts(block, "content")
        block.accept("toolset_name")
        if block.flag("is_error"):
            texts = [ERROR + "".join(texts[:1]), *texts[1:]]
        called = nested.answered(block, "tool_use_id", made)
        made.append({"role": "tool", "tool_call_id": called, "content": texts})
    elif role == "assistant" and kind == "tool_use":
        block.accept("caller", "toolset_name")
        function, arguments = block.text("name"), nested.arguments_of(block, "input")
        call = nested.chat_call(block.text("id"), function, arguments)
        _last(made, role).setdefault("tool_calls", []).append(call)
    elif role == "assistant" and kind == "thinking":
        block.accept("signature")
        last = _last(made, role)
        before = [last["reasoning_content"]] if "reasoning_content" in last else []
        last["reasoning_content"] = "\n".join([*before, block.text("thinking")])
    else:
        block.accept("citations")
        _last(made, role)["content"].append(nested.text_part(block, "text"))
    block.done()


def _last(made: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The last message, or a new one if the last has another role."""
    if not made or made[-1]["role"] != role:
        made.append({"role": role, "content": []})
    return made[-1]


def _texts(holder: Nested, name: str) -> list[str]:
    """The texts of a text or a list of text blocks."""
    given = holder.value(name)
    if isinstance(given, str):
        return [given]
    texts = []
    for block in holder.objects(name, "a text, or a list of blocks of text"):
        block.accept("cache_control", "citations")
        texts.append(nested.text_part(block, "text"))
        block.done()
    return texts
