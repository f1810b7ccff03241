"""What the converters to chats share: objects within a body, calls, errors in the client's words.

An object within a body is read field by field; a field that nobody reads is refused.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from aleator.chat.message import MEDIA as MEDIA_OF_CHATS
from aleator.chat.message import shown
from aleator.core.errors import ParameterError
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
"""Types of content parts that no model here can read, in all dialects."""
INVALID = "INVALID_JSON"
"""The one field of a call's input where the model wrote no JSON object; it holds what the model wrote."""


class Nested:
    """An object of a request, such as a message.

    Fields are read by name, each with its check.  :meth:`done` refuses what was not read, so the code that
    reads is the only list of what an object may have.  ``null`` is the same as a field that was not given.

    Args:
        where: Its path in the body, such as ``input[2]``.
        value: What was given.
        shape: What to give, for the error message.
        lenient: Log fields that are unknown, or ask for something that is not done, instead of refusing them.
    """

    def __init__(self, where: str, value: object, shape: str, lenient: bool = False) -> None:
        if not isinstance(value, Mapping):
            raise wrong(where, value, f"give {shape}")
        self.where, self.lenient = where, lenient
        self._fields: Mapping[str, Any] = value
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self.where}.{name}"

    def has(self, name: str) -> bool:
        """Whether a field was given, and is not null."""
        return self._fields.get(name) is not None

    def value(self, name: str) -> Any:
        """A field of any type; None where it was not given."""
        self._read.add(name)
        return self._fields.get(name)

    def accept(self, *names: str) -> None:
        """Fields whose value says nothing about the text."""
        self._read.update(names)

    def optional(self, name: str, check: Callable[[str, Any], T]) -> T | None:
        """A field as a check of fields.py keeps it; None where it was not given."""
        value = self.value(name)
        return None if value is None else check(self.path(name), value)

    def text(self, name: str) -> str:
        """A text that must be given; ParameterError where it is missing, or another type."""
        return text(self.path(name), self.value(name))

    def choice(self, name: str, *allowed: str) -> str:
        """One of some words; the first one where the field was not given."""
        return self.optional(name, one_of(*allowed)) or allowed[0]

    def flag(self, name: str) -> bool:
        """A switch; false where it was not given."""
        return self.optional(name, switch) or False

    def nested(self, name: str, shape: str = "an object") -> Nested | None:
        """An object whose fields are read too; None where it was not given."""
        value = self.value(name)
        if value is None:
            return None
        return Nested(self.path(name), value, shape, self.lenient)

    def objects(self, name: str, shape: str = "a list of objects") -> list[Nested]:
        """A list of objects; [] where it was not given."""
        return listed(self.path(name), self.value(name), shape, self.lenient)

    def take(self, accepted: Mapping[str, Accepted]) -> None:
        """Read fields that are accepted although nothing is done with them."""
        for name, each in accepted.items():
            value = self.value(name)
            if not each.takes(value):
                self._ignore(name, f"{self.path(name)}={shown(value)} is not supported: {each.why}")

    def done(self) -> None:
        """Refuse the first field that was not read, with the nearest known one."""
        for name in self._fields:
            if name in self._read:
                continue
            self._ignore(name, f"{self.path(name)} is unknown: {nearest(str(name), self._read)}")

    def _ignore(self, name: str, message: str) -> None:
        """Refuse a field, or note that it is ignored."""
        if not self.lenient:
            raise ParameterError(self.path(name), message)
        log.warning("ignored: %s", message)


def listed(where: str, value: object, shape: str, lenient: bool = False) -> list[Nested]:
    """A list of objects; [] where it was not given."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(where, value, f"give {shape}")
    return [Nested(f"{where}[{i}]", each, "an object", lenient) for i, each in enumerate(value)]


def text_part(part: Nested, *types: str) -> str:
    """The text of a content part: one without a type, or of a type that the dialect calls text."""
    kind = part.value("type")
    if isinstance(kind, str) and kind in MEDIA and kind not in types:
        raise ParameterError(
            part.path("type"),
            f"{part.path('type')}={kind!r}: {MEDIA[kind]} are not supported, only parts of type {types[0]!r}",
        )
    if kind is not None and kind not in types:
        known = " or ".join(map(repr, dict.fromkeys(types)))
        raise wrong(part.path("type"), kind, f"give {known}")
    return part.text("text")


def content_of(texts: Sequence[str]) -> str | list[dict[str, str]]:
    """Texts as the content of a message: one as it is, else a part for each."""
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]


def arguments_of(call: Nested, name: str) -> dict[str, Any]:
    """The arguments of a call: an object, or its JSON text."""
    value = call.value(name)
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError) as error:
            raise wrong(call.path(name), value, f"not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise wrong(call.path(name), value, "give an object, or its JSON text")
    return dict(value)


def chat_call(name: str, function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call as chat completions write it, by its id, its function and the arguments."""
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
    """A response with the record of its text, if the request wants it."""
    if body.own.get(KEY):
        made[KEY] = replay_field(service, (choice.generation for choice in answer.choices))
    return made


@contextmanager
def in_words(words: Mapping[str, str], body: Body) -> Iterator[None]:
    """Let errors name fields as the client does; ``words`` are the dialect's by those of a chat."""
    try:
        yield
    except ParameterError as error:
        message = str(error)
        for own, theirs in {**body.spelled, **words}.items():
            if own == theirs:
                continue
            begin = r"(?<![\w.])" if own[0].isalpha() else ""
            end = r"(?!\w)" if own[-1].isalpha() else ""
            message = re.sub(f"{begin}{re.escape(own)}{end}", theirs, message)
        name = {**body.names, **words}.get(error.parameter, error.parameter)
        raise ParameterError(name, message) from error


def fitting(asked: ChatRequest, service: Service) -> ChatRequest:
    """A request without a switch that has nothing to switch off.

    Clients turn reasoning off for every model; that is what a model does that knows none.
    """
    if asked.enable_thinking is not False or service.chat_format.thinking is not None:
        return asked
    return replace(asked, enable_thinking=None)


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; where no call was forced, the model may write something else."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}
