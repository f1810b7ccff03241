"""What responses tell of how their texts were made: how long it took, and what makes them again.

Timings are llama-server's, in every dialect that has the field; records are those of docs/reproducibility.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.version import __version__
from aleator.engine.replay import Record
from aleator.generate.completion import Stats
from aleator.generate.generation import Generation
from aleator.generate.writing import PromptProgress
from aleator.server.caller import current_caller
from aleator.server.service import Service


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


def replay_header(service: Service) -> str | None:
    """The header ``x-aleator-replay`` of a response: for its first text; the others have other ``completion``.

    Returns:
        One line of ASCII; None where there is no text, or none that can be made again.
    """
    begun = current_caller().begun
    if not begun:
        return None
    try:
        return Record.of(begun[0], service.model, __version__).header()
    except ParameterError:
        return None


def replay_field(service: Service, made: Iterable[Generation]) -> list[dict[str, Any]]:
    """The field ``aleator_replay`` of a response: the records of its texts, in their order.

    Raises:
        ParameterError: One cannot be made again; says why.
    """
    return [Record.of(each, service.model, __version__).as_json() for each in made]
