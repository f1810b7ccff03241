"""Ollama's endpoints: chats, prompts and vectors, and what it says of models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.chat.reply import Reply
from aleator.core.errors import AleatorError, UnsupportedModel
from aleator.core.version import __version__
from aleator.generate.logprobs import Logprobs
from aleator.server import fields
from aleator.server.accepted import Accepted
from aleator.server.adapters import choose
from aleator.server.auth import namespace_asked
from aleator.server.bodies import body_of, in_thread
from aleator.server.chat import ChatAnswer, ChatChoice, ChatEvent, ChatRequest
from aleator.server.dialects import ollama_input
from aleator.server.dialects.embeddings import one_vector, texts_of
from aleator.server.dialects.nested import in_words, input_of, thinking_if_known, with_records
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import Body, Field, Fields, own_fields, wrong
from aleator.server.openai_fields import token_logprobs
from aleator.server.service import Service
from aleator.server.streaming import NDJSON, EventStream, dumps, unless_gone
from aleator.server.vectors import vectors_of

NANO = 1_000_000_000

DONE_REASONS = {
    "loop": "loop",
    "length": "length",
    "deadline": "length",
    "interrupted": "interrupted",
}
"""Ollama's ``done_reason`` where it is not "stop"."""


class OllamaWriter:
    """Writes an answer as it comes."""

    def __init__(self, model: str, chat: bool) -> None:
        self._model, self._chat = model, chat
        self.began = time.perf_counter()
        self._call, self._arguments = ("", ""), ""
        self._said: dict[str, Any] = {}  # all pieces together
        self._logprobs: list[Logprobs] = []

    def push(self, event: ChatEvent) -> list[dict[str, Any]]:
        """The lines of a piece of the answer; a call is one line, once it is complete."""
        said: dict[str, Any] = {"content": event.text}
        if event.kind == "call":
            self._call, self._arguments = (event.id, event.text), ""
            return []
        if event.kind == "arguments":
            self._arguments += event.text
            return []
        if event.kind == "end" and not event.logprobs:
            return []
        if event.kind == "call_end":
            name, tool = self._call
            arguments = input_of(self._arguments)
            function = {"index": event.index, "name": tool, "arguments": arguments}
            said = {"tool_calls": [{"id": name, "function": function}]}
        elif event.kind == "reasoning":
            said = {"thinking": event.text}
        for name, value in said.items():
            self._said[name] = self._said.get(name, type(value)()) + value
        self._logprobs += event.logprobs
        return [self._line(said, event.logprobs)]

    def end(self, answer: ChatAnswer, whole: bool = False) -> dict[str, Any]:
        """The last line; ``whole``: it is the only one, and has all that was said."""
        choice, usage = answer.choices[0], answer.usage
        stats = choice.generation.stats
        return {
            **(self._line(self._said, self._logprobs) if whole else self._line({})),
            "done": True,
            "done_reason": DONE_REASONS.get(choice.stop or "stop", "stop"),
            "total_duration": int((time.perf_counter() - self.began) * NANO),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": int(stats.prompt_seconds * NANO),
            "eval_count": usage.completion,
            "eval_duration": int(stats.decode_seconds * NANO),
        }

    def nothing(self, reason: str) -> dict[str, Any]:
        """The answer to a request without messages: the model is loaded, and stays."""
        return {**self._line({}), "done": True, "done_reason": reason}

    def _line(self, said: Mapping[str, Any], logprobs: Sequence[Logprobs] = ()) -> dict[str, Any]:
        made: dict[str, Any] = {"model": self._model, "created_at": timestamp(), "done": False}
        if self._chat:
            made["message"] = {"role": "assistant", "content": "", **said}
        else:
            made["response"] = said.get("content", "")
            made |= {name: value for name, value in said.items() if name != "content"}
        if logprobs:
            made["logprobs"] = token_logprobs(logprobs)
        return made


def timestamp(file: Path | None = None) -> str:
    """A time as Ollama writes it: now, or when a file was last changed, if it is still there."""
    when = datetime.now(UTC)
    if file is not None:
        with suppress(OSError):
            when = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return when.isoformat().replace("+00:00", "Z")


def details(service: Service) -> dict[str, Any]:
    """Family, size and type of the weights."""
    weights = service.model.weights
    family = weights.config.architecture
    types: Counter[str] = Counter()
    for name in weights.names():
        stored = weights.stored(name)
        types[stored.type] += stored.n_elements
    return {
        "parent_model": "",
        "format": weights.kind,
        "family": family,
        "families": [family],
        "parameter_size": _size(weights.n_parameters),
        "quantization_level": types.most_common(1)[0][0].upper(),
    }


NO_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
"""What is known of a model that is not loaded."""


def listed(service: Service) -> list[dict[str, Any]]:
    """The entries of a model and its adapters in the list of models."""
    weights = service.model.weights
    entry: dict[str, Any] = {
        "name": service.name,
        "model": service.name,
        "modified_at": timestamp(weights.path),
        "size": weights.size_bytes,
        "digest": service.model.fingerprint,
        "details": details(service),
    }
    made = [entry]
    for each in service.adapters.names:
        about = {**entry["details"], "parent_model": service.name}
        made.append({**entry, "name": each, "model": each, "details": about})
    return made


def running(service: Service) -> dict[str, Any]:
    """An entry of the list of models in memory; it stays there."""
    entry = listed(service)[0]
    del entry["modified_at"]
    forever = datetime.max.replace(microsecond=0, tzinfo=UTC)
    return {
        **entry,
        "expires_at": forever.isoformat().replace("+00:00", "Z"),
        "size_vram": 0,
        "context_length": service.model.n_ctx,
    }


def shown(service: Service) -> dict[str, Any]:
    """A model with its template, dimensions and what it can do."""
    model = service.model
    config, weights = model.weights.config, model.weights
    template = service.options.chat_template or model.vocab.chat_template or ""
    family = config.architecture
    return {
        "modelfile": f"FROM {weights.path.name}\n",
        "parameters": "\n".join(
            f"{name} {value}" for name, value in weights.recommended_sampling().items()
        ),
        "template": template,
        "details": details(service),
        "model_info": {
            "general.architecture": family,
            "general.name": config.name or weights.path.stem,
            "general.parameter_count": weights.n_parameters,
            f"{family}.block_count": config.n_layers,
            f"{family}.context_length": config.context_length,
            f"{family}.embedding_length": config.n_embd,
            f"{family}.vocab_size": config.n_vocab,
        },
        "capabilities": capabilities(service),
        "modified_at": timestamp(weights.path),
    }


def capabilities(service: Service) -> list[str]:
    """What the model can do, in Ollama's words."""
    made = ["completion"]
    try:
        chat_format = service.chat_format
    except UnsupportedModel:  # an encoder
        return ["embedding"]
    except AleatorError:  # without a template it completes texts
        return made
    if chat_format.shows_tools and chat_format.foreign_mark is None:
        made.append("tools")
    if chat_format.thinking is not None:
        made.append("thinking")
    return made


def _size(n_parameters: int) -> str:
    for unit, word in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n_parameters >= unit:
            return f"{n_parameters / unit:.1f}{word}"
    return str(n_parameters)


LATEST = ":latest"
WORDS = {
    "json_schema": "format",
    "reasoning_budget": "think",
    "enable_thinking": "think",
    "chat_template_kwargs has 'reasoning_effort'": "think",
    "chat_template_kwargs": "think",
}
"""What errors of a chat are called here."""

EMBED = own_fields(
    Field("model", fields.text, required=True),
    Field("input", texts_of, required=True),
    Field("dimensions", fields.whole(1, 2**31 - 1)),
    Field("truncate", fields.switch, False),
    Field("options", fields.mapping),
    accepted={"keep_alive": ollama_input.REQUEST["keep_alive"]},
)
EMBEDDING = own_fields(
    Field("model", fields.text, required=True),
    Field("prompt", lambda name, value: texts_of(name, fields.text(name, value)), required=True),
    Field("options", fields.mapping),
    accepted=EMBED.accepted,
)
"""What older clients ask."""
SHOW = own_fields(
    Field("model", fields.text, required=True, aliases=("name",)),
    accepted={
        "verbose": Accepted("everything is shown"),
        "system": Accepted("give a system message with each request", ("",)),
        "template": ollama_input.GENERATE["template"],
        "options": Accepted("give options with each request", ({},)),
    },
)


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error."""
    return {"error": error.message}


async def chat(request: Request) -> Response:
    """Answer messages; a stream unless the request says otherwise."""
    service, body, writer = await _read(request, ollama_input.CHAT, chat=True)
    if not body.own["messages"]:
        return JSONResponse(writer.nothing("load"))
    asked = ollama_input.chat_of(body, service.model.n_ctx)
    return await _answered(request, body, writer, asked)


async def generate(request: Request) -> Response:
    """Go on from a prompt: from a chat with this one message, or from the text as it is."""
    service, body, writer = await _read(request, ollama_input.GENERATION)
    if not body.own["prompt"] and not body.own["raw"]:
        return JSONResponse(writer.nothing("load"))
    if not body.own["raw"]:
        asked = ollama_input.generation_of(body, service.model.n_ctx)
        return await _answered(request, body, writer, asked)
    for name in ("system", "think"):
        if body.own[name]:
            raise wrong(name, body.own[name], "with raw=true the prompt is all that is read")
    options = ollama_input.options_of(body, service.model.n_ctx)
    with in_words(WORDS, body):
        made = await service.submit(
            body.own["prompt"],
            {**options, "parse_special": True},
            deadline=body.own["deadline"],
            namespace=namespace_asked(body.own),
        )
    answer = ChatAnswer(made, lambda index, each: ChatChoice(index, each, Reply(None)))
    return await _written(request, body, writer, answer)


def untagged(name: str, known: Container[str]) -> str:
    """A model's name without the tag that may be left out, unless the name is known with it."""
    return name if name in known else name.removesuffix(LATEST)


async def _read(
    request: Request, known: Fields, chat: bool = False
) -> tuple[Service, Body, OllamaWriter]:
    """The service, what a body says, and what writes the answer; the model's tag may be left out."""
    service: Service = request.app.state.service
    body = known.read(await body_of(request), service.options.lenient)
    name: str = body.own["model"]
    model = service.check_model(untagged(name, service.names))
    choose(Body({**body.own, "model": model}, body.options, body.spelled), service.adapters)
    return service, body, OllamaWriter(name, chat)


async def _answered(
    request: Request, body: Body, writer: OllamaWriter, asked: ChatRequest
) -> Response:
    service: Service = request.app.state.service
    with in_words(WORDS, body):
        answer = await service.chat(thinking_if_known(asked, service))
    return await _written(request, body, writer, answer)


async def _written(
    request: Request, body: Body, writer: OllamaWriter, answer: ChatAnswer
) -> Response:
    service: Service = request.app.state.service
    headers = {"x-aleator-seed": str(answer.seed)}
    if body.own["stream"]:
        return EventStream(
            _lines(service, body, answer, writer),
            answer.cancel,
            lambda error: _line(render_error(api_error(error))),
            headers=headers,
            **NDJSON,
        )
    for event in await unless_gone(request, answer.collected(), answer.cancel):
        writer.push(event)
    made = with_records(service, body, answer, writer.end(answer, whole=True))
    return JSONResponse(made, headers=headers)


async def _lines(
    service: Service, body: Body, answer: ChatAnswer, writer: OllamaWriter
) -> AsyncGenerator[bytes, None]:
    async for events in answer.events():
        lines = [line for event in events for line in writer.push(event)]
        if lines:
            yield b"".join(map(_line, lines))
    yield _line(with_records(service, body, answer, writer.end(answer)))


def _line(made: Mapping[str, Any]) -> bytes:
    return dumps(made).encode() + b"\n"


async def embed(request: Request) -> Response:
    """Vectors of texts."""
    began = time.perf_counter()
    service, body, _ = await _read(request, EMBED)
    service.check_no_adapter(untagged(body.own["model"], service.names))
    ollama_input.checked_options(body, service.model.n_ctx)  # none changes a vector
    pooling, own = one_vector(service, None), body.own
    how = pooling, True, own["truncate"], own["dimensions"]
    work = partial(vectors_of, service.model, "input", own["input"], *how)
    vectors, n_tokens = await service.scored(request, work)
    made = {
        "model": body.own["model"],
        "embeddings": await in_thread(lambda: [row.tolist() for row in vectors]),
        "total_duration": int((time.perf_counter() - began) * NANO),
        "load_duration": 0,
        "prompt_eval_count": n_tokens,
    }
    return JSONResponse(made)


async def embedding(request: Request) -> Response:
    """The vector of one text as it is, not normalised."""
    service, body, _ = await _read(request, EMBEDDING)
    service.check_no_adapter(untagged(body.own["model"], service.names))
    ollama_input.checked_options(body, service.model.n_ctx)  # none changes a vector
    pooling, own = one_vector(service, None), body.own
    work = partial(vectors_of, service.model, "prompt", own["prompt"], pooling, False)
    (vector,), _ = await service.scored(request, work)
    return JSONResponse({"embedding": vector.tolist()})


async def tags(request: Request) -> Response:
    """The list of models."""
    return JSONResponse({"models": await in_thread(listed, request.app.state.service)})


async def running_models(request: Request) -> Response:
    """The list of models in memory."""
    return JSONResponse({"models": [await in_thread(running, request.app.state.service)]})


async def show(request: Request) -> Response:
    """What is known of a model."""
    service, _, _ = await _read(request, SHOW)
    return JSONResponse(await in_thread(shown, service))


async def version(request: Request) -> Response:
    """The version of the package."""
    return JSONResponse({"version": __version__})


ROUTES = [
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
    Route("/api/embed", embed, methods=["POST"]),
    Route("/api/embeddings", embedding, methods=["POST"]),
    Route("/api/tags", tags),
    Route("/api/ps", running_models),
    Route("/api/show", show, methods=["POST"]),
    Route("/api/version", version),
]
