"""The playground's page, and its endpoints under ``/api/playground``; the package's docstring describes them.

Ollama's clients use other paths under ``/api/``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import CacheError, GrammarError, ParameterError
from aleator.core.options import affects_text
from aleator.engine.prompts import BEAM_OPTIONS, SAMPLING
from aleator.generate.generation import Generation
from aleator.models.hub.bundled import bundled_model
from aleator.server import fields
from aleator.server.bodies import body_of, in_thread
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import OPTIONS, Body, Check, Field, Fields, own_fields
from aleator.server.playground.as_json import everything, spellings
from aleator.server.playground.cells import engine_cells, frames
from aleator.server.playground.generating import Playground, line
from aleator.server.playground.recording import Recording, resample
from aleator.server.playground.saved import PAGE, InitialView, drawn_often, saved_page
from aleator.server.streaming import NDJSON, EventStream

MOST_TOP = 1000
MOST_DRAWS = 10_000
MOST_STEP = 2**31 - 1
MOST_SAVED = 64
MOST_HISTOGRAMS = 16
TIMEOUT = 5.0
"""Seconds that a request for the engine's cells waits for a free sequence."""

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

ATTACHED = {**HEADERS, "content-disposition": 'attachment; filename="aleator-text.html"'}


def read(path: str) -> bytes | None:
    """A file of the page; None if it does not exist."""
    place = PAGE
    for part in path.split("/"):
        if not part or part.startswith("."):
            return None
        place = place / part
    return place.read_bytes() if place.is_file() else None


async def page(request: Request) -> Response:
    """GET / and /playground/{path}."""
    path = request.path_params.get("path", "index.html")
    found, ending = read(path), path.rpartition(".")[2]
    if found is None or ending not in TYPES:
        return Response("there is no such file", 404, HEADERS, "text/plain; charset=utf-8")
    return Response(found, 200, HEADERS, TYPES[ending])


def named(needed: set[str], more: set[str], most: int) -> Check:
    """Make a check for up to ``most`` objects with these keys: ``step`` is an integer, other values texts."""

    def check(name: str, value: Any) -> list[dict[str, Any]]:
        found = fields.listing(name, value)
        if not 0 < len(found) <= most:
            raise ParameterError(name, f"{name} has {len(found)} entries: give 1 to {most}")
        for each in found:
            if not isinstance(each, dict) or not needed <= set(each) <= needed | more:
                raise ParameterError(
                    name, f"{name}: {each!r:.80} is not an object with {' and '.join(needed)}"
                )
            for key, held in each.items():
                checked = fields.whole(0, MOST_STEP) if key == "step" else fields.text
                checked(f"{name}.{key}", held)
        return found

    return check


STEP = Field("step", fields.whole(0, MOST_STEP), required=True)
CHAIN = partial(Fields, options=SAMPLING, accepted={})
BEGINNING = (
    Field("prompt", fields.of_type(str | list, "give a text or a list of token ids")),
    Field("messages", fields.listing),
)
WRITE = Fields(
    *BEGINNING,
    Field("parent", fields.text),
    Field("at", fields.whole(0, MOST_STEP)),
    Field("token", fields.whole(0, MOST_STEP)),
    Field("top", fields.whole(0, MOST_TOP), 10),
    options=OPTIONS,
    accepted={},
)
SEARCH = Fields(
    *BEGINNING,
    options={
        name: each for name, each in {**BEAM_OPTIONS, **SAMPLING}.items() if affects_text(each)
    },
    accepted={},
)
EXPLAIN = CHAIN(STEP, Field("top", fields.whole(0, MOST_TOP), 30))
DRAW = CHAIN(STEP, Field("n", fields.whole(1, MOST_DRAWS), 1000))
SAVE = own_fields(
    Field("texts", named({"id"}, {"name"}, MOST_SAVED), required=True),
    Field("current", fields.text),
    Field("step", fields.whole(-1, MOST_STEP), -1),
    Field("view", fields.text, "write"),
    Field("shade", fields.text, "surprise"),
    Field("compare", fields.listing),
    Field("draws", named({"id", "step"}, set(), MOST_HISTOGRAMS), ()),
    Field("script", fields.listing),
)
CACHE = own_fields(Field("script", fields.listing, required=True))
TOKENS = own_fields(Field("text", fields.text, required=True))


def bundled(path: Path) -> bool:
    """Whether a model is the one that comes with the package, which continues plays."""
    try:
        return path.samefile(bundled_model())
    except (ImportError, OSError):
        return False


async def declarations(request: Request) -> Response:
    """GET /api/playground: samplers, parameters, presets, and what is loaded."""
    playground = of(request)
    model, memory = playground.service.model, playground.recordings.memory
    config = model.weights.config
    return JSONResponse(
        {
            **everything(),
            "model": {
                "name": config.name or model.weights.path.name,
                "architecture": config.architecture,
                "parameters": model.weights.n_parameters,
                "n_vocab": len(model.vocab),
                "n_ctx": model.n_ctx,
                "chat": model.vocab.chat_template is not None,
                "bundled": bundled(model.weights.path),
                "fingerprint": model.fingerprint,
            },
            "memory": {"limit": memory.limit, "used": memory.used, "rows": memory.rows},
        }
    )


async def write(request: Request) -> Response:
    """POST /api/playground/texts: generate a text or a branch; a stream of lines."""
    playground = of(request)
    body = WRITE.read(await body_of(request))
    work = partial(playground.begin, body.own, body.options)
    recording = await playground.service.grammars.in_thread(body.options, work)
    return streamed(playground.lines(recording, body.own["top"]), recording.generation)


async def search(request: Request) -> Response:
    """POST /api/playground/beams: search texts; a stream of lines."""
    playground = of(request)
    body = SEARCH.read(await body_of(request))
    work = partial(playground.begin_search, body.own, body.options)
    made = await playground.service.grammars.in_thread(body.options, work)
    return streamed(playground.search_lines(made), made)


def streamed(lines: AsyncGenerator[bytes, None], made: Generation) -> EventStream:
    """A response of lines, which cancels the generation if its client disconnects."""
    return EventStream(
        lines,
        made.cancel,
        lambda error: line({"event": "error", **render_error(api_error(error))}),
        **NDJSON,
    )


async def forget(request: Request) -> Response:
    """DELETE /api/playground/texts/{id}: drop a text and its logits."""
    playground = of(request)
    playground.recordings[request.path_params["id"]].generation.cancel()
    await in_thread(playground.recordings.forget, request.path_params["id"])
    return Response(status_code=204)


def explained(playground: Playground, recording: Recording, body: Body) -> dict[str, Any]:
    """POST /api/playground/texts/{id}/step: all about a step, with the text's chain or another."""
    step = body.own["step"]
    replay = playground.chain_at(recording, step, body.options)
    found = replay.chain.explain(recording.logits(step), top=body.own["top"])
    return playground.formatter.full_step(recording, step, found)


def resampled(playground: Playground, recording: Recording, body: Body) -> dict[str, Any]:
    """POST /api/playground/texts/{id}/resample: what another chain would have drawn at every step."""
    params = playground.params(body.options, recording.request.params.values()["seed"])
    found = resample(recording, playground.tokenizer, params)
    return playground.formatter.resampled(found)


def histogram(playground: Playground, recording: Recording, body: Body) -> dict[str, Any]:
    """POST /api/playground/texts/{id}/draws: many draws at one step, beside the exact probabilities."""
    step, n = body.own["step"], body.own["n"]
    replay = playground.chain_at(recording, step, body.options)
    return drawn_often(replay, recording.logits(step), playground.formatter, n)


async def of_text(
    known: Fields,
    work: Callable[[Playground, Recording, Body], dict[str, Any]],
    request: Request,
) -> Response:
    """Answer a question about a text in another thread."""
    playground = of(request)
    body = known.read(await body_of(request))
    recording = playground.recordings[request.path_params["id"]]
    asked = partial(work, playground, recording, body)
    return JSONResponse(await playground.service.grammars.in_thread(body.options, asked))


async def check(request: Request) -> Response:
    """POST /api/playground/chain: check whether a chain is valid, and return its other spellings."""
    playground = of(request)
    options = CHAIN().read(await body_of(request)).options

    def work() -> dict[str, Any]:
        params = playground.params(options)
        chain = params.chain(playground.tokenizer)
        return {
            "chain": chain.describe(),
            "samplers": [
                {"name": s.name, "label": s.describe(), "neutral": s.neutral}
                for s in (*([chain.grammar] if chain.grammar else []), *chain)
            ],
            **spellings(options),
        }

    return JSONResponse(await playground.service.grammars.in_thread(options, work))


async def save(request: Request) -> Response:
    """GET /api/playground/texts/{id}/page: the text with its steps as one file that needs no server."""
    playground = of(request)
    recording = playground.recordings[request.path_params["id"]]
    service = playground.service
    page = await in_thread(saved_page, {recording: ""}, service.model.tokenizer, service.name)
    return Response(page, 200, ATTACHED, "text/html; charset=utf-8")


async def save_all(request: Request) -> Response:
    """POST /api/playground/page: texts, a comparison, and cells, as one file that needs no server."""
    playground = of(request)
    body = SAVE.read(await body_of(request))
    own, model = body.own, playground.service.model

    def work() -> str:
        found = {each["id"]: playground.recordings[each["id"]] for each in own["texts"]}
        named = {found[each["id"]]: each.get("name", "") for each in own["texts"]}

        def one(param: str, name: Any) -> Recording:
            if name not in found:
                raise ParameterError(param, f"{param}: {name!r:.80} is not one of the texts")
            return found[name]

        pair = [one("compare", name) for name in own["compare"] or ()]
        if len(pair) not in (0, 2):
            raise ParameterError(f"compare has {len(pair)} texts: give 2")
        cells = frames(model, own["script"])["frames"] if own["script"] else ()
        shown = InitialView(
            view=own["view"],
            text=None if own["current"] is None else one("current", own["current"]),
            step=own["step"],
            shade=own["shade"],
            compare=(pair[0], pair[1]) if pair else None,
            draws=tuple((one("draws", each["id"]), each["step"]) for each in own["draws"]),
            cells=cells,
        )
        return saved_page(named, model.tokenizer, playground.service.name, shown)

    return Response(await in_thread(work), 200, ATTACHED, "text/html; charset=utf-8")


async def cache(request: Request) -> Response:
    """POST /api/playground/cache: the cells of a small context after each operation of a script."""
    body = CACHE.read(await body_of(request))
    try:
        return JSONResponse(await in_thread(frames, of(request).service.model, body.own["script"]))
    except CacheError as error:  # a cache without cells
        raise ApiError(400, str(error), "script") from None


async def cells(request: Request) -> Response:
    """GET /api/playground/cells: what the cells of the engine hold now, in runs."""
    engine = of(request).service.engine
    try:
        visit = engine.visit(lambda context, _: engine_cells(context.cache))
        found = await asyncio.wait_for(asyncio.wrap_future(visit), TIMEOUT)
    except TimeoutError:
        raise ApiError(
            503, "the engine has no sequence free to look at its cells: ask again"
        ) from None
    return JSONResponse(found)


async def tokens(request: Request) -> Response:
    """POST /api/playground/tokens: the tokens of a text, as in a prompt."""
    playground = of(request)
    body = TOKENS.read(await body_of(request))
    ids = await in_thread(playground.service.model.prompt_tokens, body.own["text"])
    return JSONResponse({"tokens": playground.formatter.tokens(ids)})


def of(request: Request) -> Playground:
    """What the endpoints share, made at the first use."""
    state = request.app.state
    if not hasattr(state, "playground"):
        state.playground = Playground(state.service)
    made: Playground = state.playground
    return made


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of an error response; an error in a grammar includes its position."""
    made: dict[str, Any] = {"message": error.message, "param": error.param, "code": error.code}
    if isinstance(error.__cause__, GrammarError):
        made |= {"line": error.__cause__.line, "column": error.__cause__.column}
    return {"error": made}


ROOT = "/api/playground"
ROUTES = [
    Route("/", page, methods=["GET"]),
    Route("/playground/{path:path}", page, methods=["GET"]),
    Route(ROOT, declarations, methods=["GET"]),
    Route(ROOT + "/texts", write, methods=["POST"]),
    Route(ROOT + "/texts/{id}", forget, methods=["DELETE"]),
    Route(ROOT + "/texts/{id}/step", partial(of_text, EXPLAIN, explained), methods=["POST"]),
    Route(ROOT + "/texts/{id}/resample", partial(of_text, CHAIN(), resampled), methods=["POST"]),
    Route(ROOT + "/texts/{id}/draws", partial(of_text, DRAW, histogram), methods=["POST"]),
    Route(ROOT + "/beams", search, methods=["POST"]),
    Route(ROOT + "/chain", check, methods=["POST"]),
    Route(ROOT + "/texts/{id}/page", save, methods=["GET"]),
    Route(ROOT + "/page", save_all, methods=["POST"]),
    Route(ROOT + "/cache", cache, methods=["POST"]),
    Route(ROOT + "/cells", cells, methods=["GET"]),
    Route(ROOT + "/tokens", tokens, methods=["POST"]),
]
