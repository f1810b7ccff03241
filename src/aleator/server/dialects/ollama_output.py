"""What a chat answers as Ollama writes it: one object, or a line of JSON for each piece."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aleator.generate.completion import Stats
from aleator.generate.logprobs import Logprobs
from aleator.server.chatting import ChatEvent, ChatStop, Usage
from aleator.server.dialects.call_input import input_of
from aleator.server.dialects.openai_forms import chat_logprobs

NANO = 1_000_000_000

DONE_REASONS: Mapping[ChatStop, str] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "length",
    "deadline": "length",
    "interrupted": "interrupted",
}
"""Ollama's ``done_reason``."""


class OllamaWriter:
    """Writes an answer as it comes.

    Args:
        model: What the request called the model.
        chat: It is the answer of ``/api/chat``, not of ``/api/generate``.

    Attributes:
        began: Moment of ``perf_counter`` at which the request came.
    """

    def __init__(self, model: str, chat: bool) -> None:
        self._model, self._chat = model, chat
        self.began = time.perf_counter()
        self._calls: list[dict[str, Any]] = []
        self._arguments = ""

    def push(self, event: ChatEvent) -> list[dict[str, Any]]:
        """The lines of a piece of the answer; a call is one line, once it is complete."""
        if event.kind == "call":
            self._calls.append({"id": event.id, "name": event.text})
            self._arguments = ""
            return []
        if event.kind == "arguments":
            self._arguments += event.text
            return []
        if event.kind == "call_end":
            call = self._calls[-1]
            function = {
                "index": event.index,
                "name": call["name"],
                "arguments": input_of(self._arguments),
            }
            said = {"tool_calls": [{"id": call["id"], "function": function}]}
            return [self._line(said, event.logprobs)]
        if event.kind == "end" and not event.logprobs:
            return []
        if event.kind == "reasoning":
            return [self._line({"thinking": event.text}, event.logprobs)]
        return [self._line({"content": event.text}, event.logprobs)]

    def end(self, stop: ChatStop, usage: Usage, stats: Stats) -> dict[str, Any]:
        """The last line.

        Args:
            stop: Why the answer ended.
            usage: Tokens.
            stats: Times of the generation.
        """
        return {**self._line({}), "done": True, **self._counts(stop, usage, stats)}

    def whole(self, lines: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> dict[str, Any]:
        """The answer as one object.

        Args:
            lines: All lines but the last.
            last: The last one.
        """
        made = dict(last)
        logprobs = [each for line in lines for each in line.get("logprobs", ())]
        holders = [line["message"] if self._chat else line for line in lines]
        names = {"content": "content" if self._chat else "response", "thinking": "thinking"}
        texts = {n: "".join(h.get(key, "") for h in holders) for n, key in names.items()}
        said: dict[str, Any] = {"content": texts["content"]}
        if texts["thinking"]:
            said["thinking"] = texts["thinking"]
        calls = [call for h in holders for call in h.get("tool_calls", ())]
        if calls:
            said["tool_calls"] = calls
        made |= {
            k: v for k, v in self._line(said).items() if k in ("message", "response", "thinking")
        }
        return made | ({"logprobs": logprobs} if logprobs else {})

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
            "done_reason": DONE_REASONS[stop],
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
