"""Figures for Prometheus: what the engine has counted, and histograms of requests.

Labels have few values: routes as they are declared, methods, status codes, reasons why texts end.  No label
holds what a user chose.  Counters of the engine are read when they are asked for, so tokens cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from aleator.engine import EngineStats
from aleator.engine.stats import EndedRequest
from aleator.server.llama_metrics import llama_figures

disable_created_metrics()  # type: ignore[no-untyped-call]  # a line more for each, which nobody reads

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)
"""Borders of the histograms of times."""
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
"""Borders of the histograms of lengths."""


@dataclass(frozen=True)
class Figure:
    """A figure that is read from the engine's counts.

    Attributes:
        name: after ``aleator_``.
        help: one sentence.
        counts: it only ever grows.
        read: takes it out of the counts.
    """

    name: str
    help: str
    counts: bool
    read: Callable[[EngineStats], float]


FIGURES = (
    Figure("requests", "requests that the engine took", True, lambda s: s.submitted),
    Figure(
        "requests_refused", "requests refused since the queue was full", True, lambda s: s.refused
    ),
    Figure("requests_cancelled", "requests whose client had gone", True, lambda s: s.cancelled),
    Figure("requests_expired", "requests whose deadline came", True, lambda s: s.expired),
    Figure("requests_failed", "requests that an error ended", True, lambda s: s.failed),
    Figure("requests_running", "requests being made", False, lambda s: s.running),
    Figure("requests_waiting", "requests in the queue", False, lambda s: s.waiting),
    Figure(
        "prompt_tokens", "tokens of prompts that were computed", True, lambda s: s.prompt_tokens
    ),
    Figure(
        "prompt_tokens_cached",
        "tokens of prompts found in the prompt cache",
        True,
        lambda s: s.reused_tokens,
    ),
    Figure("generated_tokens", "tokens that were drawn", True, lambda s: s.sampled_tokens),
    Figure(
        "forced_tokens", "drawn tokens that a grammar had forced", True, lambda s: s.forced_tokens
    ),
    Figure("draft_tokens", "tokens that speculation guessed", True, lambda s: s.draft_n),
    Figure(
        "draft_tokens_accepted",
        "guessed tokens that were drawn",
        True,
        lambda s: s.draft_n_accepted,
    ),
    Figure(
        "drafts", "steps of a text in which speculation guessed tokens", True, lambda s: s.drafts
    ),
    Figure("steps", "batches that were decoded", True, lambda s: s.steps),
    Figure(
        "mixed_steps", "batches with prompts, while others wrote", True, lambda s: s.mixed_steps
    ),
    Figure("step_seconds", "seconds in batches", True, lambda s: s.step_seconds),
    Figure("scheduling_seconds", "seconds in the scheduler", True, lambda s: s.scheduling_seconds),
    Figure("longest_step_seconds", "seconds of the longest batch", False, lambda s: s.longest_step),
    Figure("context_shifts", "context shifts", True, lambda s: s.context_shifts),
    Figure("cells", "cells of the KV cache", False, lambda s: s.cells),
    Figure(
        "cells_reserved",
        "cells that running requests may come to use",
        False,
        lambda s: s.cells_reserved,
    ),
)


class EngineFigures:
    """Reads :data:`FIGURES` each time that they are asked for.

    Args:
        stats: the engine's counts.
    """

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        stats = self._stats()
        for figure in FIGURES:
            family = CounterMetricFamily if figure.counts else GaugeMetricFamily
            yield family(f"aleator_{figure.name}", figure.help, value=figure.read(stats))


class Metrics:
    """The figures of one server.

    Args:
        version: of the package.
        fingerprint: of the model.
    """

    def __init__(self, version: str, fingerprint: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "aleator_http_requests",
            "requests that were answered",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "aleator_http_request_seconds",
            "seconds from a request's first byte to its answer's last",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self._ended = Counter(
            "aleator_texts", "texts by why they ended", ("reason",), registry=registry
        )

        def times(name: str, help: str) -> Histogram:
            return Histogram(f"aleator_{name}", help, buckets=SECONDS, registry=registry)

        def lengths(name: str, help: str) -> Histogram:
            return Histogram(f"aleator_{name}", help, buckets=TOKENS, registry=registry)

        self._queued = times("queue_seconds", "seconds that a request waited for its beginning")
        self._first = times("time_to_first_token_seconds", "seconds to the first token")
        self._gap = times("time_per_token_seconds", "mean seconds between a text's tokens")
        self._whole = times("text_seconds", "seconds to the end of a text")
        self._prompt = lengths("prompt_length_tokens", "tokens of prompts, cached ones too")
        self._text = lengths("text_length_tokens", "tokens of texts")
        about = Gauge(
            "aleator_info", "what runs here", ("version", "fingerprint"), registry=registry
        )
        about.labels(version, fingerprint).set(1)
        self._longest = 0
        self._stats: Callable[[], EngineStats] = EngineStats

    def watch(self, stats: Callable[[], EngineStats]) -> None:
        """Show an engine's counts, too; called once, with what tells them at every scrape."""
        self._stats = stats
        self.registry.register(EngineFigures(stats))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered; see :data:`aleator.server.logs.Observe`."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def ended(self, text: EndedRequest) -> None:
        """A text has ended; called in the engine's thread."""
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
        """All of it in Prometheus' text form, with llama-server's names at the end."""
        return generate_latest(self.registry) + llama_figures(self._stats(), self._longest)
