"""What an engine has done so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from aleator.core.records import dataclass


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was made, and what is under way.

    Attributes:
        submitted: requests that were accepted.
        refused: requests that were refused because too many waited.
        finished: requests that ended normally.
        cancelled: requests that were cancelled, or whose generation was no longer referenced.
        expired: requests that reached their deadline.
        failed: requests that an error ended.
        waiting: requests that have not started.
        running: requests that have started.
        steps: decoded batches.
        mixed_steps: steps that computed prompt chunks while other requests decoded.
        prompt_tokens: prompt tokens that were computed.
        reused_tokens: prompt tokens that were not computed because they were cached.
        decode_tokens: tokens that were decoded after prompts.
        sampled_tokens: tokens that were drawn.
        forced_tokens: tokens that grammars forced, decoded together with the one before.
        context_shifts: context shifts.
        draft_n: tokens that speculation guessed.
        draft_n_accepted: guesses that were drawn.
        drafts: how often guesses were made, counted per request and step.
        prompt_seconds: sum over requests, from start to first token.
        decode_seconds: sum over requests, from the first token on.
        cells: cells of the cache.
        cells_reserved: positions that running requests may use.
        step_seconds: seconds in steps.
        longest_step: seconds of the longest step.
        scheduling_seconds: seconds in the scheduler's decisions.
    """

    submitted: int = 0
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    waiting: int = 0
    running: int = 0
    steps: int = 0
    mixed_steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    context_shifts: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    drafts: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    cells: int = 0
    cells_reserved: int = 0
    step_seconds: float = 0.0
    longest_step: float = 0.0
    scheduling_seconds: float = 0.0

    def as_json(self) -> dict[str, float]:
        """All of them as a dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class EndedRequest:
    """A request that has ended; times are seconds since its submission."""

    reason: str  # why its text ended, "error" if an error ended it
    prompt: int  # tokens of its prompt
    tokens: int  # tokens that were drawn
    queued: float | None  # until it started; None: it never did
    first: float | None  # until its first token was drawn; None: none was
    seconds: float  # until it ended


OnEnd = Callable[[EndedRequest], None]
"""Called with every request that ends, in the engine's thread; must be quick and raise nothing."""
