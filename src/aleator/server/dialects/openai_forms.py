"""Forms that OpenAI's endpoints share with others: errors, usage, times, log-probabilities, records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aleator.engine.replay import Record
from aleator.generate.completion import Stats
from aleator.generate.generation import Generation, PromptProgress
from aleator.generate.logprobs import Logprobs
from aleator.server.chat import Usage
from aleator.server.errors import ApiError
from aleator.server.openai_fields import token_logprobs
from aleator.server.service import Service

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""OpenAI's kinds of errors other than "invalid_request_error"."""


def timings(stats: Stats, n_predicted: int) -> dict[str, Any]:
    """``timings``: counts, milliseconds and rates of one completion.

    The first token is drawn from the prompt's last logits, so rates count the steps after it.
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
    """``prompt_progress``, with ``timings`` if requested: fields of an event before the text."""
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


def replay_field(service: Service, made: Iterable[Generation]) -> list[dict[str, Any]]:
    """The field ``aleator_replay`` of a response: the records of its texts, in order."""
    return [Record.of(each, service.model).as_json() for each in made]


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of an error response."""
    return {
        "error": {
            "message": error.message,
            "type": KINDS.get(error.status, "invalid_request_error"),
            "param": error.param,
            "code": error.code,
        }
    }


def usage(used: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's form."""
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.total,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {
            "reasoning_tokens": used.reasoning,
            "accepted_prediction_tokens": used.draft_n_accepted,
            "rejected_prediction_tokens": used.draft_n - used.draft_n_accepted,
        },
    }


def chat_logprobs(entries: Sequence[Logprobs] | None) -> dict[str, Any] | None:
    """Log-probabilities of a chat; None if not requested."""
    return None if entries is None else {"content": token_logprobs(entries), "refusal": None}
