"""``timings``: how long a completion took, as llama-server tells it in every dialect that has the field."""

from __future__ import annotations

from typing import Any

from aleator.generate.completion import Stats
from aleator.generate.writing import PromptProgress


def timings(stats: Stats, n_predicted: int) -> dict[str, Any]:
    """``timings``: counts, milliseconds and rates of one completion.

    The first token comes of the prompt's last logits, so rates count the steps after it.
    """
    prompt_ms, predicted_ms = 1e3 * stats.prompt_seconds, 1e3 * stats.decode_seconds
    steps = max(0, n_predicted - 1)
    made: dict[str, Any] = {
        "cache_n": stats.reused_tokens,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, stats.prompt_tokens),
        "prompt_per_second": _ratio(1e3 * stats.prompt_tokens, prompt_ms),
        "predicted_n": n_predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, steps),
        "predicted_per_second": _ratio(1e3 * steps, predicted_ms),
    }
    if stats.draft_n:
        made |= {"draft_n": stats.draft_n, "draft_n_accepted": stats.draft_n_accepted}
    return made


def progressed(progress: PromptProgress, times: bool) -> dict[str, Any]:
    """``prompt_progress``, with ``timings`` where they are asked for: fields of an event before the text.

    Args:
        progress: Of the prompt.
        times: Whether timings are told.
    """
    cached, computed, seconds = progress.cached, progress.computed, progress.seconds
    made: dict[str, Any] = {}
    if times:
        so_far = Stats(prompt_tokens=computed, reused_tokens=cached, prompt_seconds=seconds)
        made["timings"] = timings(so_far, 0)
    made["prompt_progress"] = {
        "total": progress.total,
        "cache": cached,
        "processed": cached + computed,
        "time_ms": int(1e3 * seconds),
    }
    return made


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
