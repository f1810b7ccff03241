"""Forms that OpenAI's completions and chats share: errors, usage, log-probabilities, chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from json.encoder import encode_basestring
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.version import __version__
from aleator.engine.replay import KEY, Record
from aleator.generate.completion import Request, Stats
from aleator.generate.generation import Generation, PromptProgress, writing_of
from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.language_model import LanguageModel
from aleator.server.chat import Usage
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import MOST_COMPLETIONS, Field, known_keys, mapping, switch, text, whole
from aleator.server.openai_fields import OURS, TIMES
from aleator.server.service import Service
from aleator.server.streaming import DONE, dumps, event

FINISH = {
    "tool_calls": "tool_calls",
    "length": "length",
    "context": "length",
    "deadline": "length",
    "interrupted": "interrupted",
}
"""OpenAI's ``finish_reason`` where it is not "stop"."""

LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for what cannot be."""

Row = tuple[str, float | None, dict[str, float] | None, int]
"""A token's name, its log-probability, those of likely tokens, and its place in the text."""


class LegacyLogprobs:
    """Writes the log-probabilities of one completion, from its beginning on.

    ``text_offset`` counts the characters of the choice's text before a token, those of an echoed prompt
    included.  A token that has no text there, such as BOS, takes up none.
    """

    def __init__(
        self, model: LanguageModel, request: Request, prompt: str | Sequence[int], echo: bool
    ) -> None:
        self._model, self._request = model, request
        self._typed = prompt if isinstance(prompt, str) else None
        self._stream = model.tokenizer.stream(True, echo, request.options.shown_tokens)
        self._offset = 0

    def of_prompt(self, entries: Sequence[Logprobs | None]) -> list[Row]:
        """The tokens of a prompt, if it is echoed with them; of the first one nothing is known but its name."""
        if not entries:
            return []
        tokens = self._request.tokens
        return [
            (self._name(token), None, None, offset) if entry is None else _row(entry, offset)
            for token, entry, offset in zip(tokens, entries, self._offsets(tokens), strict=True)
        ]

    def of(self, entries: Sequence[Logprobs]) -> list[Row]:
        """The next tokens that were drawn."""
        made: list[Row] = []
        for entry in entries:
            made.append(_row(entry, self._offset))
            self._offset += len(self._stream.push(entry.chosen.token))
        return made

    def _offsets(self, tokens: Sequence[int]) -> list[int]:
        """Where each token of the prompt begins in its text."""
        tokenizer, vocab = self._model.tokenizer, self._model.vocab
        typed = self._typed
        # Names of control tokens are part of a text that has them, but BOS may have been put before it.
        stream = tokenizer.stream(typed is None, True, ())
        made: list[int] = []
        for i, token in enumerate(tokens):
            made.append(self._offset)
            added = i == 0 and token == vocab.bos and typed is not None
            if added and not (typed or "").startswith(self._name(token)):
                continue
            self._offset += len(stream.push(token))
        self._offset = len(self._request.echo) if self._request.echo else self._offset
        return made

    def _name(self, token: int) -> str:
        return self._model.vocab.token_bytes(token).decode("utf-8", "replace")


def _row(entry: Logprobs, offset: int) -> Row:
    top: dict[str, float] = {}
    for each in entry.top:
        top.setdefault(name_of(each), finite(each.logprob))
    return name_of(entry.chosen), finite(entry.chosen.logprob), top, offset


def name_of(entry: TokenLogprob) -> str:
    r"""A token's text; one that is not UTF-8 by itself is ``bytes:\xe2\x80``, as OpenAI writes it."""
    try:
        return entry.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)


def finite(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, LEAST_LOGPROB)


def lists_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Tokens as completions write them."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _stream_options(name: str, value: Any) -> dict[str, Any]:
    made = mapping(name, value)
    known_keys(name, made, ("include_usage", "include_obfuscation"))
    for each, wanted in made.items():
        switch(f"{name}.{each}", False if wanted is None else wanted)
    if made.get("include_obfuscation"):
        raise ParameterError(name, f"{name}.include_obfuscation=true: nothing is obfuscated")
    return made


SHARED = (
    Field("model", text),
    Field("stream", switch, False),
    Field("stream_options", _stream_options, {}),
    Field("n", whole(1, MOST_COMPLETIONS), 1),
    *OURS,
    *TIMES,
)
"""Fields of completions and chats alike."""


def timings(stats: Stats, n_predicted: int) -> dict[str, Any]:
    """``timings``: counts, milliseconds and rates of one completion.

    The first token comes of the prompt's last logits, so rates count the steps after it.
    """
    prompt_ms, predicted_ms = 1e3 * stats.prompt_seconds, 1e3 * stats.decode_seconds
    steps = max(0, n_predicted - 1)
    made: dict[str, Any] = {
        "cache_n": stats.reused_tokens,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, stats.prompt_tokens),
        "prompt_per_second": _ratio(1e3 * stats.prompt_tokens, prompt_ms),
        "predicted_n": n_predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, steps),
        "predicted_per_second": _ratio(1e3 * steps, predicted_ms),
    }
    if stats.draft_n:
        made |= {"draft_n": stats.draft_n, "draft_n_accepted": stats.draft_n_accepted}
    return made


def progressed(progress: PromptProgress, times: bool) -> dict[str, Any]:
    """``prompt_progress``, with ``timings`` where they are asked for: fields of an event before the text."""
    cached, computed, seconds = progress.cached, progress.computed, progress.seconds
    made: dict[str, Any] = {}
    if times:
        so_far = Stats(prompt_tokens=computed, reused_tokens=cached, prompt_seconds=seconds)
        made["timings"] = timings(so_far, 0)
    made["prompt_progress"] = {
        "total": progress.total,
        "cache": cached,
        "processed": cached + computed,
        "time_ms": int(1e3 * seconds),
    }
    return made


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def replay_field(service: Service, made: Iterable[Generation]) -> list[dict[str, Any]]:
    """The field ``aleator_replay`` of a response: the records of its texts, in their order."""
    return [Record.of(each, service.model, __version__).as_json() for each in made]


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


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


def usage_of(made: Sequence[Generation], n: int) -> Usage:
    """Tokens of completions that have ended, ``n`` of each prompt."""
    firsts = made[::n]
    return Usage(
        prompt=sum(len(each.request.tokens) for each in firsts),
        completion=sum(len(writing_of(each).completion.tokens) for each in made),
        cached=sum(each.stats.reused_tokens for each in firsts),
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
    """What all chunks of one response begin with, and what they have in common.

    Attributes:
        nothing: JSON of the usage of a chunk that has none; "": chunks have no such field.
    """

    def __init__(self, service: Service, kind: str, prefix: str, own: Mapping[str, Any]) -> None:
        self._service = service
        self._times, self._replay = own["timings_per_token"], own["aleator_replay"]
        self._set(
            {
                "id": f"{prefix}-{secrets.token_hex(12)}",
                "object": kind,
                "created": int(time.time()),
                "model": service.check_model(own["model"]),
                "system_fingerprint": service.fingerprint,
            }
        )
        if own["stream_options"] and not own["stream"]:
            raise ParameterError(
                "stream_options", "stream_options is for streams: give stream=true"
            )
        self.nothing = "null" if own["stream_options"].get("include_usage") else ""

    def of(self, kind: str) -> Head:
        """The head of the same response under another ``object``."""
        made = copy(self)
        made._set({**self._fields, "object": kind})
        return made

    def _set(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._begin = f'data: {dumps(fields)[:-1]},"choices":'.encode()

    def whole(
        self,
        choices: Sequence[Mapping[str, Any]],
        used: Usage,
        told: Iterable[Generation],
        first: Generation,
        n: int,
    ) -> dict[str, Any]:
        """A response that is no stream; timings are those of the first completion, which has ``n`` tokens."""
        made = {**self._fields, "choices": choices, "usage": usage(used), "seed": first.seed}
        if self._times:
            made["timings"] = timings(first.stats, n)
        if self._replay:
            made[KEY] = replay_field(self._service, told)
        return made

    def chunk(self, choices: str, usage: str | None = None, more: str = "") -> bytes:
        """An event of a stream.

        Args:
            choices: JSON of the choices' list, with :meth:`timed` behind it.
            usage: JSON of the usage; "": there is no such field; None: that of a chunk without.
            more: JSON of further fields.
        """
        usage = self.nothing if usage is None else usage
        told = f',"usage":{usage}' if usage else ""
        return b"".join((self._begin, choices.encode(), told.encode(), more.encode(), b"}\n\n"))

    def around(self, before: str, after: str) -> tuple[bytes, bytes] | None:
        """What stands around a text in its chunk; None where chunks differ in their timings, too."""
        if self._times:
            return None
        first, last = self.chunk(f"{before}\0{after}").split(b"\0")
        return first, last

    def timed(self, made: Generation, n: int) -> str:
        """``timings`` so far, as JSON that follows another field; "" where nobody asks for them."""
        return f',"timings":{dumps(timings(made.stats, n))}' if self._times else ""

    def progress(self, choice: Mapping[str, Any], progress: PromptProgress) -> bytes:
        """A chunk before the text, which says how far the prompt is."""
        return self.chunk(f"{dumps([choice])},{dumps(progressed(progress, self._times))[1:-1]}")

    def end(self, used: Usage, told: Sequence[Generation], n: int) -> bytes:
        """The end of a stream: usage and records, where they are asked for."""
        made = b""
        if self.nothing:
            made = self.chunk("[]" + self.timed(told[0], n), dumps(usage(used)))
        if self._replay:
            records = dumps(replay_field(self._service, told))
            made += self.chunk("[]", "", f',"{KEY}":{records}')
        return made + DONE


def texts_of_chunks(texts: Sequence[str], around: tuple[bytes, bytes]) -> bytes:
    """The chunks of texts, one for each."""
    before, after = around
    return b"".join([b"%b%b%b" % (before, encode_basestring(x).encode(), after) for x in texts])


def failed(error: BaseException) -> bytes:
    """An error in the middle of a stream."""
    return event(dumps(render_error(api_error(error))))
