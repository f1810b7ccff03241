"""Options of an engine, and options of a request that do not concern its text."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.core.options import Options, host_option
from aleator.core.records import dataclass
from aleator.generate.options import MOST


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Options):
    """Options of :class:`aleator.Engine`."""

    n_seq_max: int = host_option(
        "requests that are made at the same time; others wait",
        8, low=1, high=1024, flags=("-np", "--parallel"),
    )  # fmt: skip
    n_ctx: int | None = host_option(
        "cells of the cache, for all requests and cached prefixes together: the memory that the engine has",
        None, low=1, high=MOST, shown="n_seq_max times the model's n_ctx",
    )  # fmt: skip
    token_budget: int = host_option(
        "tokens that a step computes at most: one of each running request, the rest of prompts",
        512, low=1, high=MOST, flags=("--token-budget",),
    )  # fmt: skip
    max_pause: float = host_option(
        "seconds that a step with a piece of a prompt may take while others are writing, or three times "
        "as long as one without where that is longer; prompts and those who write get half of the time each",
        0.25, low=0, high=1e6, flags=("--max-pause",),
    )  # fmt: skip
    max_queue: int = host_option(
        "requests that may wait; one more is refused with QueueFull",
        1024, low=0, high=MOST, flags=("--max-queue",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check every value, and the values that depend on one another."""
        super().__post_init__()
        if self.token_budget <= self.n_seq_max:
            raise ParameterError(
                f"token_budget={self.token_budget}: give more than n_seq_max={self.n_seq_max}, or no prompt is "
                "computed while all others write"
            )
        if self.n_ctx is not None and self.n_ctx < self.n_seq_max:
            raise ParameterError(
                f"n_ctx={self.n_ctx}: give at least n_seq_max={self.n_seq_max} cells"
            )


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(Options):
    """Options of :meth:`aleator.Engine.submit` beside those of ``generate``."""

    priority: int = host_option(
        "a request goes before those that came up to 64 requests earlier, for each step of priority",
        0, low=-1000, high=1000,
    )  # fmt: skip
    deadline: float | None = host_option(
        "seconds from now on after which the request ends, with what it has and stop reason 'deadline'",
        None, low=0, shown="no limit",
    )  # fmt: skip
