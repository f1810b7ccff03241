"""What the converters to chats share: objects within a body, calls, and errors in the client's terms.

An object within a body is read field by field; fields that were not read are refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from aleator.chat.message import MEDIA as MEDIA_OF_CHATS
from aleator.chat.message import call_arguments, shown
from aleator.core.errors import ParameterError
from aleator.core.json_text import loads
from aleator.core.parameter import nearest
from aleator.engine.replay import KEY
from aleator.server.accepted import Accepted
from aleator.server.chat import ChatAnswer, ChatRequest
from aleator.server.dialects.openai_forms import replay_field
from aleator.server.fields import Body, one_of, switch, text, wrong
from aleator.server.service import Service

log = logging.getLogger(__name__)
T = TypeVar("T")

MEDIA = {**MEDIA_OF_CHATS, "document": "files", "container_upload": "files"}
"""Types of content parts that no model here can process, in all dialects."""
INVALID = "INVALID_JSON"
"""The only field of a call's input if the model did not write a JSON object; it holds what the model wrote."""


class Nested:
    """An object of a request, such as a message.

    Fields are read by name, each with its check.  :meth:`done` refuses fields that were not read, so the
    reading code is the only list of an object's fields.  ``null`` counts as absent.

    Args:
        where: Its path in the body, such as ``input[2]``; "" for the body itself.
        value: The given value.
        shape: What to give, for the error message.
        lenient: Log unknown fields and unsupported requests instead of refusing them.
    """

    def __init__(self, where: str, value: object, shape: str, lenient: bool = False) -> None:
        if not isinstance(value, Mapping):
            raise wrong(where, value, f"give {shape}")
        self.where, self.lenient = where, lenient
        self._fields: Mapping[str, Any] = value
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self.where}.{name}" if self.where else name

    def has(self, name: str) -> bool:
        """Whether a field is given and not null."""
        return self._fields.get(name) is not None

    def value(self, name: str) -> Any:
        """A field of any type; None if absent."""
        self._read.add(name)
        return self._fields.get(name)

    def accept(self, *names: str) -> None:
        """Accept fields whose values do not affect the text."""
        self._read.update(names)

    def optional(self, name: str, check: Callable[[str, Any], T]) -> T | None:
        """A field, as returned by a check of fields.py; None if absent."""
        value = self.value(name)
        return None if value is None else check(self.path(name), value)

    def text(self, name: str) -> str:
        """A required text; ParameterError if it is absent or has another type."""
        return text(self.path(name), self.value(name))

    def choice(self, name: str, *allowed: str) -> str:
        """One of some words; the first if the field is absent."""
        return self.optional(name, one_of(*allowed)) or allowed[0]

    def flag(self, name: str) -> bool:
        """A boolean; false if absent."""
        return self.optional(name, switch) or False

    def nested(self, name: str, shape: str = "an object") -> Nested | None:
        """An object whose fields are read too; None if absent."""
        value = self.value(name)
        if value is None:
            return None
        return Nested(self.path(name), value, shape, self.lenient)

    def within(self, name: str, shape: str = "an object") -> Nested:
        """As :meth:`nested`, but an empty object if absent."""
        return self.nested(name, shape) or Nested(self.path(name), {}, shape, self.lenient)

    def objects(self, name: str, shape: str = "a list of objects") -> list[Nested]:
        """A list of objects; [] if absent."""
        where, value = self.path(name), self.value(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise wrong(where, value, f"give {shape}")
        return [
            Nested(f"{where}[{i}]", each, "an object", self.lenient) for i, each in enumerate(value)
        ]

    def take(self, accepted: Mapping[str, Accepted]) -> None:
        """Read fields that are accepted but ignored."""
        for name, each in accepted.items():
            value = self.value(name)
            if not each.takes(value):
                self._ignore(name, f"{self.path(name)}={shown(value)} is not supported: {each.why}")

    def done(self) -> None:
        """Refuse the first field that was not read; suggest the nearest known name."""
        for name in self._fields:
            if name in self._read:
                continue
            self._ignore(name, f"{self.path(name)} is unknown: {nearest(str(name), self._read)}")

    def _ignore(self, name: str, message: str) -> None:
        """Refuse a field, or log that it is ignored."""
        if not self.lenient:
            raise ParameterError(self.path(name), message)
        log.warning("ignored: %s", message)


def of_body(body: Body) -> Nested:
    """The fields of a body that hold objects."""
    return Nested("", body.own, "an object", body.lenient)


def text_part(part: Nested, *types: str) -> str:
    """The text of a content part that has no type, or one of the dialect's text types."""
    kind, where = part.value("type"), part.path("type")
    if isinstance(kind, str) and kind in MEDIA and kind not in types:
        only = f"only parts of type {types[0]!r}"
        raise wrong(where, kind, f"{MEDIA[kind]} are not supported, {only}")
    if kind is not None and kind not in types:
        known = " or ".join(map(repr, dict.fromkeys(types)))
        raise wrong(where, kind, f"give {known}")
    return part.text("text")


def content_of(texts: Sequence[str]) -> str | list[dict[str, str]]:
    """Texts as the content of a message: a single one as it is, several as parts."""
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]


def arguments_of(call: Nested, name: str) -> dict[str, Any]:
    """The arguments of a call: an object, or its JSON text."""
    return call_arguments(call.path(name), call.value(name), wrong)


def chat_call(name: str, function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call in the form of chat completions: its id, function and arguments."""
    called = {"name": function, "arguments": arguments}
    return {"id": name, "type": "function", "function": called}


def answered(result: Nested, name: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """The id of the call that a result answers."""
    wanted = result.text(name)
    if not any(
        call.get("id") == wanted for each in messages for call in each.get("tool_calls", ())
    ):
        raise wrong(result.path(name), wanted, "no call before it has this id")
    return wanted


def with_records(
    service: Service, body: Body, answer: ChatAnswer, made: dict[str, Any]
) -> dict[str, Any]:
    """Add the record of its text to a response, if requested."""
    if body.own.get(KEY):
        made[KEY] = replay_field(service, (choice.generation for choice in answer.choices))
    return made


@contextmanager
def in_words(words: Mapping[str, str], body: Body) -> Iterator[None]:
    """Let errors name fields as the client does; ``words`` maps a chat's names to the dialect's."""
    try:
        yield
    except ParameterError as error:
        message = str(error)
        for own, sent in {**body.spelled, **words}.items():
            if own == sent:
                continue
            begin = r"(?<![\w.])" if own[0].isalpha() else ""
            end = r"(?!\w)" if own[-1].isalpha() else ""
            message = re.sub(f"{begin}{re.escape(own)}{end}", sent, message)
        name = {**body.names, **words}.get(error.parameter, error.parameter)
        raise ParameterError(name, message) from error


def thinking_if_known(asked: ChatRequest, service: Service) -> ChatRequest:
    """Remove a request to turn reasoning off if the model has none.

    Clients send it for every model, and such a model complies anyway.
    """
    if asked.enable_thinking is not False or service.chat_format.thinking is not None:
        return asked
    return replace(asked, enable_thinking=None)


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; unless a call was forced, the model may write anything."""
    try:
        value = loads(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}
