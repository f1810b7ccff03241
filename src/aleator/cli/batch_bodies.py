"""Bodies of ``aleator batch``, of requests and of responses: OpenAI's chats and plain completions.

Requests are read by the tables of the server, so a field has one meaning and one check, whoever asks.  Fields
of the server alone, such as streams, have the values that ask for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from aleator.chat.generation import ChatGeneration
from aleator.core.errors import ParameterError
from aleator.engine.prompts import GENERATION, SAMPLING
from aleator.generate.generation import Generation
from aleator.server import openai_fields
from aleator.server.accepted import ACCEPTED, Accepted
from aleator.server.errors import ApiError
from aleator.server.fields import Body, Field, Fields, anything

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
    "cache_prompt": Accepted("the prompt cache changes no text"),
    "timings_per_token": Accepted("results are the same in every run", (False,)),
    "return_progress": Accepted("a result is no stream", (False,)),
    "lora": Accepted("give adapters with their names", ([],)),
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
    *openai_fields.CHAT,
    options=_OPTIONS,
    without=openai_fields.NOT_OF_CHATS,
    accepted=ACCEPTED_HERE,
)
COMPLETIONS = Fields(
    Field("model", anything),
    *openai_fields.FORM,
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
    arguments = openai_fields.force_chat(read)
    given = {name: read.own[name] for name in OF_CHATS} | {"chat_template_kwargs": arguments}
    return read.options | {name: value for name, value in given.items() if value is not None}


def completion_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of :meth:`aleator.LanguageModel.generate`, ``prompt`` among them.

    Raises:
        ParameterError: A field that cannot be honoured; names it.
    """
    read = _read(COMPLETIONS, body)
    openai_fields.force_form(read)
    return read.options | {"prompt": read.own["prompt"]}


def _read(fields: Fields, body: Mapping[str, Any]) -> Body:
    try:
        return fields.read(body)
    except ApiError as error:
        raise ParameterError("", str(error)) from None


def chat_response(answer: ChatGeneration, name: str, model: str) -> dict[str, Any]:
    """The body of the response to a chat, for the request ``name``, which called the model ``model``."""
    message, calls = answer.message.as_json(), answer.message.tool_calls
    if calls:  # also one that was cut off, as far as it came
        message["tool_calls"] = [call.as_json() for call in calls]
        message["content"] = message["content"] or None
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": answer.stop_reason,
        "logprobs": None,
    }
    if answer.generation.logprobs is not None:
        choice["logprobs"] = {"content": openai_fields.token_logprobs(answer.generation.logprobs)}
    return _response("chat.completion", f"chatcmpl-{name}", model, choice, answer.generation)


def completion_response(made: Generation, name: str, model: str) -> dict[str, Any]:
    """The body of the response to a plain completion; arguments are those of :func:`chat_response`."""
    reason = made.stop_reason
    finish = {"context": "length"} | {each: each for each in ("loop", "length", "interrupted")}
    choice: dict[str, Any] = {
        "index": 0,
        "text": made.text,
        "finish_reason": finish.get(reason, "stop"),
        "logprobs": None,
    }
    if made.logprobs is not None:
        choice["logprobs"] = {
            "tokens": [each.chosen.text for each in made.logprobs],
            "token_logprobs": [openai_fields.finite(each.chosen.logprob) for each in made.logprobs],
            "top_logprobs": [
                {top.text: openai_fields.finite(top.logprob) for top in each.top}
                for each in made.logprobs
            ],
        }
    return _response("text_completion", f"cmpl-{name}", model, choice, made)


def _response(
    kind: str, name: str, model: str, choice: dict[str, Any], made: Generation
) -> dict[str, Any]:
    prompt, completion = len(made.request.tokens), len(made.tokens)
    return {
        "id": name,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice | openai_fields.kept_tokens(made.logprobs)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
        "seed": made.seed,
    }
