"""Decides which request goes next and what a step computes, without a model, a clock or a thread."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeVar

from aleator.core.records import dataclass
from aleator.engine.pace import Pace
from aleator.engine.scheduled_request import WORTH_WAITING, Queue, ScheduledRequest

K = TypeVar("K")

SHORTEST = 2
"""Fewest tokens per prompt when a step's tokens are halved from prompt to prompt."""


class Cells(Protocol):
    """The cache as the scheduler uses it."""

    def reuse_prefix(self, request: ScheduledRequest) -> int:
        """Give a request's sequence the cached prefix of its prompt; return the prefix's length.

        The request itself records the progress of a second prompt (``second_done``) and whether more is
        still to come (``loading``, :meth:`Scheduler.loaded`).
        """

    def drop(self, request: ScheduledRequest) -> None:
        """Empty a request's sequences again."""

    def used_cells(self) -> int | None:
        """Number of cells that running requests' sequences hold, each counted once; None if unknown."""


@dataclass(frozen=True)
class StepPlan:
    """What one step computes: requests that decode a token, and requests with a number of prompt tokens."""

    decoding: Sequence[ScheduledRequest]
    chunks: Sequence[tuple[ScheduledRequest, int]]


class Scheduler:
    """Admits requests when there is room for the longest they can become, and divides steps among them.

    So a started request never lacks cells: all that running requests hold and may still need fits into the
    cache together, and cached prefixes are evicted for it.

    Requests with the same prompt start together: one computes it, the others follow and take over its cells.
    """

    def __init__(
        self,
        n_seq_max: int,  # Sequences of the cache
        n_cells: int,  # Cells of the cache
        token_budget: int,  # Most tokens of a step
        # Divides time between prefill and decoding; None: prefill goes first
        pace: Pace | None,
        *,
        # Whether other requests can reuse what a request computes, so that waiting for it may pay
        reuses: bool = True,
    ) -> None:
        self.waiting = Queue()  # Requests that have not started
        # Requests by their sequences, in the order in which they started
        self.running: dict[int, ScheduledRequest] = {}
        # Positions that these may use; a shared prompt is counted once
        self.reserved = 0
        self.n_cells, self._token_budget, self._pace = n_cells, token_budget, pace
        self._free = list(range(n_seq_max))
        heapify(self._free)
        # Running requests whose prompts are being computed, in their order, without followers.
        self.prefilling: list[ScheduledRequest] = []
        # The same, by ``prompt_key``.
        self._by_prompt: dict[tuple[str, int, int], list[ScheduledRequest]] = {}
        # And by ``prefix_key``, in order.
        self._by_prefix: dict[tuple[str, bytes], list[ScheduledRequest]] = {}
        self._decoding: dict[int, ScheduledRequest] = {}  # running requests that decode
        self._rows = 0  # their rows in a step
        self._reuses = reuses
        self._stuck = False  # no request fitted, and nothing has changed since
        # Requests whose prompts others wait for, and the length at which the wait ends.
        self._awaited: dict[ScheduledRequest, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute."""
        return self.decodes or self._n_computed > 0

    @property
    def decodes(self) -> bool:
        """Whether a request is decoding."""
        return bool(self._decoding)

    @property
    def _n_computed(self) -> int:
        """Number of prompts that steps compute."""
        return sum([not request.loading for request in self.prefilling])

    @property
    def free(self) -> int | None:
        """A sequence that no running request has; None if there is none."""
        return self._free[0] if self._free else None

    def add(self, request: ScheduledRequest) -> None:
        """Add a request to the queue."""
        self.waiting.add(request)
        self._stuck = False

    def remove(self, request: ScheduledRequest) -> None:
        """Remove a request that has ended or was given up; its sequence is empty."""
        if self.running.get(request.seq) is request:
            successor = self.successor(request)
            if successor is not None:
                successor.follows = False
                self._start_prefill(successor)
            self._release(request)
            self._forget(request)
            self._awaited.pop(request, None)
            self._stuck = False
        elif self.waiting.remove(request):
            self._stuck = False

    def successor(self, request: ScheduledRequest) -> ScheduledRequest | None:
        """The request that takes over a shared prompt when the one computing it ends; None if there is none."""
        if request.follows or not request.left:
            return None
        return next((each for each in request.partners if each.follows), None)

    def _release(self, request: ScheduledRequest) -> None:
        """Release a request's positions; another partner becomes responsible for a shared prompt."""
        self.reserved -= request.reserve
        if request.partners:
            first = request.partners[0] is request
            request.partners.remove(request)
            if first and request.partners:
                self.reserved += len(request.prompt)

    def _forget(self, request: ScheduledRequest) -> None:
        del self.running[request.seq]
        if self._decoding.pop(request.seq, None) is not None:
            self._rows -= request.width
        elif request in self.prefilling:
            self._stop_prefill(request)
        heappush(self._free, request.seq)
        for seq in request.others:
            heappush(self._free, seq)

    def _start_prefill(self, request: ScheduledRequest) -> None:
        """Start computing a request's prompt, or decoding if nothing of it is left."""
        if request.left:
            insort(self.prefilling, request, key=_turn)
            self._by_prompt.setdefault(request.prompt_key, []).append(request)
            insort(self._by_prefix.setdefault(request.prefix_key, []), request, key=_turn)
        else:
            self._start_decode(request)

    def _stop_prefill(self, request: ScheduledRequest) -> None:
        self.prefilling.remove(request)
        _remove(self._by_prompt, request.prompt_key, request)
        _remove(self._by_prefix, request.prefix_key, request)

    def _start_decode(self, request: ScheduledRequest) -> None:
        self._decoding[request.seq] = request
        self._rows += request.width

    def admit(self, cells: Cells) -> list[ScheduledRequest]:
        """Start requests while there are sequences and cells for them.

        Each returned request has a sequence and ``done`` tokens of its prompt.
        """
        begun: list[ScheduledRequest] = []
        growth: int | None = None  # of the running requests
        while self._free and len(self.waiting) and not self._stuck:
            self._stuck = True
            self._awaited.clear()
            used: int | None = None
            for request in self.waiting.head():
                if len(self._free) < request.width:
                    continue
                if self.reserved + request.max_positions > self.n_cells:
                    used = cells.used_cells() if used is None else used
                    if growth is None:
                        growth = sum([each.growth for each in self.running.values()])
                promised = None if used is None or growth is None else used + growth
                if self._begin(request, cells, promised, growth):
                    growth = None if growth is None else growth + request.growth
                    begun.append(request)
                    self._stuck = False
                    break
        return begun

    def _begin(
        self, request: ScheduledRequest, cells: Cells, promised: int | None, growth: int | None
    ) -> bool:
        """Start a request if there is room; return whether it has started.

        ``promised`` is the number of cells that running requests hold and may still take; None if irrelevant or
        unknown. ``growth`` is the number that they may still take; None if irrelevant.
        """
        alike = self._by_prompt.get(request.prompt_key, ())
        leader = next((each for each in alike if request.same_prompt(each)), None)
        needs = (
            request.max_positions if leader is None else request.max_positions - len(request.prompt)
        )
        certain = self.reserved + needs <= self.n_cells
        if not certain:
            # Sharing may make it fit: at best it shares all of its prompt but the last token.
            least = needs if leader is not None else request.max_positions - len(request.prompt) + 1
            if promised is None or not request.shares or promised + least > self.n_cells:
                return False
        if leader is None and self._computed_now(request):
            return False
        request.seq = heappop(self._free)
        request.others = [heappop(self._free) for _ in range(1, request.width)]
        request.follows = leader is not None
        request.done = 0 if request.follows else cells.reuse_prefix(request)
        self.running[request.seq] = request
        used = None if certain or growth is None else cells.used_cells()
        if (
            used is not None
            and growth is not None
            and used + growth + request.growth > self.n_cells
        ):
            cells.drop(request)
            self._forget(request)
            request.seq, request.others = -1, []
            request.done = request.second_done = 0
            request.follows = False
            return False
        if leader is None:
            self._start_prefill(request)
        else:
            leader.partners = leader.partners or [leader]
            leader.partners.append(request)
            request.partners = leader.partners
        self.waiting.take(request)
        self.reserved += request.reserve
        return True

    def _computed_now(self, request: ScheduledRequest) -> bool:
        """Whether a running request computes enough of a waiting request's prompt for waiting to pay."""
        if not request.shares or not self._reuses:
            return False
        for other in self._by_prefix.get(request.prefix_key, ()):
            if other.shares and other.left > WORTH_WAITING:
                least = other.done + WORTH_WAITING + 1
                common = request.common(other, least)
                if common >= least:
                    self._awaited[other] = min(common, self._awaited.get(other, common))
                    return True
        return False

    def plan(self) -> StepPlan:
        """Plan the next step: a token of every decoding request, and chunks of prompts in their turn.

        The oldest prompt gets at least half of the prompt tokens, so that it ends; short ones need not wait for
        it.
        """
        decoding = list(self._decoding.values())
        prefilling = [request for request in self.prefilling if not request.loading]
        chunks: list[tuple[ScheduledRequest, int]] = []
        room = self._token_budget - self._rows
        pace = self._pace
        if decoding and prefilling and pace is not None:
            if pace.decode_only():
                return StepPlan(decoding, ())
            room = min(room, pace.tokens(max([request.depth for request in prefilling])))
        last = prefilling[-1] if prefilling else None
        # Comparisons, since for dozens of prompts calls of min and max would cost most.
        for request in prefilling:
            if room <= 0:
                break
            n = request.left
            if request is not last and n > SHORTEST:
                half = room // 2
                n = n if n < half else half if half > SHORTEST else SHORTEST
            n = n if n < room else room
            n = n if n < request.max_step_tokens else request.max_step_tokens
            chunks.append((request, n))
            room -= n
        if room > 0 and len(chunks) > 1:  # tokens that short prompts left
            request, n = chunks[0]
            chunks[0] = (request, min(n + room, request.left, request.max_step_tokens))
        return StepPlan(decoding, chunks)

    def observe(self, plan: StepPlan, rows: int, seconds: float) -> None:
        """Record the cost of a step, and which prompts are now complete.

        ``done`` of its requests is up to date; ``rows`` is the number of rows decoded, 0 if none.
        """
        if self._pace is not None:
            tokens = sum([n for _, n in plan.chunks])
            depths = sum([n * max(request.depth - n / 2, 0) for request, n in plan.chunks])
            depth = depths / max(tokens, 1)
            begun = sum([request.left == 0 for request, _ in plan.chunks])
            self._pace.observe(
                rows, tokens, depth, seconds, begun=begun, prompts=self._n_computed - begun
            )
        for request, _ in plan.chunks:
            self.advanced(request)

    def loaded(self, request: ScheduledRequest) -> None:
        """Note that no more of a request's prompt will be loaded: the rest is to be computed."""
        request.loading = False
        self.advanced(request)

    def advanced(self, request: ScheduledRequest) -> bool:
        """Note progress on a prompt: if complete, start decoding; release requests that waited for it.

        Returns whether a request waited for it.
        """
        if request.left == 0 and request in self.prefilling:
            self._stop_prefill(request)
            self._start_decode(request)
            for each in request.partners:
                if each.follows:
                    each.follows = False
                    self._start_decode(each)
        enough = request in self._awaited and (
            request.left == 0 or request.done >= self._awaited[request]
        )
        if enough:
            del self._awaited[request]
            self._stuck = False
        return enough


def _turn(request: ScheduledRequest) -> tuple[int, int]:
    return request.start_order


def _remove(requests: dict[K, list[ScheduledRequest]], key: K, request: ScheduledRequest) -> None:
    """Remove a request from the list under a key, and the key when its list is empty."""
    found = requests[key]
    found.remove(request)
    if not found:
        del requests[key]
