"""What Ollama says: of a chat one object or a line of JSON for each piece, and of the model that is served."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aleator.core.errors import AleatorError
from aleator.generate.completion import Stats
from aleator.generate.logprobs import Logprobs
from aleator.server.chat import ChatEvent, ChatStop, Usage
from aleator.server.dialects.nested import input_of
from aleator.server.dialects.openai_forms import chat_logprobs
from aleator.server.service import Service

NANO = 1_000_000_000

DONE_REASONS = {"length": "length", "deadline": "length", "interrupted": "interrupted"}
"""Ollama's ``done_reason`` where it is not "stop"."""


class OllamaWriter:
    """Writes an answer as it comes.

    Attributes:
        began: Moment of ``perf_counter`` at which the request came.
    """

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

    def end(
        self, stop: ChatStop, usage: Usage, stats: Stats, whole: bool = False
    ) -> dict[str, Any]:
        """The last line; ``whole``: it is the only one, and has all that was said."""
        line = self._line(self._said, self._logprobs) if whole else self._line({})
        return {**line, "done": True, **self._counts(stop, usage, stats)}

    def nothing(self, reason: str) -> dict[str, Any]:
        """The answer to a request without messages: the model is loaded, and stays."""
        return {**self._line({}), "done": True, "done_reason": reason}

    def _line(self, said: Mapping[str, Any], logprobs: Sequence[Logprobs] = ()) -> dict[str, Any]:
        made: dict[str, Any] = {"model": self._model, "created_at": moment(), "done": False}
        if self._chat:
            made["message"] = {"role": "assistant", "content": "", **said}
        else:
            made["response"] = said.get("content", "")
            made |= {name: value for name, value in said.items() if name != "content"}
        if logprobs:
            made["logprobs"] = (chat_logprobs(logprobs) or {})["content"]
        return made

    def _counts(self, stop: ChatStop, usage: Usage, stats: Stats) -> dict[str, Any]:
        return {
            "done_reason": DONE_REASONS.get(stop, "stop"),
            "total_duration": int((time.perf_counter() - self.began) * NANO),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": int(stats.prompt_seconds * NANO),
            "eval_count": usage.completion,
            "eval_duration": int(stats.decode_seconds * NANO),
        }


def moment(seconds: float | None = None) -> str:
    """A time as Ollama writes it: now, or so many seconds after 1970."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
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


def listed(service: Service) -> dict[str, Any]:
    """An entry of the list of models."""
    weights = service.model.weights
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": moment(weights.path.stat().st_mtime),
        "size": weights.size_bytes,
        "digest": service.model.fingerprint,
        "details": details(service),
    }


def running(service: Service) -> dict[str, Any]:
    """An entry of the list of models in memory; it stays there."""
    entry = listed(service)
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
        "modified_at": moment(weights.path.stat().st_mtime),
    }


def capabilities(service: Service) -> list[str]:
    """What the model can do, in Ollama's words."""
    made = ["completion"]
    try:
        chat_format = service.model.chat_format(service.options.chat_template)
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
