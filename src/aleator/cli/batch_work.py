"""The lines of ``aleator batch``: read, answered several together, and written as results."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from aleator.cli import batch_bodies
from aleator.cli.terminal import hint, note
from aleator.core import errors
from aleator.core.json_text import loads
from aleator.core.records import dataclass
from aleator.engine import Engine
from aleator.generate.generation import Generation
from aleator.language_model import LanguageModel
from aleator.samplers.params import CONSTRAINTS
from aleator.server.errors import readable

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
EVERY = 5.0
"""Seconds between reports where nobody watches."""


@dataclass(frozen=True)
class Line:
    """A request of the input, under its ``custom_id``, or a name made of its number.

    ``wrong`` says why it is none; "" if it is one.
    """

    name: str
    url: str
    body: Mapping[str, Any]
    wrong: str = ""


def read_lines(data: bytes) -> Iterator[Line]:
    """The requests of a file, under names that are free; empty lines are left out.

    A name that occurs twice is an error of the second line.
    """
    numbered = [(n, _line(raw)) for n, raw in enumerate(data.splitlines(), 1) if raw.strip()]
    given = {line.name for _, line in numbered}
    seen: set[str] = set()
    for number, line in numbered:
        if line.name and line.name not in seen:
            seen.add(line.name)
            yield line
            continue
        name = f"line-{number}"
        while name in given:
            name += "-"
        if line.name:
            line = Line("", "", {}, f"custom_id={line.name!r:.80} occurs before")
        yield replace(line, name=name)


def _line(raw: bytes) -> Line:
    """A request; its name is "" where none is given."""
    try:
        value = loads(raw)
    except ValueError as error:
        return Line("", "", {}, f"not JSON: {error}")
    if isinstance(value, str):
        return Line("", COMPLETION, {"prompt": value})
    if not isinstance(value, dict):
        return Line("", "", {}, "neither a JSON object nor a text")
    given = value.get("custom_id", "")
    if not isinstance(given, str) or ("custom_id" in value and not given):
        return Line("", "", {}, f"custom_id={given!r:.80}: give a text")
    if "body" not in value:
        body = {key: each for key, each in value.items() if key != "custom_id"}
        return Line(given, CHAT if "messages" in body else COMPLETION, body)
    body, url = value["body"], value.get("url")
    unknown = value.keys() - {"custom_id", "method", "url", "body"}
    if unknown:
        return Line(given, "", {}, f"unknown field {min(unknown)!r}")
    if value.get("method", "POST") != "POST" or url not in (CHAT, COMPLETION):
        return Line(given, "", {}, f"url={url!r:.80}: give {CHAT} or {COMPLETION}, with POST")
    if not isinstance(body, dict):
        return Line(given, "", {}, "body is not a JSON object")
    return Line(given, url, body)


class Work:
    """Makes the results of lines, several together; ``defaults`` are options of lines that have none."""

    def __init__(
        self,
        model: LanguageModel,
        lines: list[Line],
        write: Callable[[dict[str, Any]], None],
        defaults: Mapping[str, Any],
    ) -> None:
        self._model, self._append, self._defaults = model, write, defaults
        self._todo: queue.SimpleQueue[Line] = queue.SimpleQueue()
        for line in lines:
            self._todo.put(line)
        self._n, self._made, self.errors, self._tokens = len(lines), 0, 0, 0
        self._turn = threading.Lock()
        self._under_way: set[Generation] = set()
        self._began = self._reported = monotonic()
        self._failure: BaseException | None = None
        self.stopped = False

    def run(self, engine: Engine, n_threads: int) -> None:
        """Do everything; returns when all is done, or it was told to stop."""
        threads = [
            threading.Thread(target=self._serve, args=(engine,), daemon=True)
            for _ in range(min(n_threads, self._n))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that signals are heard
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin nothing more, and end what is under way; its results are not written."""
        self.stopped = True
        for generation in list(self._under_way):
            generation.cancel()

    def report(self, last: bool = False) -> None:
        """How far it is, and how fast."""
        seconds = max(1e-9, monotonic() - self._began)
        wrong = f", {self.errors} with errors" if self.errors else ""
        left = (self._n - self._made) * seconds / max(1, self._made)
        more = "" if last else f", about {left:.0f} s left"
        text = (
            f"{self._made} of {self._n} requests{wrong}, {self._tokens / seconds:.1f} tokens/s, "
            f"{self._made / seconds:.2f} requests/s{more}"
        )
        if sys.stderr.isatty() and not last:
            hint(f"\r{text}\x1b[K")
        else:
            note(text)

    def _serve(self, engine: Engine) -> None:
        while not self.stopped:
            try:
                line = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                self._write(self._result(engine, line))
            except BaseException as error:
                self._failure = self._failure or error
                self.stop()
                return

    def _result(self, engine: Engine, line: Line) -> dict[str, Any] | None:
        """The result of a line; None if it was stopped."""
        name = line.name
        if line.wrong:
            return failed(name, 400, line.wrong)
        try:
            return self._answer(engine, line)
        except errors.ParameterError as error:
            return failed(name, 400, str(error), error.parameter)
        except (errors.ContextFull, errors.TemplateError, errors.TokenizerError) as error:
            return failed(name, 400, str(error))
        except errors.AleatorError as error:
            return failed(name, 500, str(error))
        except Exception as error:  # of this line alone: the others are made
            return failed(name, 500, f"{type(error).__name__}: {error}")

    def _answer(self, engine: Engine, line: Line) -> dict[str, Any] | None:
        with readable():
            generation, respond = self._begin(engine, line)
        self._under_way.add(generation)
        try:
            if self.stopped:
                generation.cancel()
            if generation.stop_reason == "interrupted":
                return None
            body = respond()
            with self._turn:
                self._tokens += len(generation.tokens)
            return _result(line.name, 200, body)
        finally:
            self._under_way.discard(generation)

    def _begin(self, engine: Engine, line: Line) -> tuple[Generation, Callable[[], dict[str, Any]]]:
        """What makes the answer of a line, and what writes the response once it is made."""
        chat = line.url == CHAT
        read = batch_bodies.chat_arguments if chat else batch_bodies.completion_arguments
        asked = read(line.body)  # before its model's name, which may be nested too deeply to show
        model = str(line.body.get("model", self._model.weights.path.name))
        if model in self._model.decoder.adapters.names:
            if asked.get("adapters") is not None:
                raise errors.ParameterError("model", "model and adapters are both given: give one")
            asked["adapters"] = model
        if chat:
            answer = self._model.chat(engine=engine, **{**self._defaults_for(asked), **asked})
            return answer.generation, lambda: batch_bodies.chat_response(answer, line.name, model)
        made = engine.submit(**{**self._defaults_for(asked), **asked})
        return made, lambda: batch_bodies.completion_response(made, line.name, model)

    def _defaults_for(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the command line, less those that say what another of the line does."""
        forced = "tools" in asked or not asked.keys().isdisjoint(CONSTRAINTS)
        return {k: v for k, v in self._defaults.items() if not (forced and k in CONSTRAINTS)}

    def _write(self, result: dict[str, Any] | None) -> None:
        if result is None:
            return
        with self._turn:
            self._append(result)
            self._made += 1
            self.errors += result["response"]["status_code"] != 200
            if monotonic() - self._reported > (0.2 if sys.stderr.isatty() else EVERY):
                self._reported = monotonic()
                self.report()


def failed(name: str, status: int, message: str, parameter: str = "") -> dict[str, Any]:
    """The result of a line that is an error, as OpenAI's interface writes it."""
    kind = "invalid_request_error" if status == 400 else "server_error"
    error = {"message": message, "type": kind, "param": parameter or None, "code": None}
    return _result(name, status, {"error": error})


def _result(name: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req-{name}", "body": body}
    return {"id": f"batch-{name}", "custom_id": name, "response": response, "error": None}
