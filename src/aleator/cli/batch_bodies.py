"""Bodies of ``aleator batch``: OpenAI's chats and plain completions, read by the tables of the server.

So a field has one meaning and one check, whoever asks.  Fields of the server alone, such as streams, have the
values that ask for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aleator.core.errors import ParameterError
from aleator.engine.prompts import GENERATION, SAMPLING
from aleator.server.accepted import ACCEPTED, Accepted
from aleator.server.errors import ApiError
from aleator.server.fields import Body, Field, Fields, anything
from aleator.server.openai_fields import CHAT, FORM, NOT_OF_CHATS, force_chat, force_form

ACCEPTED_HERE: Mapping[str, Accepted] = {
    **ACCEPTED,
    "stream": Accepted("a result is written when it is complete", (False,)),
    "stream_options": Accepted("a result is no stream"),
    "n": Accepted("give a line for each", (1,)),
    "best_of": Accepted("give a line for each", (1,)),
    "suffix": Accepted("give /infill of aleator serve the text before and after", ("",)),
    "parallel_tool_calls": Accepted("an answer may have several calls", (True,)),
    "deadline": Accepted("a batch waits for every result", ()),
    "cache_salt": Accepted("the prompt cache changes no text"),
    "timings_per_token": Accepted("results are the same in every run", (False,)),
    "return_progress": Accepted("a result is no stream", (False,)),
    "aleator_replay": Accepted("the lines make the results again", (False,)),
}
"""Fields of the server that mean nothing in a batch, and those with which the server does nothing either."""
OF_CHATS: Mapping[str, Accepted] = dict.fromkeys(
    ("messages", "tools", "tool_choice", "enable_thinking", "chat_template_kwargs"),
    Accepted("it is for chats: give messages, and no prompt", ()),
)
_OPTIONS = {**GENERATION, **SAMPLING}

CHATS = Fields(
    Field("model", anything),
    *CHAT,
    options=_OPTIONS,
    without=NOT_OF_CHATS,
    accepted=ACCEPTED_HERE,
)
COMPLETIONS = Fields(
    Field("model", anything),
    *FORM,
    Field("prompt", anything, required=True),
    options=_OPTIONS,
    accepted={**ACCEPTED_HERE, **OF_CHATS},
)


def chat_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of :meth:`aleator.LanguageModel.chat`, from the body of a request.

    Raises:
        ParameterError: A field that cannot be honoured; names it.
    """
    read = _read(CHATS, body)
    arguments = force_chat(read)
    given = {name: read.own[name] for name in OF_CHATS} | {"chat_template_kwargs": arguments}
    return read.options | {name: value for name, value in given.items() if value is not None}


def completion_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of :meth:`aleator.LanguageModel.generate`, ``prompt`` among them.

    Raises:
        ParameterError: A field that cannot be honoured; names it.
    """
    read = _read(COMPLETIONS, body)
    force_form(read)
    return read.options | {"prompt": read.own["prompt"]}


def _read(fields: Fields, body: Mapping[str, Any]) -> Body:
    try:
        return fields.read(body)
    except ApiError as error:
        raise ParameterError("", str(error)) from None
