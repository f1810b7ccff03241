"""A request as the scheduler sees it: its lengths, its place in the order, and what it needs from a context."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from aleator.core.arrays import Int32s
from aleator.core.errors import ContextFull, ParameterError
from aleator.core.records import dataclass
from aleator.generate.completion import Request
from aleator.generate.context import Context
from aleator.generate.request_state import RequestState

PLACES = 64
"""One step of priority moves a request ahead of this many earlier ones."""
WORTH_WAITING = 32
"""If another request computes at least this many tokens of the same prompt, it is better to wait for them."""


@dataclass(eq=False)
class ScheduledRequest:
    """The scheduler's view of a request: everything but its text."""

    prompt: Int32s  # int32, the tokens to compute before the first token is drawn
    # Most positions that it may use, prompt included, in both its sequences together
    max_positions: int
    priority: int = 0
    namespace: str = ""
    # Whether it may share cells with others; if not, it needs a cell for each of its positions
    shares: bool = True
    # Tokens of a second prompt, which has its own sequence and is computed first; 0: none
    second_prompt: int = 0
    beams: int = 0  # Beams of a search, each of which needs a sequence; 0: no search
    max_step_tokens: int = 2**31 - 1  # Most tokens of its prompts that one step computes
    number: int = -1  # Requests are numbered in the order of arrival
    seq: int = field(default=-1, init=False)  # Its sequence; -1 while it waits
    # Its other sequences: that of the second prompt, or those of beams
    others: list[int] = field(default_factory=list, init=False)
    done: int = field(default=0, init=False)  # Positions of ``seq`` that are computed
    second_done: int = field(default=0, init=False)  # Computed positions of the second prompt
    # How many later requests started first because they needed less room
    passed_over: int = field(default=0, init=False)
    # Running requests that share the cells of the same prompt, this one included; the cells are counted
    # for the first of them. Empty, or only this one: no other request shares them
    partners: list[ScheduledRequest] = field(default_factory=list, init=False)
    # Whether another request is computing the prompt for it
    follows: bool = field(default=False, init=False)
    # Whether part of its prompt is still being loaded, so that no step computes it yet
    loading: bool = field(default=False, init=False)

    @property
    def start_order(self) -> tuple[int, int]:
        """Sort key of the order in which requests start."""
        return self.number - PLACES * self.priority, self.number

    @property
    def left(self) -> int:
        """Number of prompt tokens that are still to be computed."""
        left = len(self.prompt) - self.done
        left = left if left > 0 else 0
        return (
            left + self.second_prompt - self.second_done
            if self.second_done < self.second_prompt
            else left
        )

    @property
    def depth(self) -> int:
        """Number of tokens that the next prompt token attends to."""
        return self.done if self.second_done >= self.second_prompt else self.second_done

    @property
    def width(self) -> int:
        """Number of its sequences, which is its number of rows in a decode step."""
        return self.beams or (2 if self.second_prompt else 1)

    def common(self, other: ScheduledRequest, least: int) -> int:
        """Length of the prefix shared with another prompt, without its own last token; 0 below ``least``."""
        n = min(len(self.prompt) - 1, len(other.prompt))
        if n < least or self.prompt[least - 1] != other.prompt[least - 1]:
            return 0
        if (self.prompt[:least] != other.prompt[:least]).any():
            return 0
        differ = self.prompt[:n] != other.prompt[:n]
        return int(differ.argmax()) if differ.any() else n

    @cached_property
    def prefix_key(self) -> tuple[str, bytes]:
        """Key that is equal for prompts of which one may wait for the other."""
        return self.namespace, self.prompt[: WORTH_WAITING + 1].tobytes()

    @cached_property
    def prompt_key(self) -> tuple[str, int, int]:
        """Key that is equal for equal prompts, and rarely equal for different ones."""
        n = len(self.prompt)
        return self.namespace, n, int(self.prompt[-1]) if n else -1

    def same_prompt(self, other: ScheduledRequest) -> bool:
        """Whether one computed prompt can serve both requests."""
        return (
            len(self.prompt) == len(other.prompt)
            and self.shares
            and other.shares
            and not self.second_prompt
            and not other.second_prompt
            and self.namespace == other.namespace
            and bool((self.prompt == other.prompt).all())
        )

    @property
    def reserve(self) -> int:
        """Positions reserved for it: all, or all but the prompt if that is counted for a partner."""
        borrows = self.partners and self.partners[0] is not self
        return self.max_positions - len(self.prompt) if borrows else self.max_positions

    @property
    def growth(self) -> int:
        """Number of further cells that it may take."""
        if not self.shares:
            return self.max_positions
        done = len(self.prompt) if self.follows else self.done + self.second_done
        return self.max_positions - done


LOOKED_AT = 4
"""Number of requests at the head of the queue that are considered when there is room."""
PASSED_OVER = 64
"""Most later requests that may start before a request that does not fit; after that they wait for it."""


class Queue:
    """Requests by their turn: in the order of arrival, moved ahead or back by their priorities.

    No request waits for ever: a priority is worth a fixed number of places (:attr:`ScheduledRequest.turn`), and
    one that does not fit is passed over at most :data:`PASSED_OVER` times.
    """

    def __init__(self) -> None:
        # In descending order: the next request is the last one, which is cheap to remove.
        self._requests: list[ScheduledRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return reversed(self._requests)

    def add(self, request: ScheduledRequest) -> None:
        """Add a request to the queue."""
        insort(self._requests, request, key=lambda each: [-n for n in each.start_order])

    def remove(self, request: ScheduledRequest) -> bool:
        """Remove a request; return whether it was in the queue."""
        try:
            self._requests.remove(request)
        except ValueError:
            return False
        return True

    def head(self) -> list[ScheduledRequest]:
        """The requests that may start next, in their order."""
        found = []
        for request in reversed(self._requests[-LOOKED_AT:]):
            found.append(request)
            if request.passed_over >= PASSED_OVER:
                break
        return found

    def take(self, request: ScheduledRequest) -> None:
        """Remove a request that starts, and count it for the requests that it overtakes."""
        for i in range(len(self._requests) - 1, -1, -1):
            each = self._requests[i]
            if each is request:
                del self._requests[i]
                return
            each.passed_over += 1


MOST_POSITIONS = 2**31 - 1
"""More than any context has."""


def positions(request: Request, n_ctx: int) -> int:
    """Positions that a request's sequence may use, at most ``n_ctx``."""
    wanted = request.options.max_tokens
    return n_ctx if wanted is None else min(n_ctx, len(request.remaining) + max(1, wanted))


def most_positions(state: RequestState, n_ctx: int) -> int:
    """Positions that a request's sequence can use if each sequence has ``n_ctx``."""
    if state.guidance is None:
        return n_ctx
    negative, prompt = len(state.guidance.prompt), len(state.request.remaining)
    if negative > n_ctx:
        raise ContextFull(
            f"the negative prompt has, with what was drawn before, {negative} tokens and the context {n_ctx} "
            "positions: shorten it, or load the model with a larger n_ctx"
        )
    return n_ctx - max(0, negative - prompt)


def as_scheduled(
    state: RequestState,
    max_positions: int,
    priority: int = 0,
    max_step_tokens: int = MOST_POSITIONS,
) -> ScheduledRequest:
    """What the scheduler sees of a request, before its sequences are known.

    ``max_positions``: see :func:`positions`.  A step computes at most ``max_step_tokens`` prompt tokens.
    """
    request, guidance = state.request, state.guidance
    return ScheduledRequest(
        np.asarray(request.remaining[: state.to_prefill], np.int32),
        max_positions + _second_positions(state, max_positions),
        priority,
        request.cache_namespace,
        shares=not (
            request.options.context_shift or state.wants_prompt or state.search is not None
        ),
        second_prompt=0 if guidance is None else len(guidance.prompt),
        beams=0 if state.search is None else state.search.num_beams,
        max_step_tokens=max_step_tokens,
    )


def _second_positions(state: RequestState, max_positions: int) -> int:
    """Positions that the sequence of a second prompt uses, generated text included; 0 without one."""
    if state.guidance is None:
        return 0
    return len(state.guidance.prompt) + max_positions - len(state.request.remaining)


def sequences_needed(states: Sequence[RequestState]) -> int:
    """Number of sequences with which all completions can start at once."""
    return sum(1 if state.guidance is None else 2 for state in states)


def cells_needed(states: Sequence[RequestState], n_ctx: int) -> int:
    """Number of cells with which all completions can start at once, each with up to ``n_ctx`` positions."""
    prompts: set[tuple[tuple[int, ...], str]] = set()
    cells = 0
    for state in states:
        request = state.request
        max_positions = positions(request, most_positions(state, n_ctx))
        cells += max_positions + _second_positions(state, max_positions)
        if state.guidance is None and not request.options.context_shift:
            key = request.remaining, request.cache_namespace
            cells -= len(request.remaining) if key in prompts else 0
            prompts.add(key)
    return max(1, cells)


def check_rollback(state: RequestState, context: Context) -> None:
    """Refuse speculation and banned strings if the model's states cannot be rolled back."""
    if state.speculation is not None and context.rewindable(1) < 1:
        raise ParameterError(
            "n_rollback",
            f"speculation takes guesses back, which {context.decoder.config.architecture} cannot without "
            "states to go back to: load the model with n_rollback=8, or leave spec_type, drafter "
            "and model_draft out",
        )
    if state.banned is not None and state.banned.longest > max(1, context.rewindable(1)):
        name = state.request.options.bans[-1]
        raise ParameterError(
            f"{name}: the longest match has {state.banned.longest} bytes, and this model's states can be taken "
            f"back by {context.rewindable(1)} tokens: load the model with a larger n_rollback"
        )
