"""Figures under llama-server's names, for dashboards that were made for that one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aleator.engine import EngineStats


@dataclass(frozen=True)
class LlamaFigure:
    """One figure.

    Attributes:
        name: After ``llamacpp:``, as it is written.
        kind: Prometheus' type: "counter" or "gauge".
        help: One sentence.
        read: Takes it out of the engine's counts.
    """

    name: str
    kind: str
    help: str
    read: Callable[[EngineStats], float]


LONGEST = "n_tokens_max"
"""The one that the engine does not count."""

FIGURES = (
    LlamaFigure(
        "prompt_tokens_total",
        "counter",
        "tokens of prompts that were computed",
        lambda s: s.prompt_tokens,
    ),
    LlamaFigure(
        "prompt_tokens_cached_total",
        "counter",
        "tokens of prompts found in the prompt cache",
        lambda s: s.reused_tokens,
    ),
    LlamaFigure(
        "prompt_seconds_total",
        "counter",
        "seconds of texts up to their first tokens, the queue left out",
        lambda s: s.prompt_seconds,
    ),
    LlamaFigure(
        "tokens_predicted_total", "counter", "tokens that were drawn", lambda s: s.sampled_tokens
    ),
    LlamaFigure(
        "tokens_predicted_seconds_total",
        "counter",
        "seconds of texts after their first tokens",
        lambda s: s.decode_seconds,
    ),
    LlamaFigure("n_decode_total", "counter", "batches that were decoded", lambda s: s.steps),
    LlamaFigure(
        "spec_decode_num_draft_tokens_total",
        "counter",
        "tokens that speculation guessed",
        lambda s: s.draft_n,
    ),
    LlamaFigure(
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "guessed tokens that were drawn",
        lambda s: s.draft_n_accepted,
    ),
    LlamaFigure(
        "spec_decode_num_drafts_total",
        "counter",
        "steps of a text in which speculation guessed",
        lambda s: s.drafts,
    ),
    LlamaFigure(
        "prompt_tokens_seconds",
        "gauge",
        "tokens of prompts per second of texts up to their first tokens, since the beginning",
        lambda s: _rate(s.prompt_tokens, s.prompt_seconds),
    ),
    LlamaFigure(
        "predicted_tokens_seconds",
        "gauge",
        "tokens per second of texts, since the beginning",
        lambda s: _rate(s.decode_tokens, s.decode_seconds),
    ),
    LlamaFigure("requests_processing", "gauge", "requests being made", lambda s: s.running),
    LlamaFigure("requests_deferred", "gauge", "requests in the queue", lambda s: s.waiting),
    LlamaFigure(
        "n_busy_slots_per_decode",
        "gauge",
        "requests being made on average, over the time in batches",
        lambda s: _rate(s.prompt_seconds + s.decode_seconds, s.step_seconds),
    ),
)


def _rate(of: float, per: float) -> float:
    return of / per if per else 0.0


def llama_figures(stats: EngineStats, longest: int) -> bytes:
    """Them all in Prometheus' text form.

    Args:
        stats: The engine's counts.
        longest: Tokens of the longest text so far, its prompt included.
    """
    told = [(each.name, each.kind, each.help, each.read(stats)) for each in FIGURES]
    told.append(
        (LONGEST, "counter", "tokens of the longest text so far, its prompt included", longest)
    )
    lines = [
        f"# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value:.17g}\n"
        for name, kind, help, value in told
    ]
    return "".join(lines).encode()
