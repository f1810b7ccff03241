"""``/completion``: llama-server's own completions."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ContextFull
from aleator.engine.replay import KEY
from aleator.generate.generation import Generation, Piece, reader_of
from aleator.server.adapters import numbered
from aleator.server.auth import own_namespace
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_fields import FIELDS, Prompt, options_of, tokens_of
from aleator.server.dialects.llama_results import (
    STOP_TYPES,
    PostSampling,
    TooLong,
    chosen,
    probabilities,
    render_error,
    settings,
    without_text,
)
from aleator.server.dialects.llama_slots import Slots
from aleator.server.dialects.openai_forms import progressed, replay_field, timings
from aleator.server.fields import Body
from aleator.server.service import Service, read_body
from aleator.server.streaming import EventStream, Line, dumps, event, failing, merged, unless_gone


class Reading:
    """One completion as its response tells it."""

    def __init__(
        self,
        service: Service,
        index: int,
        generation: Generation,
        own: Mapping[str, Any],
        after: PostSampling | None,
    ) -> None:
        self.index, self.generation = index, generation
        self.id_slot: int = own["id_slot"]
        self._service, self._own, self._after = service, own, after
        self._made = reader_of(generation).completion
        self.text, self.n_predicted, self._cut = "", 0, False
        self._reported = 0  # tokens that events of a stream have reported
        self._limit: float = own["t_max_predict_ms"]
        # A line that is indented by less than so much ends the text, where its first character stands.
        indent: int = own["n_indent"]
        self._short = re.compile(rf"\n[ \t]{{0,{indent - 1}}}(?=[^ \t])") if indent else None

    def described(self) -> dict[str, Any]:
        """What ``/slots`` tells of it."""
        request, stats = self.generation.request, self.generation.stats
        most, n = request.options.max_tokens, len(self._made.tokens)
        return {
            "n_prompt_tokens": len(request.tokens),
            "n_prompt_tokens_processed": stats.prompt_tokens,
            "n_prompt_tokens_cache": stats.reused_tokens,
            "params": without_text(self._settings()),
            "next_token": [
                {
                    "has_next_token": not self.generation.done,
                    "has_new_line": "\n" in self.text,
                    "n_remain": -1 if most is None else most - n,
                    "n_decoded": n,
                }
            ],
        }

    async def pieces(self, line: Line[dict[str, Any]] | None = None) -> AsyncIterator[list[Piece]]:
        """The pieces up to where it ends, those together that are there together; ``line`` sends some."""
        if self._own["n_predict"] == 0:  # the prompt was computed, and that is all that is wanted
            await self.generation
            return
        simple = self._short is None and self._limit <= 0  # no piece ends the text
        while True:
            if line is not None and simple:
                await line.follow(reader_of(self.generation), self._read_all)
            made = await reader_of(self.generation).next_pieces()
            if not made:
                break
            events = []
            for piece in made:
                events.append(self._read(piece))
                if self._ends_text(events[-1]):
                    self.generation.cancel()
                    yield events
                    return
            yield events
        self.n_predicted = len(self._made.tokens)

    async def stream(
        self, line: Line[dict[str, Any]] | None
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """The events of a stream; those that the line sends are not given here."""
        if self._own["return_progress"]:
            times = self._own["timings_per_token"]
            async for progress in reader_of(self.generation).prompt_progress():
                yield [self._event(Piece("", 0), []) | progressed(progress, times)]
        async for pieces in self.pieces(line):
            yield [self.event(piece) for piece in pieces]
        yield [self.final(stream=True)]

    def _read_all(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        return [self.event(self._read(piece)) for piece in pieces]

    def _read(self, piece: Piece) -> Piece:
        """A piece, or as much of it as belongs to the text."""
        before, self.n_predicted = len(self.text), piece.end
        self.text += piece.text
        short = self._short.search(self.text, max(0, before - 256)) if self._short else None
        if short is not None:
            self.text, self._cut = self.text[: short.end()], True
        return Piece(self.text[before:], piece.end)

    def _ends_text(self, piece: Piece) -> bool:
        """Whether the text ends here though its generation goes on: an indentation, or the time."""
        if "\n" in piece.text and 0 < self._limit < 1e3 * self.generation.stats.decode_seconds:
            self._cut = True
        return self._cut

    def event(self, piece: Piece) -> dict[str, Any]:
        """The event of a stream for what is new."""
        begin, self._reported = self._reported, piece.end
        made = self._event(piece, self._made.tokens[begin : piece.end])
        if self._own["timings_per_token"]:
            made["timings"] = timings(self.generation.stats, piece.end)
        return made | self._probabilities(begin, piece.end)

    def _event(self, piece: Piece, tokens: Sequence[int]) -> dict[str, Any]:
        return {
            "index": self.index,
            "content": piece.text,
            "tokens": tokens,
            "stop": False,
            "id_slot": self.id_slot,
            "tokens_predicted": piece.end,
            "tokens_evaluated": len(self.generation.request.tokens),
        }

    def final(self, stream: bool = False) -> dict[str, Any]:
        """The response, or the last event of a stream."""
        generation, own = self.generation, self._own
        request, n = generation.request, self.n_predicted
        reason = "length" if self._cut or own["n_predict"] == 0 else generation.stop_reason
        tokens: list[int] = []
        if stream or own["return_tokens"]:
            tokens = self._made.tokens[self._reported : n]
        shifted = generation.stats.context_shifts > 0
        made: dict[str, Any] = {
            "index": self.index,
            "content": "" if stream else self.text,
            "tokens": tokens,
            "id_slot": self.id_slot,
            "stop": True,
            "model": own["model"],
            "tokens_predicted": n,
            "tokens_evaluated": len(request.tokens),
            "generation_settings": self._settings(),
            "prompt": self._service.model.tokenizer.decode(request.tokens),
            "has_new_line": "\n" in self.text,
            "truncated": reason == "context" or shifted,
            "stop_type": STOP_TYPES.get(reason, "limit"),
            "stopping_word": generation.stop_string or "" if reason == "stop" else "",
            "tokens_cached": len(request.tokens) + max(0, n - 1),
            "timings": timings(generation.stats, n),
        }
        if not stream:
            made |= self._probabilities(0, n)
        if own["aleator_replay"]:
            made[KEY] = replay_field(self._service, [generation])
        return chosen(own["response_fields"], made)

    def _probabilities(self, first: int, end: int) -> dict[str, Any]:
        if not self._own["n_probs"] or first >= end:
            return {}
        if self._after is not None:
            return {"completion_probabilities": self._after.entries(self.generation, first, end)}
        entries = self._made.logprobs[first:end]
        return {"completion_probabilities": probabilities(entries)}

    def _settings(self) -> dict[str, Any]:
        request, own = self.generation.request, self._own
        about = {
            name: own[name]
            for name in ("stream", "n_probs", "timings_per_token", "post_sampling_probs")
        }
        about["n_keep"] = own["n_keep"] or 0
        if own["n_predict"] == 0:
            about |= {"n_predict": 0, "max_tokens": 0}
        about["lora"] = numbered(request.options.adapters, self._service.adapters)
        return settings(request.params, request.options, self._service.model.tokenizer, about)


async def completion(request: Request) -> Response:
    """Continue prompts, at once or as a stream."""
    _, body = await read_body(request, FIELDS)
    several, prompts = body.own.pop("prompt")
    return await respond(request, body, prompts, several)


async def respond(
    request: Request, body: Body, prompts: Sequence[Prompt], several: bool = False
) -> Response:
    """Continue prompts as a body asks; ``several``: they came in a list, so the response is one too."""
    service: Service = request.app.state.service
    slots: Slots = request.app.state.slots
    namespace = own_namespace(body.own["cache_salt"])
    with body.spelling(logprobs=body.spelled.get("n_probs", "n_probs")):
        made = await _begin(service, slots, body, prompts)
    shown = ExitStack()
    for each in made:
        shown.enter_context(slots.shown(each.id_slot, each.described))

    def gone() -> None:
        for each in made:
            each.generation.cancel()
        over()

    def over() -> None:
        shown.close()
        while made:
            each = made.pop()
            if each.id_slot >= 0:
                slots.ended(each.id_slot, namespace, each.generation, each.n_predicted)

    readings = list(made)
    headers = {"x-aleator-seed": str(made[0].generation.seed)}
    if body.own["stream"]:
        line = Line[dict[str, Any]](_written)
        events = _events(readings, over, line)
        return EventStream(events, gone, failing(render_error), headers=headers, line=line)
    try:
        await unless_gone(request, _finished(readings), gone)
        answers = await in_thread(lambda: [each.final() for each in readings])
    finally:
        over()
    return JSONResponse(answers if several or len(answers) > 1 else answers[0], headers=headers)


async def _begin(
    service: Service, slots: Slots, body: Body, prompts: Sequence[Prompt]
) -> list[Reading]:
    """Begin all completions of all prompts; where one cannot be, none is."""
    own, model = body.own, service.model
    options = options_of(body, int(model.vocab.add_bos))
    n_predict = own["n_predict"] = options.get("max_tokens")
    if n_predict == 0:  # the prompt is computed, and what is drawn after it is not told
        options["max_tokens"] = 1
    after = PostSampling.asked_for(own, options, model.vocab)

    async def submitted(prompt: Prompt, where: str, begin: bool) -> list[Generation]:
        tokens = await in_thread(tokens_of, model.tokenizer, prompt, own["parse_special"])
        try:
            return await service.submit(
                tokens,
                options,
                n=own["n_cmpl"],
                deadline=own["deadline"],
                namespace=where,
                on_logits=after,
                begin=begin,
            )
        except ContextFull as error:
            n_ctx = slots.n_ctx if n_predict is None else model.n_ctx
            raise TooLong(
                f"the prompt exceeds the available context size: {error}", len(tokens), n_ctx
            ) from None

    async def look(where: str) -> int:
        return sum([len(await submitted(prompt, where, begin=False)) for prompt in prompts])

    where = await slots.place(own["id_slot"], own, look)
    made: list[Reading] = []
    try:
        for prompt in prompts:
            begun = await submitted(prompt, where, begin=True)
            made += [
                Reading(service, len(made) + i, each, own, after) for i, each in enumerate(begun)
            ]
            options["seed"] = begun[0].seed  # one for all, if none was given
    except BaseException:
        for each in made:
            each.generation.cancel()
        raise
    return made


async def _finished(readings: Sequence[Reading]) -> None:
    for each in readings:
        async for _ in each.pieces():
            pass


async def _events(
    readings: Sequence[Reading], over: Callable[[], None], line: Line[dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream; what is there together is sent together, or by the line itself."""
    only = line if len(readings) == 1 else None
    try:
        async for made in merged([each.stream(only) for each in readings]):
            yield line.write(made)
    finally:
        over()


def _written(events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join([event(dumps(each)) for each in events])


ROUTES = [
    Route("/completion", completion, methods=["POST"]),
    Route("/completions", completion, methods=["POST"]),
]
