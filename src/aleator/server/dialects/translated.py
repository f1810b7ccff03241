"""What the converters to chats share: errors in the client's words, calls, reasoning that is switched off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from aleator.core.errors import ParameterError
from aleator.replay import KEY
from aleator.server.chatting import ChatAnswer, ChatRequest
from aleator.server.fields import Body
from aleator.server.records import replay_field
from aleator.server.service import Service

INVALID = "INVALID_JSON"
"""The one field of a call's input where the model wrote no JSON object; it holds what the model wrote."""


def with_records(
    service: Service, body: Body, answer: ChatAnswer, made: dict[str, Any]
) -> dict[str, Any]:
    """A response with the record of its text, if the request wants it.

    Args:
        service: Made it.
        body: The request.
        answer: Has ended.
        made: The response; the record is put into it.
    """
    if body.own.get(KEY):
        made[KEY] = replay_field(service, (choice.generation for choice in answer.choices))
    return made


@contextmanager
def in_words(words: Mapping[str, str], body: Body) -> Iterator[None]:
    """Let errors name fields as the client does.

    Args:
        words: The dialect's, by those of a chat, such as ``.function.strict`` and ``.strict``.
        body: The request.
    """
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
    if asked.enable_thinking is not False:
        return asked
    chat_format = service.model.chat_format(service.options.chat_template)
    return replace(asked, enable_thinking=None) if chat_format.thinking is None else asked


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object.

    Args:
        arguments: JSON text as the model wrote it, which may be wrong where no call was forced.
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}
