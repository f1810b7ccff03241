"""``/v1/completions``: OpenAI's plain completions, including what evaluation harnesses need."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.generate.generation import Generation, Piece, reader_of
from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.language_model import LanguageModel
from aleator.server import fields
from aleator.server.auth import namespace_asked
from aleator.server.bodies import in_thread
from aleator.server.chat import Usage
from aleator.server.dialects.llama_infill import infilling
from aleator.server.dialects.openai_beams import found_by, search_of
from aleator.server.dialects.openai_chat import FINISH, SHARED, Head, failed, texts_of_chunks
from aleator.server.fields import MOST_PROMPTS, Body, Field, Fields, wrong
from aleator.server.openai_fields import FORM, finite, force_form, kept_tokens
from aleator.server.service import Service, read_body
from aleator.server.streaming import EventStream, Line, dumps, merged, unless_gone

Row = tuple[str, float | None, dict[str, float] | None, int]
"""A token's name, its log-probability, those of likely tokens, and its offset in the text."""

FIELDS = Fields(
    *SHARED,
    *FORM,
    Field("prompt", lambda name, value: prompts_of(name, value), required=True),
    Field("suffix", fields.text),
    Field("echo", fields.switch, False),
    Field("parse_special", fields.switch, True),
    without=("shown_tokens", "reasoning_marks"),
)


class LegacyLogprobs:
    """Writes the log-probabilities of one completion.

    ``text_offset`` counts the characters of the choice's text before a token, including those of an echoed
    prompt.  A token without text there, such as BOS, has length 0.
    """

    def __init__(
        self, model: LanguageModel, generation: Generation, prompt: str | Sequence[int], echo: bool
    ) -> None:
        self._model, self._request = model, generation.request
        self._typed = prompt if isinstance(prompt, str) else None
        options, (_, taken) = self._request.options, self._request.taken_back
        n_again = sum(len(model.vocab.token_bytes(token)) for token in taken)
        self._stream = model.tokenizer.stream(True, echo, options.shown_tokens, n_again)
        self._offset = 0

    def of_prompt(self, entries: Sequence[Logprobs | None]) -> list[Row]:
        """The tokens of an echoed prompt with log-probabilities; of the first only the name is known."""
        if not entries:
            return []
        tokens = self._request.tokens
        return [
            (self._name(token), None, None, offset) if entry is None else _row(entry, offset)
            for token, entry, offset in zip(tokens, entries, self._offsets(tokens), strict=True)
        ]

    def of(self, entries: Sequence[Logprobs]) -> list[Row]:
        """The next drawn tokens."""
        made: list[Row] = []
        for entry in entries:
            made.append(_row(entry, self._offset))
            self._offset += len(self._stream.push(entry.chosen.token))
        return made

    def _offsets(self, tokens: Sequence[int]) -> list[int]:
        """Offset of each prompt token in the prompt's text."""
        tokenizer, vocab = self._model.tokenizer, self._model.vocab
        typed = self._typed
        # A text may contain names of control tokens, but BOS may also have been prepended to it.
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


def usage_of(made: Sequence[Generation], firsts: Sequence[Generation]) -> Usage:
    """Token counts of ended completions; ``firsts`` has one of each prompt."""
    return Usage(
        prompt=sum(len(each.request.tokens) for each in firsts),
        completion=sum(len(reader_of(each).completion.tokens) for each in made),
        cached=sum(each.stats.reused_tokens for each in firsts),
        draft_n=sum(each.stats.draft_n for each in made),
        draft_n_accepted=sum(each.stats.draft_n_accepted for each in made),
    )


@dataclass(eq=False)
class Choice:
    """One completion of one prompt; ``reads`` records the log-probabilities of the prompt's tokens."""

    index: int
    generation: Generation
    head: Head
    legacy: LegacyLogprobs | None = None
    reads: Generation | None = None
    around: tuple[bytes, bytes] | None = None
    reported: int | None = None  # tokens that chunks have reported; None: not even the prompt's

    async def stream(self, line: Line[Piece] | None, progress: bool) -> AsyncIterator[bytes]:
        """Yield the chunks, in batches of those available, except those that ``line`` sends itself."""
        reader = reader_of(self.generation)
        if self.legacy is None:  # chunks differ only in their text
            end = ',"logprobs":null,"finish_reason":null}]'
            self.around = self.head.around(f'[{{"index":{self.index},"text":', end)
        if progress:
            none = {"text": "", "logprobs": None, "finish_reason": None}
            async for each in reader.prompt_progress():
                yield self.head.progress({"index": self.index, **none}, each)
        if self.reads is not None:
            await reader_of(self.reads).wait_for_prompt()
        while True:
            if line is not None:
                await line.follow(reader, lambda pieces: pieces)
            pieces = await reader.next_pieces()
            if not pieces:
                break
            yield self.chunks(pieces)
        yield self._chunk("", len(reader.completion.tokens), self.finish())

    def chunks(self, pieces: Sequence[Piece]) -> bytes:
        """Chunks for pieces of text."""
        if self.around is not None:
            return texts_of_chunks([piece.text for piece in pieces], self.around)
        none = {"finish_reason": None}
        return b"".join([self._chunk(piece.text, piece.end, none) for piece in pieces])

    def _chunk(self, text: str, n: int, finish: Mapping[str, Any]) -> bytes:
        logprobs, ids = self._new_tokens(n)
        choice = {"index": self.index, "text": text, "logprobs": logprobs, **finish, **ids}
        return self.head.chunk(dumps([choice]) + self.head.timed(self.generation, n))

    def _new_tokens(
        self, end: int | None = None
    ) -> tuple[dict[str, list[Any]] | None, dict[str, Any]]:
        """Log-probabilities of the unreported tokens up to ``end``, the prompt's first; and vLLM's ids."""
        made, logprobs = reader_of(self.generation).completion, None
        ids: dict[str, Any] = {}
        first, since, self.reported = self.reported is None, self.reported or 0, end
        if self.legacy is not None:
            prompt = self._of_prompt() if first else ()
            rows = [*self.legacy.of_prompt(prompt), *self.legacy.of(made.logprobs[since:end])]
            names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            logprobs = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        if self.head.token_ids:
            ids["token_ids"] = made.tokens[since:end]
            if first:
                ids["prompt_token_ids"] = made.request.tokens
        return logprobs, ids

    def _of_prompt(self) -> Sequence[Logprobs | None]:
        """Those of an echoed prompt's tokens; () if its time was over."""
        if self.reads is None:
            return ()
        made = self.reads.prompt_logprobs
        return made if len(made) == len(self.reads.request.tokens) else ()

    def finish(self) -> dict[str, Any]:
        """Why it ended, once it has ended."""
        made = self.generation
        reason = FINISH.get(made.stop_reason, "stop")
        return {"finish_reason": reason, "stop_reason": made.stop_string}

    def whole(self, index: int) -> dict[str, Any]:
        """The whole completion as a choice of a response without streaming."""
        logprobs, ids = self._new_tokens()
        choice = {"index": index, "text": self.generation.text, "logprobs": logprobs}
        return choice | ids | self.finish() | kept_tokens(self.generation.logprobs)


async def completions(request: Request) -> Response:
    """Complete prompts, as a whole or as a stream."""
    service, body = await read_body(request, FIELDS)
    own = body.own
    head = Head(service, "text_completion", "cmpl", own)
    best_of, beams = own["best_of"] or own["n"], search_of(body)
    if best_of < own["n"]:
        raise ParameterError(f"best_of={best_of}: give at least n={own['n']}")
    if own["stream"] and best_of > own["n"]:
        raise ParameterError(f"best_of={best_of}: a stream cannot be chosen from: leave it out")
    force_form(body)
    service.check_kept(body, best_of * len(own["prompt"]))
    with body.spelling():
        choices = await _begin(service, body, best_of, head, beams)

    def gone() -> None:
        for choice in choices:
            choice.generation.cancel()

    headers = {"x-aleator-seed": str(choices[0].generation.seed)}
    if own["stream"]:
        line = Line[Piece](choices[0].chunks) if len(choices) == 1 else None
        events = _events(choices, head, own, line)
        return EventStream(events, gone, failed, headers=headers, line=line)
    begun = [each.generation for each in choices]
    first = begun[0]
    if beams is not None:
        found = await unless_gone(request, found_by(begun), gone)
        best = [Choice(i, each, head) for i, (each, _) in enumerate(found)]
        extras, used = [more for _, more in found], usage_of([each for each, _ in found], begun)
    else:
        await unless_gone(request, _ended(choices), gone)
        best = await in_thread(_best, choices, own["n"], best_of)
        extras, used = [{} for _ in best], usage_of(begun, begun[::best_of])
    made = head.whole(
        await in_thread(lambda: [each.whole(i) | extras[i] for i, each in enumerate(best)]),
        used,
        (each.generation for each in best),
        first,
        len(reader_of(first).completion.tokens),
    )
    return JSONResponse(made, headers=headers)


def prompts_of(name: str, value: Any) -> list[str] | list[list[int]]:
    """Check the prompts of a request: a text, token ids, or a list of either."""
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
            strange = [x for x in each if not fields.is_whole(x)]
            if strange or not each:
                what = f"has {strange[0]!r:.80}" if strange else "is empty"
                raise ParameterError(
                    name, f"{name}[{i}] {what}: give a text, or token ids, at least one"
                )
        return list(items)
    raise wrong(name, value, "give a text, a list of token ids, or a list of either")


async def _begin(
    service: Service, body: Body, best_of: int, head: Head, beams: Mapping[str, Any] | None
) -> list[Choice]:
    """Start all completions of all prompts, or a search for each; if one cannot start, none does."""
    own, options = body.own, dict(body.options)
    prompts, suffix, echo = own["prompt"], own["suffix"], own["echo"]
    parse_special = own["parse_special"]
    if suffix and echo:
        raise ParameterError("suffix and echo are both given: leave one of them out")
    top = options.get("logprobs")
    if best_of > own["n"] and top is None:
        options["logprobs"] = 0  # to rank by
    options |= {"echo": echo, "parse_special": parse_special}
    prompt_top = top if echo else None  # of the prompt
    where = namespace_asked(own)
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
                namespace=where,
                prompt_logprobs=prompt_top,
                beams=beams,
            )
            reads = None if prompt_top is None else begun[0]
            for each in begun:
                legacy = None if top is None else LegacyLogprobs(service.model, each, prompt, echo)
                choices.append(Choice(len(choices), each, head, legacy, reads))
            options["seed"] = begun[0].seed  # one for all, if none was given
    except BaseException:
        for choice in choices:
            choice.generation.cancel()
        raise
    return choices


async def _ended(choices: Sequence[Choice]) -> None:
    for choice in choices:
        await choice.generation


def _best(choices: Sequence[Choice], n: int, best_of: int) -> list[Choice]:
    """The ``n`` best completions of each prompt."""
    made: list[Choice] = []
    for first in range(0, len(choices), best_of):
        some = list(choices[first : first + best_of])
        if best_of > n:
            some.sort(key=_mean_logprob, reverse=True)  # stable: the first of equal ones wins
        made += some[:n]
    return made


def _mean_logprob(choice: Choice) -> float:
    entries = choice.generation.logprobs or []
    return math.fsum(each.chosen.logprob for each in entries) / max(1, len(entries))


async def _events(
    choices: Sequence[Choice], head: Head, own: Mapping[str, Any], line: Line[Piece] | None
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a stream; ``line`` sends those of a single completion itself if possible."""
    async for made in merged([each.stream(line, own["return_progress"]) for each in choices]):
        yield made
    generations = [each.generation for each in choices]
    n = len(reader_of(generations[0]).completion.tokens)
    yield head.end(usage_of(generations, generations[:: own["n"]]), generations, n)


ROUTES = [Route("/v1/completions", completions, methods=["POST"])]
