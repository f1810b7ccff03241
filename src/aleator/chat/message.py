"""Messages and tools: input, checked before a template gets it, and the model's answers."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from aleator.core.errors import ParameterError
from aleator.core.json_text import loads
from aleator.core.records import dataclass

ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = {
    "system": ("name",),
    "developer": ("name",),
    "user": ("name",),
    "assistant": ("name", "reasoning_content", "tool_calls"),
    "tool": ("name", "tool_call_id"),
}
MEDIA = {
    "image_url": "pictures",
    "input_image": "pictures",
    "image": "pictures",
    "input_audio": "audio parts",
    "audio": "audio parts",
    "file": "files",
    "input_file": "files",
    "video_url": "videos",
    "video": "videos",
}
_PART = ("type", "text", "cache_control", "annotations")
"""Fields of a text part; the last two do not affect the text."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


@dataclass(frozen=True)
class ToolCall:
    """A tool call.

    Attributes:
        id: Identifies the call, so that the message with its result can refer to it.
        name: The tool's name.
        arguments: JSON text of its arguments, as the model wrote it.
        complete: Whether the model ended the call; False if the reply was cut off within it.
    """

    id: str
    name: str
    arguments: str
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        """The call in the form of OpenAI's interface."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Message:
    """A message of the assistant.

    Attributes:
        content: The answer; "" if there is none, as with a call.
        reasoning_content: The model's reasoning before the answer; "" if there is none.
        tool_calls: Tool calls, in order.
    """

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The message as a mapping, to append to the messages of the next call.

        Calls that were cut off are left out: their arguments are not JSON, and they cannot be answered.
        """
        made: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning_content:
            made["reasoning_content"] = self.reasoning_content
        calls = [call.as_json() for call in self.tool_calls if call.complete]
        if calls:
            made["tool_calls"] = calls
        return made


Kind = Literal["content", "reasoning", "call", "arguments", "call_end"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a message."""

    # What it adds to: "content", "reasoning", or the arguments of a call; "call" begins a call, and "call_end"
    # ends one
    kind: Kind
    text: str = ""  # The added text; for "call" the tool's name
    index: int = 0  # For calls: index among the calls of the message
    id: str = ""  # For "call": the call's id


@dataclass(frozen=True)
class Function:
    """A declared tool: its name, and the JSON schema of its arguments."""

    name: str
    parameters: Any


Declared = tuple[dict[str, Any], Function]
"""A tool as a template takes it, and as needed to read and force calls."""


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as a template takes them: contents are texts, arguments of calls mappings.

    Args:
        messages: Mappings as in OpenAI's interface, or :class:`~aleator.Message` of earlier answers.

    Raises:
        ParameterError: Names the message by its index, the field, and what is allowed.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ParameterError(
            f'messages={shown(messages)}: give a list such as [{{"role": "user", "content": "Hi"}}]'
        )
    if not messages:
        raise ParameterError("messages is empty: give one at least")
    calls: set[str] = set()
    return [_message(f"messages[{i}]", message, calls) for i, message in enumerate(messages)]


def _message(where: str, message: object, calls: set[str]) -> dict[str, Any]:
    if isinstance(message, Message):
        message = message.as_json()
    if not isinstance(message, Mapping):
        raise _wrong(where, message, 'give a mapping with "role" and "content"')
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"{where}.role", role, f"give one of {', '.join(ROLES)}")
    made: dict[str, Any] = {"role": role}
    for name, value in message.items():
        if name in ("role", "content") or value is None or value == []:
            continue
        if name not in _FIELDS[role]:
            allowed = ", ".join(("role", "content", *_FIELDS[role]))
            raise _wrong(f"{where}.{name}", value, f"a message of {role!r} has {allowed}")
        if name == "tool_calls":
            at = f"{where}.{name}"
            if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
                raise _wrong(at, value, "give a list of calls")
            made[name] = [_tool_call(f"{at}[{i}]", call) for i, call in enumerate(value)]
            calls.update(call["id"] for call in made[name] if "id" in call)
        elif not isinstance(value, str):
            raise _wrong(f"{where}.{name}", value, "give a text")
        else:
            made[name] = value
    answered = made.get("tool_call_id")
    if answered is not None and answered not in calls:
        raise _wrong(f"{where}.tool_call_id", answered, "no call before it has this id")
    content = message.get("content")
    says_more = role == "assistant" and made.keys() & {"tool_calls", "reasoning_content"}
    if content is None and says_more:
        content = ""
    made["content"] = _content(f"{where}.content", content)
    return made


def _content(where: str, content: object) -> str:
    """A content as one text; several parts are separated by line breaks."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise _wrong(where, content, "give a text, or a list of parts of type 'text'")
    texts = []
    for i, part in enumerate(content):
        at = f"{where}[{i}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in MEDIA:
            raise ParameterError(
                "messages",
                f"{at}.type={kind!r}: {MEDIA[kind]} are not supported, only parts of type 'text'",
            )
        if not isinstance(part, Mapping) or kind not in ("text", "input_text"):
            raise _wrong(at, part, 'give {"type": "text", "text": "..."}')
        if not isinstance(part.get("text"), str):
            raise _wrong(f"{at}.text", part.get("text"), "give a text")
        _only(at, part, _PART)
        texts.append(part["text"])
    return "\n".join(texts)


def _only(where: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse fields other than ``known``; null counts as absent."""
    for name, each in value.items():
        if name not in known and each is not None:
            raise _wrong(f"{where}.{name:.80}", each, f"known are {', '.join(known)}")


def _with_function(
    where: str, given: object, shape: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A call or a declaration of this shape, and the function in it."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(function, Mapping):
        raise _wrong(where, given, f"give {shape}")
    if given.get("type", "function") != "function":
        raise _wrong(f"{where}.type", given["type"], "give 'function'")
    return given, function


def _tool_call(where: str, given: object) -> dict[str, Any]:
    shape = '{"id": "...", "type": "function", "function": {"name": "...", "arguments": "{}"}}'
    call, function = _with_function(where, given, shape)
    _only(where, call, ("id", "type", "function", "index"))
    _only(f"{where}.function", function, ("name", "arguments"))
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{where}.function.name", name, "give the name of the tool")
    given = function.get("arguments", {})
    arguments = call_arguments(f"{where}.function.arguments", given, _wrong)
    made: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if call.get("id") is not None:
        if not isinstance(call["id"], str):
            raise _wrong(f"{where}.id", call["id"], "give a text")
        made["id"] = call["id"]
    return made


def call_arguments(
    where: str, value: object, wrong: Callable[[str, object, str], ParameterError]
) -> dict[str, Any]:
    """The arguments of a call, an object or its JSON text; ``wrong`` makes the error of another value."""
    if isinstance(value, str):
        try:
            value = loads(value or "{}")
        except ValueError as error:
            raise wrong(where, value, f"not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise wrong(where, value, "give an object, or its JSON text")
    return dict(value)


def checked_tools(tools: object) -> list[Declared]:
    """Tool declarations.

    Raises:
        ParameterError: Names the tool by its index, the field, and what is allowed.
    """
    if tools is None:
        return []
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise _wrong("tools", tools, "give a list of declarations")
    made = [_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    names = [function.name for _, function in made]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _wrong(f"tools[{i}].function.name", name, "another tool has this name")
    return made


def _tool(where: str, tool: object) -> Declared:
    shape = '{"type": "function", "function": {"name": "...", "parameters": {...}}}'
    _, function = _with_function(where, tool, shape)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(f"{where}.function.name", name, "give 1 to 64 letters, digits and _ . : -")
    if not isinstance(function.get("description", ""), str):
        raise _wrong(f"{where}.function.description", function["description"], "give a text")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise _wrong(
            f"{where}.function.parameters", parameters, "give a JSON schema of type 'object'"
        )
    if function.get("strict") not in (None, False, True):
        raise _wrong(f"{where}.function.strict", function["strict"], "give True or False")
    declared = {"type": "function", "function": {**function, "parameters": dict(parameters)}}
    return declared, Function(name, {"type": "object", **parameters})


def chosen_tools(
    choice: object, tools: Sequence[Declared]
) -> tuple[Sequence[Declared], list[Function]]:
    """The tools that a choice allows: "auto" (also None), "none", "required", a tool's name, or one of OpenAI's
    mappings: of a tool, or of ``allowed_tools``.

    Returns:
        The tools that the model sees, and those of which it must call one; [] if it need not.

    Raises:
        ParameterError: Another choice, one without tools, or a tool that is not declared.
    """
    seen = tools
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice, seen = _allowed(choice.get("allowed_tools"), tools)
    functions = [function for _, function in seen]
    names = [function.name for function in functions]
    name = choice
    if isinstance(choice, Mapping):
        asked = choice.get("function")
        name = asked.get("name") if isinstance(asked, Mapping) else None
    elif choice in (None, "auto", "none"):
        strict = [
            i
            for i, (tool, f) in enumerate(tools)
            if f.name in names and tool["function"].get("strict")
        ]
        if strict and choice != "none":
            raise ParameterError(
                f"tools[{strict[0]}].function.strict=True: arguments are forced to satisfy their schema only "
                "where a call is: give tool_choice='required' or the tool's name, or leave strict out"
            )
        return [] if choice == "none" else seen, []
    elif choice == "required" and functions:
        return seen, functions
    if name in names:
        return seen, [functions[names.index(name)]]
    known = ", ".join(["'auto'", "'none'", "'required'", *map(repr, names)])
    what = f"give one of {known}" if names else "no tools are given"
    raise _wrong("tool_choice", choice, what)


def _allowed(asked: object, tools: Sequence[Declared]) -> tuple[object, Sequence[Declared]]:
    """The mode of ``allowed_tools``, and the tools that it lists."""
    where = "tool_choice.allowed_tools"
    if not isinstance(asked, Mapping):
        raise _wrong(where, asked, 'give {"mode": "auto", "tools": [...]}')
    mode, listed = asked.get("mode"), asked.get("tools")
    if mode != "auto" and mode != "required":
        raise _wrong(f"{where}.mode", mode, "give 'auto' or 'required'")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise _wrong(f"{where}.tools", listed, "give a list of tools, one at least")
    known, names = [function.name for _, function in tools], []
    for i, each in enumerate(listed):
        at, shape = f"{where}.tools[{i}]", '{"type": "function", "function": {"name": "..."}}'
        name = _with_function(at, each, shape)[1].get("name")
        if name not in known:
            raise _wrong(f"{at}.function.name", name, f"declared are {', '.join(known) or 'none'}")
        names.append(name)
    return mode, [tool for tool in tools if tool[1].name in names]


def _wrong(where: str, value: object, what: str) -> ParameterError:
    return ParameterError(re.split(r"[.\[]", where)[0], f"{where}={shown(value)}: {what}")


def shown(value: object) -> str:
    """A value in at most 80 characters, however long or deeply nested it is."""
    return _SHORT.repr(value)[:80]
