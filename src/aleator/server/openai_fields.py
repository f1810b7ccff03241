"""Fields of OpenAI's bodies, as the server and ``aleator batch`` read them, and forms that both write.

The form is asked for in OpenAI's and in vLLM's fields: JSON, a schema, an expression, one of some texts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aleator.core.errors import ParameterError
from aleator.engine.replay import KEY
from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.server import fields
from aleator.server.adapters import LORA
from aleator.server.fields import Body, Field, known_keys, wrong

LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for what cannot be."""


def finite(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, LEAST_LOGPROB)


def token_logprobs(entries: Sequence[Logprobs]) -> list[dict[str, Any]]:
    """Log-probabilities of the tokens of a chat."""
    return [
        {**_token(each.chosen), "top_logprobs": [_token(top) for top in each.top]}
        for each in entries
    ]


def _token(each: TokenLogprob) -> dict[str, Any]:
    return {"token": each.text, "logprob": finite(each.logprob), "bytes": list(each.bytes)}


def kept_tokens(entries: Sequence[Logprobs] | None) -> dict[str, Any]:
    """What the samplers had left when each token was drawn; {} where that was not asked for."""
    kept = [each.kept for each in entries or () if each.kept is not None]
    masks = [base64.b64encode(each.mask).decode() for each in kept]
    logprobs = [finite(each.logprob) for each in kept]
    return {"aleator_kept": {"logprobs": logprobs, "masks": masks}} if kept else {}


def seconds(name: str, value: Any) -> float:
    """A time, up to 1,000,000 s."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
        raise wrong(name, value, "give seconds, more than 0")
    return float(value)


OURS = (
    LORA,
    Field("deadline", seconds),
    Field("cache_salt", fields.text, ""),
    Field("cache_prompt", fields.switch, True),
    Field(KEY, fields.switch, False),
)
"""Fields of this server, in every dialect; and llama-server's adapters.

``deadline``: seconds after which the text ends; ``cache_salt``: prompts share what was computed with those of
the same salt only, as in vLLM; ``cache_prompt``: with false the request uses no cached prefix and leaves none;
``aleator_replay`` asks for the records of the texts.
"""
KEPT = Field("kept", fields.switch, option=True)
"""Asks for the tokens that the samplers had left: :func:`kept_tokens`, :meth:`Service.check_kept`."""
TIMES = (
    Field("timings_per_token", fields.switch, False),
    Field("return_progress", fields.switch, False),
)
"""Fields of llama-server: the first asks for ``timings``, the second asks a stream for ``prompt_progress``."""
FORM = (
    Field("response_format", fields.mapping),
    Field("structured_outputs", fields.mapping),
    Field("guided_choice", fields.anything),
)
"""What the text must be; :func:`force_form` makes options of it."""
CHAT = (
    *FORM,
    Field("messages", fields.anything, required=True),
    Field("tools", fields.anything),
    Field("tool_choice", fields.anything),
    Field("logprobs", fields.switch, False),
    Field("top_logprobs", fields.whole(0, fields.MOST_TOP)),
    Field("reasoning_effort", fields.text),
    Field("enable_thinking", fields.switch),
    Field("chat_template_kwargs", fields.mapping),
)
"""Fields of a chat."""
NOT_OF_CHATS = ("echo", "heal", "parse_special", "shown_tokens", "reasoning_marks")
"""Options of a generation that a chat does not take."""

STRUCTURED = {"json": "json_schema", "regex": "regex", "grammar": "grammar"}
"""Keys of ``structured_outputs`` that are options of ours."""
MOST_CHOICES = 1024
"""Texts of which one may be asked for."""

_MEANS = re.compile(r"[\\.+*?()|\[\]{}^$]")


def force_chat(body: Body) -> dict[str, Any] | None:
    """Add the options that fields of a chat ask for; returns what the template is given."""
    own = body.own
    force_form(body)
    if own["top_logprobs"] and not own["logprobs"]:
        raise ParameterError("top_logprobs needs logprobs=true")
    if own["logprobs"]:
        body.options["logprobs"] = own["top_logprobs"] or 0
    return template_arguments(own, own["reasoning_effort"])


def template_arguments(own: Mapping[str, Any], effort: str | None) -> dict[str, Any] | None:
    """What the template is given; ``effort`` says how much the model reasons, None where it is not given."""
    made = dict(own.get("chat_template_kwargs") or {})
    return made | ({} if effort is None else {"reasoning_effort": effort}) or None


def force_form(body: Body) -> None:
    """Add the options that the fields of a text's form ask for."""
    own = body.own
    body.force("response_format", format_options(own["response_format"]))
    body.force("structured_outputs", _structured(own["structured_outputs"]))
    if own["guided_choice"] is not None:
        body.force("guided_choice", _one_of("guided_choice", own["guided_choice"]))


def format_options(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that a ``response_format`` asks for."""
    if asked is None:
        return {}
    name, kind = "response_format", asked.get("type")
    if kind == "text":
        known_keys(name, asked, ("type",))
        return {}
    if kind == "json_object":  # with a schema in llama.cpp's manner
        known_keys(name, asked, ("type", "schema"))
        return {"json_schema": asked.get("schema") or {"type": "object"}}
    if kind == "json_schema":
        known_keys(name, asked, ("type", "json_schema", "schema"))
        holder = asked.get("json_schema", asked if "schema" in asked else None)
        if holder is not asked and isinstance(holder, Mapping):
            known_keys(f"{name}.json_schema", holder, ("name", "description", "schema", "strict"))
        schema = holder.get("schema") if isinstance(holder, Mapping) else None
        if isinstance(schema, Mapping):
            return {"json_schema": schema}
        raise ParameterError(name, f"{name}.json_schema.schema is missing: give a JSON schema")
    raise ParameterError(
        name, f"{name}.type={kind!r:.80}: give 'text', 'json_object' or 'json_schema'"
    )


def _structured(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that vLLM's ``structured_outputs`` asks for."""
    name = "structured_outputs"
    given = {key: value for key, value in (asked or {}).items() if value is not None}
    known_keys(name, given, (*STRUCTURED, "choice", "json_object"))
    if not given:
        return {}
    if len(given) > 1:
        raise ParameterError(name, f"{name} has {' and '.join(given)}: give one of them")
    ((key, value),) = given.items()
    if key == "choice":
        return _one_of(f"{name}.choice", value)
    if key == "json_object":
        return {"json_schema": {"type": "object"}} if fields.switch(f"{name}.{key}", value) else {}
    return {STRUCTURED[key]: value}


def _one_of(name: str, texts: Any) -> dict[str, Any]:
    """The option that lets a text be one of some."""
    known = isinstance(texts, list) and all(isinstance(each, str) and each for each in texts)
    if not known or not 1 <= len(texts) <= MOST_CHOICES:
        raise wrong(name, texts, f"give 1 to {MOST_CHOICES} texts")
    return {"regex": "|".join(_MEANS.sub(r"\\\g<0>", each) for each in texts)}
