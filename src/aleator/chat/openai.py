"""Requests and responses in the form of OpenAI's interface, for chat and for plain completions.

What a request asks for is honoured or refused by name.  Beside OpenAI's fields a body may have any option of
``generate`` under its own name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from aleator.chat.generation import ChatGeneration
from aleator.core.errors import ParameterError
from aleator.generate.generation import Generation
from aleator.generate.logprobs import Logprobs, TokenLogprob

LABELS = ("model", "user", "metadata", "store", "stream_options", "service_tier")
"""Fields that say nothing of the text."""

_ONLY: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
}
_RENAMED = {"max_completion_tokens": "max_tokens"}
_OF_CHAT = ("messages", "tools", "tool_choice", "enable_thinking", "chat_template_kwargs")
_NOT_HERE = (
    "progress", "on_logits", "engine", "params", "known_tokens", "chat_template", "drafter", "self",
)  # fmt: skip
_DEEPEST = 128
_ID = re.compile(r"[0-9]{1,19}")


def chat_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of :meth:`aleator.LanguageModel.chat`, from the body of a request.

    Raises:
        ParameterError: A field that cannot be honoured; names it.
    """
    made = _arguments(body)
    if "messages" not in made:
        raise ParameterError("messages", "messages is missing")
    wanted, top = made.pop("logprobs", None), made.pop("top_logprobs", None)
    if wanted not in (None, True, False):
        raise ParameterError("logprobs", f"logprobs={wanted!r:.80}: give true or false")
    if top is not None and not wanted:
        raise ParameterError("top_logprobs", "top_logprobs needs logprobs=true")
    if wanted:
        made["logprobs"] = top or 0
    made |= _response_format(made.pop("response_format", None))
    effort = made.pop("reasoning_effort", None)
    if effort is not None:
        made["chat_template_kwargs"] = {
            **(made.get("chat_template_kwargs") or {}),
            "reasoning_effort": effort,
        }
    return made


def completion_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of :meth:`aleator.LanguageModel.generate`, ``prompt`` among them.

    Raises:
        ParameterError: A field that cannot be honoured; names it.
    """
    made = _arguments(body)
    if "prompt" not in made:
        raise ParameterError("prompt", "prompt is missing")
    for name in _OF_CHAT:
        if name in made:
            raise ParameterError(name, f"{name} is for chats: give messages, and no prompt")
    made |= _response_format(made.pop("response_format", None))
    return made


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in body.items():
        _check(name, value)
        if value is None or name in LABELS:
            continue
        if name in _NOT_HERE:
            raise ParameterError(name, f"{name} cannot be given in a request")
        if name in _ONLY:
            if value not in _ONLY[name]:
                allowed = " or ".join(map(repr, _ONLY[name]))
                raise ParameterError(name, f"{name}={value!r:.80}: only {allowed} is supported")
            continue
        own = _RENAMED.get(name, name)
        if own in made:
            raise ParameterError(own, f"{own} is given twice, once as {name}")
        made[own] = value
    if not isinstance(made.get("preset", ""), str):
        raise ParameterError("preset", f"preset={made['preset']!r:.80}: give the name of a preset")
    bias = made.get("logit_bias")
    if isinstance(bias, Mapping):
        made["logit_bias"] = {_id(name): value for name, value in bias.items()}
    return made


def _id(name: Any) -> Any:
    """Keys of JSON objects are texts; numbers among them are token ids."""
    return int(name) if isinstance(name, str) and _ID.fullmatch(name) else name


def _check(name: str, value: object) -> None:
    """See that a field is not nested too deeply to be read, and that its texts have a form in UTF-8.

    Raises:
        ParameterError: Names the field.
    """
    level = [value]
    for _ in range(_DEEPEST):
        within: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                within += [*each.keys(), *each.values()]
            elif isinstance(each, list):
                within += each
            elif isinstance(each, str) and not each.isascii():
                try:
                    each.encode()
                except UnicodeEncodeError as error:
                    half = (
                        f"{name}: {each[error.start]!a} is half of a surrogate pair: leave it out"
                    )
                    raise ParameterError(name, half) from None
        level = within
        if not level:
            return
    raise ParameterError(name, f"{name} is nested more than {_DEEPEST} levels deep: give fewer")


def _response_format(asked: Any) -> dict[str, Any]:
    if asked is None or asked == {"type": "text"}:
        return {}
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "json_schema":
        holder = asked.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, Mapping) else None
        if isinstance(schema, Mapping):
            return {"json_schema": schema}
        raise ParameterError(
            "response_format", "response_format.json_schema.schema is missing: give a JSON schema"
        )
    raise ParameterError(
        "response_format",
        f"response_format={asked!r:.80}: its type is 'text', 'json_object' or 'json_schema'",
    )


def chat_response(answer: ChatGeneration, name: str, model: str) -> dict[str, Any]:
    """The body of the response to a chat.

    Args:
        answer: Made until it ends.
        name: Of the request, for the id.
        model: What the request called the model.
    """
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
        choice["logprobs"] = {"content": [_entry(each) for each in answer.generation.logprobs]}
    return _response("chat.completion", f"chatcmpl-{name}", model, choice, answer.generation)


def completion_response(made: Generation, name: str, model: str) -> dict[str, Any]:
    """The body of the response to a plain completion; arguments are those of :func:`chat_response`."""
    reason = made.stop_reason
    finish = {"length": "length", "context": "length", "interrupted": "interrupted"}
    choice: dict[str, Any] = {
        "index": 0,
        "text": made.text,
        "finish_reason": finish.get(reason, "stop"),
        "logprobs": None,
    }
    if made.logprobs is not None:
        choice["logprobs"] = {
            "tokens": [each.chosen.text for each in made.logprobs],
            "token_logprobs": [_finite(each.chosen.logprob) for each in made.logprobs],
            "top_logprobs": [
                {top.text: _finite(top.logprob) for top in each.top} for each in made.logprobs
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
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
        "seed": made.seed,
    }


def _entry(each: Logprobs) -> dict[str, Any]:
    return {**_token(each.chosen), "top_logprobs": [_token(top) for top in each.top]}


def _token(each: TokenLogprob) -> dict[str, Any]:
    return {"token": each.text, "logprob": _finite(each.logprob), "bytes": list(each.bytes)}


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot be."""
    return max(logprob, -9999.0)
