"""The server's log and its metrics for Prometheus, without anything that users sent or received.

The log has one line for each request and event.  Messages of errors can quote a prompt, so they are not logged.
Of an error, the log has its type, the parameter that it names, and, if it was unexpected, the places in the
code.

Metrics are the engine's counts, and histograms of requests.  Labels have few values: declared routes, methods,
status codes, stop reasons.  The engine's counters are read at each scrape, so tokens cost nothing here.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.core.errors import ParameterError
from aleator.core.version import __version__
from aleator.engine import EngineStats
from aleator.engine.stats import EndedRequest
from aleator.server.streaming import BODY, wire_of

disable_created_metrics()  # type: ignore[no-untyped-call]  # a line more for each, which nobody reads

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)
"""Bucket bounds of the histograms of times."""
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
"""Bucket bounds of the histograms of lengths."""

LOGGER = "aleator.server"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")

log = logging.getLogger(LOGGER)

Field = str | int | float | bool | None
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_PLAIN = re.compile(r"[\w.:/+@{}*-]+", re.ASCII)

Observe = Callable[[str, str, int, float], None]
"""``(method, route, status, seconds)`` of an answered request."""


class Lines(logging.Formatter):
    """Formats log records as lines: ``text`` for people, ``json`` for programs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Format one line: time, level, event, fields."""
        fields: dict[str, Field] = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields |= described(record.exc_info[1])
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self._json:
            line = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
            return json.dumps({**line, **fields})
        shown = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        return f"{moment} {record.levelname.lower()} {record.getMessage()}{shown}"


def _shown(value: Field) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def described(error: BaseException) -> dict[str, Field]:
    """What may be logged about an error: its type, the parameter it names, where it was raised.

    The message is left out, as it can quote user input.
    """
    fields: dict[str, Field] = {"error": type(error).__name__}
    if isinstance(error, ParameterError) and _PLAIN.fullmatch(error.parameter):
        fields["parameter"] = error.parameter[:80]
    places = traceback.extract_tb(error.__traceback__)[-6:]
    if places:
        fields["at"] = " < ".join(
            f"{Path(each.filename).name}:{each.lineno}" for each in reversed(places)
        )
    return fields


def configure(form: str) -> None:
    """Send the server's log, and uvicorn's warnings, to standard error, in lines of :class:`Lines`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(form))
    for name, least in ((LOGGER, logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False


def event(name: str, level: int = logging.INFO, **fields: Field) -> None:
    """Log an event; ``fields`` must not contain user input."""
    log.log(level, name, extra={"fields": fields})


def failure(name: str, error: BaseException, **fields: Field) -> None:
    """Log an unexpected error."""
    log.error(name, extra={"fields": {**fields, **described(error)}})


class Requests:
    """Gives every request an id, and logs and counts it once it has been answered; ``paths`` are by endpoint.

    The id is the client's header ``x-request-id`` if it is a plain word; the response has it in the header of
    the same name.  Paths are logged as their routes, without queries, since they may contain anything.
    """

    def __init__(
        self, app: ASGIApp, paths: Mapping[Any, str], observe: Observe, log_all: bool
    ) -> None:
        self._app, self._paths, self._observe, self._log_all = app, paths, observe, log_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, sent = perf_counter(), 0, 0
        name = request_id(scope)

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", name.encode()), (b"x-content-type-options", b"nosniff")]
                message["headers"] = [*message.get("headers", []), *own]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        scope[BODY] = counted
        wire = wire_of(scope)
        before = 0 if wire is None else wire.sent
        try:
            await self._app(scope, receive, counted)
        except Exception as error:
            status = status or 500
            failure("request failed", error, id=name)
            raise
        finally:
            del scope[BODY]  # it holds the connection, which holds the scope
            took, route = perf_counter() - began, self._paths.get(scope.get("endpoint"), "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            status = status or 499  # nothing was sent: the client had disconnected
            sent += 0 if wire is None else wire.sent - before
            self._observe(method, route, status, took)
            if self._log_all or status >= 500:
                event(
                    "request",
                    id=name,
                    method=method,
                    route=route,
                    status=status,
                    seconds=round(took, 6),
                    bytes=sent,
                )


def request_id(scope: Scope) -> str:
    """The client's id of a request if it is a plain word, otherwise a new one."""
    given = Headers(scope=scope).getlist("x-request-id")
    return next(filter(_ID.fullmatch, given), None) or secrets.token_hex(12)


@dataclass(frozen=True)
class Metric:
    """A metric that is read from the engine's counts."""

    name: str  # after ``aleator_`` or ``llamacpp:``
    help: str  # one sentence
    counts: bool  # whether it only grows
    # name of the count, or a function that computes the metric from several counts
    read: str | Callable[[EngineStats], float]

    def value(self, stats: EngineStats) -> float:
        """The current value."""
        return float(getattr(stats, self.read) if isinstance(self.read, str) else self.read(stats))


ENGINE_METRICS = (
    Metric("requests", "requests that the engine took", True, "submitted"),
    Metric("requests_refused", "requests refused since the queue was full", True, "refused"),
    Metric("requests_cancelled", "requests whose client had gone", True, "cancelled"),
    Metric("requests_expired", "requests whose deadline came", True, "expired"),
    Metric("requests_failed", "requests that an error ended", True, "failed"),
    Metric("requests_running", "requests being made", False, "running"),
    Metric("requests_waiting", "requests in the queue", False, "waiting"),
    Metric("prompt_tokens", "tokens of prompts that were computed", True, "prompt_tokens"),
    Metric("prompt_tokens_cached", "tokens of prompts found in the prompt cache", True, "reused_tokens"),
    Metric("generated_tokens", "tokens that were drawn", True, "sampled_tokens"),
    Metric("forced_tokens", "drawn tokens that a grammar had forced", True, "forced_tokens"),
    Metric("draft_tokens", "tokens that speculation guessed", True, "draft_n"),
    Metric("draft_tokens_accepted", "guessed tokens that were drawn", True, "draft_n_accepted"),
    Metric("drafts", "steps of a text in which speculation guessed tokens", True, "drafts"),
    Metric("steps", "batches that were decoded", True, "steps"),
    Metric("mixed_steps", "batches with prompts, while others wrote", True, "mixed_steps"),
    Metric("step_seconds", "seconds in batches", True, "step_seconds"),
    Metric("scheduling_seconds", "seconds in the scheduler", True, "scheduling_seconds"),
    Metric("longest_step_seconds", "seconds of the longest batch", False, "longest_step"),
    Metric("context_shifts", "context shifts", True, "context_shifts"),
    Metric("cells", "cells of the KV cache", False, "cells"),
    Metric("cells_reserved", "cells that running requests may come to use", False, "cells_reserved"),
)  # fmt: skip

LLAMA_METRICS = (
    Metric("prompt_tokens_total", "tokens of prompts that were computed", True, "prompt_tokens"),
    Metric("prompt_tokens_cached_total", "tokens of prompts found in the prompt cache", True, "reused_tokens"),
    Metric("prompt_seconds_total", "seconds of texts up to their first tokens, the queue left out", True,
           "prompt_seconds"),
    Metric("tokens_predicted_total", "tokens that were drawn", True, "sampled_tokens"),
    Metric("tokens_predicted_seconds_total", "seconds of texts after their first tokens", True,
           "decode_seconds"),
    Metric("n_decode_total", "batches that were decoded", True, "steps"),
    Metric("spec_decode_num_draft_tokens_total", "tokens that speculation guessed", True, "draft_n"),
    Metric("spec_decode_num_accepted_tokens_total", "guessed tokens that were drawn", True,
           "draft_n_accepted"),
    Metric("spec_decode_num_drafts_total", "steps of a text in which speculation guessed", True, "drafts"),
    Metric("prompt_tokens_seconds",
           "tokens of prompts per second of texts up to their first tokens, since the beginning", False,
           lambda s: _rate(s.prompt_tokens, s.prompt_seconds)),
    Metric("predicted_tokens_seconds", "tokens per second of texts, since the beginning", False,
           lambda s: _rate(s.decode_tokens, s.decode_seconds)),
    Metric("requests_processing", "requests being made", False, "running"),
    Metric("requests_deferred", "requests in the queue", False, "waiting"),
    Metric("n_busy_slots_per_decode", "requests being made on average, over the time in batches", False,
           lambda s: _rate(s.prompt_seconds + s.decode_seconds, s.step_seconds)),
)  # fmt: skip
"""llama-server's metrics, under its names, for dashboards made for it."""


TIERS = {
    "hits": "prompts whose beginning came from a tier of the prompt cache",
    "misses": "prompts of which a tier had no more than the cells",
    "tokens": "tokens of prompts that came from a tier",
    "written": "entries that went down to a tier",
    "bytes_read": "bytes that came up from a tier",
    "bytes_written": "bytes that went down to a tier",
    "evicted": "entries that made room for others",
    "damaged": "entries of a tier that were not sound",
    "missing": "entries of a tier that were gone",
    "no_room": "entries that a tier had no room for",
    "errors": "errors of a tier's directory",
    "computed_instead": "prompts that a tier had, and that took less time to compute",
    "given_up": "prompts of which a tier gave no more for as long as computing them takes",
}
"""Counts of :meth:`aleator.generate.prompt_tiers.PromptTiers.tell` that are shown."""


Tell = Callable[[], Mapping[str, Mapping[str, int]]]


class Metrics:
    """The metrics of one server."""

    def __init__(self, fingerprint: str) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "aleator", "registry": self.registry}
        times: Callable[..., Histogram] = partial(Histogram, buckets=SECONDS, **own)
        lengths: Callable[..., Histogram] = partial(Histogram, buckets=TOKENS, **own)
        self._requests = Counter(
            "http_requests", "requests that were answered", ("method", "route", "status"), **own
        )
        self._seconds = times(
            "http_request_seconds",
            "seconds from a request's first byte to its answer's last",
            ("route",),
        )
        self._ended = Counter("texts", "texts by why they ended", ("reason",), **own)
        self._queued = times("queue_seconds", "seconds that a request waited for its beginning")
        self._first = times("time_to_first_token_seconds", "seconds to the first token")
        self._gap = times("time_per_token_seconds", "mean seconds between a text's tokens")
        self._whole = times("text_seconds", "seconds to the end of a text")
        self._prompt = lengths("prompt_length_tokens", "tokens of prompts, cached ones too")
        self._text = lengths("text_length_tokens", "tokens of texts")
        about = Gauge("info", "what runs here", ("version", "fingerprint"), **own)
        about.labels(__version__, fingerprint).set(1)
        self._longest = 0
        self._labels: tuple[str, ...] = ()
        # Counts by the values of the labels
        self._stats: Callable[[], Mapping[tuple[str, ...], EngineStats]] = dict
        self._tiers: Tell = dict

    def watch(self, stats: Callable[[], EngineStats], tiers: Tell | None) -> None:
        """Add the counts of an engine and of tiers; called once, with the functions that each scrape calls."""
        self._stats, self._tiers = lambda: {(): stats()}, tiers or dict
        self.registry.register(self)

    def watch_models(self, stats: Callable[[], Mapping[str, EngineStats]]) -> None:
        """Add the counts of several engines, by the names of their models; as :meth:`watch` otherwise."""
        self._labels = ("model",)
        self._stats = lambda: {(name,): counts for name, counts in stats().items()}
        self.registry.register(self)

    def collect(self) -> Iterator[MetricFamily]:
        """The current :data:`ENGINE_METRICS`, and :data:`TIERS` with the tier as label: ram or disk."""
        tiers, counted = self._tiers(), self._stats()
        for metric in ENGINE_METRICS:
            family = CounterMetricFamily if metric.counts else GaugeMetricFamily
            figures = family(f"aleator_{metric.name}", metric.help, labels=self._labels)
            for values, stats in counted.items():
                figures.add_metric(values, metric.value(stats))
            yield figures
        for name, help in TIERS.items() if tiers else ():
            made = CounterMetricFamily(f"aleator_prompt_cache_{name}", help, labels=("tier",))
            for tier, counts in tiers.items():
                made.add_metric((tier,), counts.get(name, 0))
            yield made

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; see :data:`Observe`."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def ended(self, text: EndedRequest) -> None:
        """Count an ended request; called in the engine's thread."""
        self._ended.labels(text.reason).inc()
        self._prompt.observe(text.prompt)
        self._text.observe(text.tokens)
        self._longest = max(self._longest, text.prompt + text.tokens)
        self._whole.observe(text.seconds)
        if text.queued is not None:
            self._queued.observe(text.queued)
        if text.first is not None:
            self._first.observe(text.first)
            if text.tokens > 1:
                self._gap.observe((text.seconds - text.first) / (text.tokens - 1))

    def page(self) -> bytes:
        """All metrics in Prometheus' text format; those of one model under llama-server's names, too."""
        made, one = generate_latest(self.registry), self._stats().get(())
        return made if one is None else made + llama_metrics(one, self._longest)


def _rate(of: float, per: float) -> float:
    return of / per if per else 0.0


def llama_metrics(stats: EngineStats, longest: int) -> bytes:
    """Metrics under llama-server's names; ``longest`` is the longest text so far, its prompt included."""
    own = Metric(
        "n_tokens_max",
        "tokens of the longest text so far, its prompt included",
        True,
        lambda _: longest,
    )
    return "".join(
        f"# HELP llamacpp:{each.name} {each.help}\n"
        f"# TYPE llamacpp:{each.name} {'counter' if each.counts else 'gauge'}\n"
        f"llamacpp:{each.name} {each.value(stats):.17g}\n"
        for each in (*LLAMA_METRICS, own)
    ).encode()
