"""``/v1/completions``: OpenAI's plain completions, with everything that evaluation harnesses need of them."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.generate.generation import Generation, writing_of
from aleator.generate.logprobs import Logprobs
from aleator.generate.writing import Piece, PromptProgress
from aleator.replay import KEY
from aleator.server.bodies import body_of, in_thread
from aleator.server.caller import own_namespace
from aleator.server.dialects.legacy_logprobs import LegacyLogprobs, joined
from aleator.server.dialects.openai_errors import render_error as render_error
from aleator.server.dialects.openai_forms import (
    MOST_COMPLETIONS,
    SHARED,
    Head,
    check_stream_options,
    dumps,
    failed,
    texts_of_chunks,
    timed,
    usage,
    usage_of,
    with_progress,
)
from aleator.server.dialects.timings import timings
from aleator.server.errors import spelled_as
from aleator.server.fields import Body, Field, Fields, switch, text, whole
from aleator.server.infilling import infilling
from aleator.server.records import replay_field
from aleator.server.service import Service
from aleator.server.sse import DONE, EventStream, merged, unless_gone
from aleator.server.structured import force_form
from aleator.server.wire import Line

MOST_PROMPTS = 2048
"""Prompts of one request."""

FIELDS = Fields(
    *SHARED,
    Field("prompt", lambda name, value: prompts_of(name, value), required=True),
    Field("suffix", text),
    Field("best_of", whole(1, MOST_COMPLETIONS)),
    Field("echo", switch, False),
    Field("parse_special", switch, True),
    without=("shown_tokens", "reasoning_marks"),
)

FINISH = {
    "length": "length",
    "context": "length",
    "deadline": "length",
    "interrupted": "interrupted",
}
"""OpenAI's ``finish_reason`` where it is not "stop"."""


@dataclass
class Choice:
    """One completion of one prompt.

    Attributes:
        index: In the response.
        generation: Makes its text.
        legacy: Writes its log-probabilities; None where none were asked for.
        reads: Notes what the model thinks of the prompt's tokens as it computes them; None: nobody does.
    """

    index: int
    generation: Generation
    legacy: LegacyLogprobs | None
    reads: Generation | None = None

    async def read(self) -> None:
        """Wait until it is known what the model thinks of the prompt, where that is told."""
        if self.reads is not None:
            await writing_of(self.reads).wait_for_prompt()

    @property
    def prompt(self) -> Sequence[Logprobs | None]:
        """Those of the prompt's tokens, where it is echoed with them; [] where its time was over."""
        if self.reads is None:
            return ()
        made = self.reads.prompt_logprobs
        return made if len(made) == len(self.reads.request.tokens) else []


async def completions(request: Request) -> Response:
    """Continue prompts, at once or as a stream."""
    service: Service = request.app.state.service
    body = FIELDS.read(await body_of(request), service.options.lenient)
    own = body.own
    head = Head(service, "text_completion", "cmpl", service.check_model(own["model"]))
    include_usage = check_stream_options(own)
    best_of = own["best_of"] or own["n"]
    if best_of < own["n"]:
        raise ParameterError("best_of", f"best_of={best_of}: give at least n={own['n']}")
    if own["stream"] and best_of > own["n"]:
        raise ParameterError(
            "best_of", f"best_of={best_of}: a stream cannot be chosen from: leave it out"
        )
    force_form(body)
    with spelled_as(body.names):
        choices = await _begin(service, body, best_of)

    def gone() -> None:
        for choice in choices:
            choice.generation.cancel()

    headers = {"x-aleator-seed": str(choices[0].generation.seed)}
    if own["stream"]:
        replays = service if own["aleator_replay"] else None
        times = own["timings_per_token"]
        nothing = "null" if include_usage else ""
        told = [Telling(choice, head, nothing, times) for choice in choices]
        progress = own["return_progress"]
        line = Line[Piece](told[0].chunks) if len(told) == 1 else None
        return EventStream(
            _events(told, head, include_usage, own["n"], replays, line, progress),
            gone,
            failed,
            headers=headers,
            line=line,
        )
    await unless_gone(request, _ended(choices), gone)
    firsts = [choice.generation for choice in choices[::best_of]]
    made = {
        **head.fields,
        "choices": await in_thread(_chosen, choices, own["n"], best_of),
        "usage": usage(usage_of([choice.generation for choice in choices], firsts)),
        "seed": choices[0].generation.seed,
    }
    if own["timings_per_token"]:
        first = choices[0].generation
        made["timings"] = timings(first.stats, len(writing_of(first).completion.tokens))
    if own["aleator_replay"]:
        shown = (each for best in _best(choices, own["n"], best_of) for each in best)
        made[KEY] = replay_field(service, (each.generation for each in shown))
    return JSONResponse(made, headers=headers)


def prompts_of(name: str, value: Any) -> list[str] | list[list[int]]:
    """The prompts of a request: a text, token ids, or a list of either.

    Raises:
        ParameterError: Anything else; says which item.
    """
    items = value if isinstance(value, list) else [value]
    if items is value and value and all(type(each) is int for each in value):
        items = [value]
    if not 1 <= len(items) <= MOST_PROMPTS:
        raise ParameterError(name, f"{name} has {len(items)} items: give 1 to {MOST_PROMPTS}")
    kinds = {type(each) for each in items}
    if kinds == {str}:
        return list(items)
    if kinds == {list}:
        for i, each in enumerate(items):
            wrong = [x for x in each if isinstance(x, bool | float) or exact(x) is None]
            if wrong or not each:
                what = f"has {wrong[0]!r:.80}" if wrong else "is empty"
                raise ParameterError(
                    name, f"{name}[{i}] {what}: give a text, or token ids, at least one"
                )
        return list(items)
    raise ParameterError(
        name, f"{name}={value!r:.80}: give a text, a list of token ids, or a list of either"
    )


async def _begin(service: Service, body: Body, best_of: int) -> list[Choice]:
    """Begin all completions of all prompts; where one cannot be, none is."""
    own, options = body.own, dict(body.options)
    prompts, suffix, echo = own["prompt"], own["suffix"], own["echo"]
    parse_special = own["parse_special"]
    if suffix and echo:
        raise ParameterError("suffix", "suffix and echo are both given: leave one of them out")
    top = options.get("logprobs")
    if best_of > own["n"] and top is None:
        options["logprobs"] = 0  # to choose by
    options |= {"echo": echo, "parse_special": parse_special}
    told = top if echo else None  # of the prompt
    choices: list[Choice] = []
    try:
        for prompt in prompts:
            asked = prompt
            if suffix:
                asked = await in_thread(
                    infilling, service.model.tokenizer, prompt, suffix, parse_special
                )
            begun = await service.submit(
                asked,
                options,
                n=best_of,
                deadline=own["deadline"],
                namespace=own_namespace(own["cache_salt"]),
                prompt_logprobs=told,
            )
            for each in begun:
                legacy = None
                if top is not None:
                    legacy = LegacyLogprobs(service.model, each.request, prompt, echo)
                reads = begun[0] if told is not None else None
                choices.append(Choice(len(choices), each, legacy, reads=reads))
            options["seed"] = begun[0].seed  # one for all, if none was given
    except BaseException:
        for choice in choices:
            choice.generation.cancel()
        raise
    return choices


async def _ended(choices: Sequence[Choice]) -> None:
    for choice in choices:
        await choice.generation


def _chosen(choices: Sequence[Choice], n: int, best_of: int) -> list[dict[str, Any]]:
    """The choices of a response: of each prompt's the ``n`` best."""
    made: list[dict[str, Any]] = []
    for best in _best(choices, n, best_of):
        for choice in best:
            logprobs = None
            if choice.legacy is not None:
                told = choice.generation.logprobs or []
                logprobs = joined(choice.legacy.of_prompt(choice.prompt), choice.legacy.of(told))
            made.append(
                {"index": len(made), "text": choice.generation.text, "logprobs": logprobs}
                | _finish(choice.generation)
            )
    return made


def _best(choices: Sequence[Choice], n: int, best_of: int) -> Iterator[list[Choice]]:
    """The ``n`` best completions of each prompt."""
    for first in range(0, len(choices), best_of):
        some = list(choices[first : first + best_of])
        if best_of > n:
            some.sort(key=_mean_logprob, reverse=True)  # stable: of equal ones the first
        yield some[:n]


def _mean_logprob(choice: Choice) -> float:
    told = choice.generation.logprobs or []
    return math.fsum(each.chosen.logprob for each in told) / max(1, len(told))


def _finish(made: Generation) -> dict[str, Any]:
    """How a completion ended; it must have."""
    return {
        "finish_reason": FINISH.get(made.stop_reason, "stop"),
        "stop_reason": made.stop_string,
    }


class Telling:
    """Writes the chunks of one completion.

    Args:
        choice: The completion.
        head: Of the chunks.
        nothing: JSON of their usage.
        times: Whether they tell how long the completion took so far.
    """

    def __init__(self, choice: Choice, head: Head, nothing: str, times: bool) -> None:
        self.choice, self._times = choice, times
        self._head, self._nothing = head, nothing
        self._around: tuple[bytes, bytes] | None = None
        if choice.legacy is None and not times:  # chunks differ in their text alone
            end = ',"logprobs":null,"finish_reason":null}]'
            self._around = head.around(f'[{{"index":{choice.index},"text":', end, nothing)
        self._told = 0  # tokens whose log-probabilities were given
        self._prompt: Sequence[Logprobs | None] = ()  # what was not given of the prompt

    def begin(self) -> None:
        """It is known what the model thinks of the prompt, where that is told."""
        self._prompt = self.choice.prompt

    def progress(self, progress: PromptProgress) -> bytes:
        """A chunk before the text."""
        choice = {"index": self.choice.index, "text": "", "logprobs": None, "finish_reason": None}
        return self._head.chunk(
            dumps([choice]) + with_progress(progress, self._times), self._nothing
        )

    def chunks(self, pieces: Sequence[Piece]) -> bytes:
        """The chunks of pieces."""
        if self._around is not None:
            return texts_of_chunks([piece.text for piece in pieces], self._around)
        index, head, made = self.choice.index, self._head, []
        for piece in pieces:
            logprobs = dumps(self._logprobs(piece.end))
            made.append(
                head.chunk(
                    f'[{{"index":{index},"text":{encode_basestring(piece.text)},"logprobs":{logprobs},'
                    f'"finish_reason":null}}]{self.timings(piece.end)}',
                    self._nothing,
                )
            )
        return b"".join(made)

    def last(self) -> bytes:
        """The chunk that says why it ended."""
        made = self.choice.generation
        n = len(writing_of(made).completion.tokens)
        last = {"index": self.choice.index, "text": "", "logprobs": self._logprobs(n)}
        return self._head.chunk(dumps([last | _finish(made)]) + self.timings(n), self._nothing)

    def timings(self, n: int) -> str:
        """How long so many tokens took, as JSON that follows another field; "" where it is not told."""
        return timed(self.choice.generation, n) if self._times else ""

    def _logprobs(self, end: int) -> Any:
        """Log-probabilities of the tokens up to a place that were not told yet."""
        legacy, prompt = self.choice.legacy, self._prompt
        if legacy is None:
            return None
        since, self._told, self._prompt = self._told, end, ()
        return joined(
            legacy.of_prompt(prompt),
            legacy.of(writing_of(self.choice.generation).completion.logprobs[since:end]),
        )


async def _events(
    told: Sequence[Telling],
    head: Head,
    include_usage: bool,
    n: int,
    replays: Service | None,
    line: Line[Piece] | None,
    progress: bool,
) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream; what is there together is sent together.

    Args:
        told: The completions of the response.
        head: Of its chunks.
        include_usage: Whether it ends with its usage.
        n: Completions of each prompt.
        replays: Makes the records that it ends with; None: it does not.
        line: Sends chunks of an only completion itself where it can.
        progress: Whether it begins with the progress of the prompts.
    """
    async for made in merged([_chunks(each, line, progress) for each in told]):
        yield made
    generations = [each.choice.generation for each in told]
    end = b""
    if include_usage:
        more = told[0].timings(len(writing_of(generations[0]).completion.tokens))
        end = head.chunk("[]" + more, dumps(usage(usage_of(generations, generations[::n]))))
    if replays is not None:
        end += head.chunk("[]", replay=replay_field(replays, generations))
    yield end + DONE


async def _chunks(told: Telling, line: Line[Piece] | None, progress: bool) -> AsyncIterator[bytes]:
    """The chunks of one completion; those together that are there together.

    Args:
        told: Writes them.
        line: Sends chunks itself where it can; those are not given here.
        progress: Whether the progress of the prompt is told first.
    """
    writing = writing_of(told.choice.generation)
    if progress:
        async for each in writing.prompt_progress():
            yield told.progress(each)
    await told.choice.read()
    told.begin()
    while True:
        if line is not None:
            await line.follow(writing, lambda pieces: pieces)
        pieces = await writing.next_pieces()
        if not pieces:
            break
        yield told.chunks(pieces)
    yield told.last()


ROUTES = [
    Route("/v1/completions", completions, methods=["POST"]),
]
