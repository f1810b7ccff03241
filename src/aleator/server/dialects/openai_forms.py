"""Forms that OpenAI's completions and chats share: usage, log-probabilities, chunks of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from json.encoder import encode_basestring
from typing import Any

from aleator.core.errors import ParameterError
from aleator.generate.generation import Generation, writing_of
from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.generate.writing import PromptProgress
from aleator.replay import KEY
from aleator.server.chatting import Usage
from aleator.server.dialects.legacy_logprobs import finite
from aleator.server.dialects.openai_errors import render_error
from aleator.server.dialects.timings import progressed, timings
from aleator.server.errors import api_error
from aleator.server.fields import Field, anything, known_keys, mapping, switch, text, whole
from aleator.server.service import Service
from aleator.server.sse import event

MOST_COMPLETIONS = 128
"""Completions of one prompt, as OpenAI allows."""

SHARED = (
    Field("model", text),
    Field("stream", switch, False),
    Field("stream_options", lambda name, value: _stream_options(name, value), {}),
    Field("n", whole(1, MOST_COMPLETIONS), 1),
    Field("response_format", mapping),
    Field("structured_outputs", mapping),
    Field("guided_choice", anything),
    Field("deadline", lambda name, value: _seconds(name, value)),
    Field("cache_salt", text, ""),
    Field("aleator_replay", switch, False),
    Field("timings_per_token", switch, False),
    Field("return_progress", switch, False),
)
"""Fields of completions and chats alike.

Ours are ``deadline``, seconds after which the text ends; ``cache_salt``, whose prompts share what was computed
with those of the same salt only, as in vLLM; ``aleator_replay``, which asks for the records of the texts.
Those of llama-server are ``timings_per_token``, which asks for ``timings``, and ``return_progress``, which asks
a stream for ``prompt_progress``; those of vLLM are ``structured_outputs`` and ``guided_choice``.
"""

dumps: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


def _stream_options(name: str, value: Any) -> dict[str, Any]:
    made = mapping(name, value)
    known_keys(name, made, ("include_usage", "include_obfuscation"))
    for each, wanted in made.items():
        switch(f"{name}.{each}", False if wanted is None else wanted)
    if made.get("include_obfuscation"):
        raise ParameterError(name, f"{name}.include_obfuscation=true: nothing is obfuscated")
    return made


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
        raise ParameterError(name, f"{name}={value!r:.80}: give seconds, more than 0")
    return float(value)


def check_stream_options(own: Mapping[str, Any]) -> bool:
    """Whether a stream ends with its usage.

    Raises:
        ParameterError: Something is asked of a stream, and there is none.
    """
    if own["stream_options"] and not own["stream"]:
        raise ParameterError("stream_options", "stream_options is for streams: give stream=true")
    return bool(own["stream_options"].get("include_usage"))


def usage(used: Usage) -> dict[str, Any]:
    """Tokens as OpenAI counts them."""
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.total,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {
            "reasoning_tokens": used.reasoning,
            "accepted_prediction_tokens": used.draft_n_accepted,
            "rejected_prediction_tokens": used.draft_n - used.draft_n_accepted,
        },
    }


def usage_of(made: Sequence[Generation], prompts: Sequence[Generation]) -> Usage:
    """Tokens of completions that have ended; ``prompts`` are those whose prompts count."""
    return Usage(
        prompt=sum(len(each.request.tokens) for each in prompts),
        completion=sum(len(writing_of(each).completion.tokens) for each in made),
        cached=sum(each.stats.reused_tokens for each in prompts),
        draft_n=sum(each.stats.draft_n for each in made),
        draft_n_accepted=sum(each.stats.draft_n_accepted for each in made),
    )


def chat_logprobs(entries: Sequence[Logprobs] | None) -> dict[str, Any] | None:
    """Log-probabilities of a chat; None where none were asked for."""
    if entries is None:
        return None
    content = [
        {**_token(each.chosen), "top_logprobs": [_token(top) for top in each.top]}
        for each in entries
    ]
    return {"content": content, "refusal": None}


def _token(each: TokenLogprob) -> dict[str, Any]:
    return {"token": each.text, "logprob": finite(each.logprob), "bytes": list(each.bytes)}


class Head:
    """What all chunks of one response begin with.

    Args:
        service: Serves it.
        kind: OpenAI's ``object``.
        prefix: Of the response's id.
        model: What the response calls the model.

    Attributes:
        fields: The same fields as a dictionary, for responses that are no streams.
    """

    def __init__(self, service: Service, kind: str, prefix: str, model: str) -> None:
        self.fields: dict[str, Any]
        self._set(
            {
                "id": f"{prefix}-{secrets.token_hex(12)}",
                "object": kind,
                "created": int(time.time()),
                "model": model,
                "system_fingerprint": service.fingerprint,
            }
        )

    def of(self, kind: str) -> Head:
        """The head of the same response under another ``object``."""
        made = copy(self)
        made._set({**self.fields, "object": kind})
        return made

    def _set(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._begin = f'data: {dumps(fields)[:-1]},"choices":'.encode()

    def chunk(self, choices: str, usage: str = "", replay: Sequence[Any] | None = None) -> bytes:
        """An event of a stream.

        Args:
            choices: JSON of the choices' list, with :func:`timed` behind it where that is asked for.
            usage: JSON of the usage; "": there is no such field.
            replay: Records of the texts; None: there is no such field.
        """
        more = f',"usage":{usage}' if usage else ""
        if replay is not None:
            more += f',"{KEY}":{dumps(replay)}'
        return b"".join((self._begin, choices.encode(), more.encode(), b"}\n\n"))

    def around(self, before: str, after: str, usage: str) -> tuple[bytes, bytes]:
        """What stands before and after a text in its chunk, for chunks that differ in their text alone.

        Args:
            before: JSON of the choices up to the text.
            after: And from its end on.
            usage: As for :meth:`chunk`.
        """
        first, last = self.chunk(f"{before}\0{after}", usage).split(b"\0")
        return first, last


def texts_of_chunks(texts: Sequence[str], around: tuple[bytes, bytes]) -> bytes:
    """The chunks of texts, one for each.

    Args:
        texts: What is new.
        around: As :meth:`Head.around` makes it.
    """
    before, after = around
    return b"".join([b"%b%b%b" % (before, encode_basestring(x).encode(), after) for x in texts])


def timed(made: Generation, n: int) -> str:
    """``timings`` so far, as JSON that follows another field.

    Args:
        made: A completion.
        n: Its tokens so far.
    """
    return f',"timings":{dumps(timings(made.stats, n))}'


def with_progress(progress: PromptProgress, times: bool) -> str:
    """``prompt_progress`` as JSON that follows another field.

    Args:
        progress: Of the prompt.
        times: Whether timings are told.
    """
    return "," + dumps(progressed(progress, times))[1:-1]


def failed(error: BaseException) -> bytes:
    """An error in the middle of a stream."""
    return event(dumps(render_error(api_error(error))))
