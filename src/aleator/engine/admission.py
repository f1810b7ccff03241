"""What requests need of a context: positions, sequences, cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aleator.core.errors import ContextFull, ParameterError
from aleator.engine.job import Job
from aleator.generate.context import Context
from aleator.generate.request import Request
from aleator.generate.request_state import RequestState

MOST_POSITIONS = 2**31 - 1
"""More than any context has."""


def positions(request: Request, n_ctx: int) -> int:
    """Positions that a request's sequence may come to use, at most ``n_ctx``."""
    wanted = request.options.max_tokens
    return n_ctx if wanted is None else min(n_ctx, len(request.remaining) + max(1, wanted))


def most_positions(state: RequestState, n_ctx: int) -> int:
    """How many positions a request's sequence can use if each sequence has ``n_ctx``."""
    if state.guidance is None:
        return n_ctx
    negative, prompt = len(state.guidance.prompt), len(state.request.remaining)
    if negative > n_ctx:
        raise ContextFull(
            f"the negative prompt has {negative} tokens and the context {n_ctx} positions: shorten it, or load "
            "the model with a larger n_ctx"
        )
    return n_ctx - max(0, negative - prompt)


def job_of(state: RequestState, longest: int, priority: int = 0, most: int = MOST_POSITIONS) -> Job:
    """A request as a scheduler sees it, before its sequences are known.

    ``longest``: see :func:`positions`.  A step computes at most ``most`` tokens of its prompts.
    """
    request, guidance = state.request, state.guidance
    return Job(
        np.asarray(request.remaining[: state.to_prefill], np.int32),
        longest + _beside(state, longest),
        priority,
        request.where,
        shares=not (request.options.context_shift or state.wants_prompt),
        beside=0 if guidance is None else len(guidance.prompt),
        most=most,
    )


def _beside(state: RequestState, longest: int) -> int:
    """Positions that the sequence of a second prompt uses, the text included; 0 without one."""
    if state.guidance is None:
        return 0
    return len(state.guidance.prompt) + longest - len(state.request.remaining)


def sequences_needed(states: Sequence[RequestState]) -> int:
    """Sequences with which all completions can begin at once."""
    return sum(1 if state.guidance is None else 2 for state in states)


def cells_needed(states: Sequence[RequestState], n_ctx: int) -> int:
    """Cells with which all completions can begin at once, each with up to ``n_ctx`` positions."""
    prompts: set[tuple[tuple[int, ...], str]] = set()
    cells = 0
    for state in states:
        request = state.request
        longest = positions(request, most_positions(state, n_ctx))
        cells += longest + _beside(state, longest)
        if state.guidance is None and not request.options.context_shift:
            key = request.remaining, request.where
            cells -= len(request.remaining) if key in prompts else 0
            prompts.add(key)
    return max(1, cells)


def check_rollback(state: RequestState, context: Context) -> None:
    """Refuse speculation and banned strings if a model's states could not take their tokens back."""
    if state.speculation is not None and context.rewindable(1) < 1:
        raise ParameterError(
            "n_rollback",
            f"speculation takes guesses back, which {context.decoder.config.architecture} cannot without "
            "states to go back to: load the model with n_rollback=8, or leave spec_type and drafter out",
        )
    if state.banned is not None and state.banned.longest > context.rewindable(1) + 1:
        raise ParameterError(
            "banned_strings",
            f"banned_strings: one has {state.banned.longest} bytes, and this model's states can be taken "
            f"back by {context.rewindable(1)} tokens: load the model with a larger n_rollback",
        )
