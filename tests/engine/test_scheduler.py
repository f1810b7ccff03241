"""Decisions without a model: order, room, pieces of prompts, and a simulation of many requests."""

from __future__ import annotations

import numpy as np
import pytest
from simulate_engine import simulate

from aleator.engine.pace import Pace
from aleator.engine.scheduled_request import (
    LOOKED_AT,
    PASSED_OVER,
    PLACES,
    WORTH_WAITING,
    Queue,
    ScheduledRequest,
)
from aleator.engine.scheduler import Scheduler


class Cells:
    """Nothing is cached; what running requests hold is what they have computed."""

    def __init__(self, cached: int = 0, tells: bool = True) -> None:
        self.cached, self.tells = cached, tells
        self.holding: list[ScheduledRequest] = []

    def reuse_prefix(self, request: ScheduledRequest) -> int:
        self.holding.append(request)
        return min(self.cached, len(request.prompt) - 1)

    def drop(self, request: ScheduledRequest) -> None:
        self.holding.remove(request)

    def used_cells(self) -> int | None:
        own = sum(request.done - min(self.cached, request.done) for request in self.holding)
        return own + self.cached * bool(self.holding) if self.tells else None


class Numbered:
    """Makes requests, numbered as they come."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(
        self, prompt: int, max_positions: int | None = None, **more: int | bool
    ) -> ScheduledRequest:
        tokens = np.arange(prompt, dtype=np.int32) + 1000 * self.n * (not more.pop("alike", False))
        positions = prompt + 10 if max_positions is None else max_positions
        request = ScheduledRequest(tokens, positions, **more)  # type: ignore[arg-type]
        request.number = self.n
        self.n += 1
        return request


@pytest.fixture
def make_request() -> Numbered:
    return Numbered()


def scheduler(n_seq_max: int = 4, n_cells: int = 1000, budget: int = 64) -> Scheduler:
    return Scheduler(n_seq_max, n_cells, budget, Pace(0.25))


def read_all(made: Scheduler) -> None:
    """Steps until nobody reads a prompt any more."""
    while any(each.left for each in made.running.values()):
        plan = made.plan()
        for each, n in plan.chunks:
            each.done += n
            for follower in each.partners:
                follower.done = each.done if follower.follows else follower.done
        made.observe(plan, len(plan.decoding), 0.01)


def test_requests_begin_in_the_order_of_arrival_while_there_are_sequences(
    make_request: Numbered,
) -> None:
    made, requests = scheduler(n_seq_max=2), [make_request(5) for _ in range(3)]
    for each in requests:
        made.add(each)
    assert made.admit(Cells()) == requests[:2]
    assert [each.seq for each in requests] == [0, 1, -1]
    made.remove(requests[0])
    assert made.admit(Cells()) == requests[2:]
    assert requests[2].seq == 0


def test_a_priority_is_worth_so_many_places_and_no_more(make_request: Numbered) -> None:
    queue = Queue()
    early, others = make_request(1), [make_request(1, priority=1) for _ in range(PLACES + 5)]
    for each in (early, *others):
        queue.add(each)
    order = list(queue)
    assert order.index(early) == PLACES - 1
    assert len(order) == len(queue) == PLACES + 6
    assert order[0] is others[0]


def test_a_request_begins_when_there_is_room_for_the_longest_that_it_can_become(
    make_request: Numbered,
) -> None:
    made = scheduler(n_cells=100)
    one, other = make_request(10, 60), make_request(10, 41)
    made.add(one)
    made.add(other)
    assert made.admit(Cells()) == [one]
    assert made.reserved == 60
    made.remove(one)
    assert made.admit(Cells()) == [other]
    assert made.reserved == 41


def test_shared_prompts_need_their_cells_once(make_request: Numbered) -> None:
    cells, made = Cells(cached=60), scheduler(n_cells=100)
    requests = [make_request(61, 75, alike=True) for _ in range(4)]
    for each in requests:
        made.add(each)
    assert made.admit(cells) == requests[:2]  # 60 + 2 * 15; a third would need 105
    assert cells.holding == requests[:1]  # the other one follows it
    assert [each.done for each in requests] == [60, 0, 0, 0]
    apart = scheduler(n_cells=100)
    for each in [make_request(61, 75, shares=False, alike=True) for _ in range(2)]:
        apart.add(each)
    assert len(apart.admit(Cells(cached=60))) == 1
    untold = scheduler(n_cells=100)
    for each in [make_request(61, 75, alike=True) for _ in range(2)]:
        untold.add(each)
    told_not = Cells(cached=60, tells=False)
    assert len(untold.admit(told_not)) == 2  # one follows the other, as is known without looking
    read_all(untold)
    untold.add(make_request(61, 75, alike=True))
    assert untold.admit(told_not) == []


def test_one_computes_a_prompt_and_the_others_follow(make_request: Numbered) -> None:
    made, cells = scheduler(n_cells=120), Cells()
    leader, second, third, other = (make_request(40, 60, alike=True) for _ in range(4))
    for each in (leader, second, third):
        made.add(each)
    assert made.admit(cells) == [leader, second, third]
    assert made.reserved == 60 + 20 + 20
    assert made.prefilling == [leader]
    assert [each.growth for each in (leader, second, third)] == [60, 20, 20]
    # Who gives up leaves the prompt, and the cells reserved for it, to the next.
    assert made.successor(leader) is second
    made.remove(leader)
    assert made.reserved == 60 + 20
    assert made.prefilling == [second]
    assert made.successor(third) is None
    made.add(other)
    assert made.admit(cells) == [other]
    assert made.plan().chunks == [(second, 40)]
    read_all(made)
    assert made.plan().decoding == [second, third, other]
    assert made.successor(second) is None
    made.remove(second)
    made.remove(other)
    assert made.reserved == 60  # with the prompt, which is another's no more
    made.remove(third)
    assert made.reserved == 0
    assert not made.prefilling
    assert made._by_prompt == {}  # nothing is searched that has ended


def test_a_second_prompt_has_a_sequence_and_cells_of_its_own(make_request: Numbered) -> None:
    made, cells = scheduler(n_seq_max=3, n_cells=100), Cells()
    guided, plain, last = (
        make_request(10, 50, second_prompt=6),
        make_request(5, 20),
        make_request(5, 20),
    )
    for each in (guided, plain, last):
        made.add(each)
    assert made.admit(cells) == [guided, plain]
    assert (guided.seq, guided.others, plain.seq) == (0, [1], 2)
    assert guided.left == 16
    guided.done, guided.second_done = 0, 6
    assert (guided.left, guided.growth) == (10, 44)
    guided.done = 10
    plain.done = 5
    made.observe(made.plan(), 0, 0.01)
    made.remove(plain)
    assert made.admit(cells) == [last]
    another = make_request(5, 20, second_prompt=2)
    made.add(another)
    assert made.admit(cells) == []  # one sequence is not enough
    made.remove(guided)
    assert made.admit(cells) == [another]


def test_who_does_not_fit_lets_others_go_first_but_not_for_ever(make_request: Numbered) -> None:
    made, cells = scheduler(n_cells=100), Cells()
    running, large = make_request(5, 50), make_request(5, 90)
    made.add(running)
    made.admit(cells)
    made.add(large)
    small = [make_request(5, 20) for _ in range(PASSED_OVER + LOOKED_AT)]
    went = 0
    for each in small:
        made.add(each)
        if made.admit(cells) == [each]:
            went += 1
            made.remove(each)
    assert went == PASSED_OVER
    made.remove(running)
    assert made.admit(cells)[0] is large


def test_nobody_is_looked_at_again_before_something_changes(make_request: Numbered) -> None:
    made, cells = scheduler(n_cells=100), Cells()
    first, waiting = make_request(50, 60), make_request(50, 70)
    made.add(first)
    made.add(waiting)
    made.admit(cells)
    cells.used_cells = lambda: 1 // 0  # type: ignore[method-assign]
    assert made.admit(cells) == []
    made.remove(waiting)
    assert not len(made.waiting)


def test_a_prompt_that_another_is_computing_is_waited_for(make_request: Numbered) -> None:
    made, cells = scheduler(budget=40), Cells()
    leader, follower, other = (
        make_request(200, alike=True),
        make_request(100, alike=True),
        make_request(9),
    )
    for each in (leader, follower, other):
        made.add(each)
    assert made.admit(cells) == [leader, other]
    made.remove(other)
    while leader.done < 99:
        assert made.admit(cells) == []
        plan = made.plan()
        for each, n in plan.chunks:
            each.done += n
        made.observe(plan, 0, 0.01)
    assert made.admit(cells) == [follower]
    assert WORTH_WAITING < 99


def test_everybody_who_writes_is_in_every_step(make_request: Numbered) -> None:
    made, cells = scheduler(budget=10), Cells()
    writing = [make_request(3), make_request(3)]
    for each in writing:
        made.add(each)
    made.admit(cells)
    read_all(made)
    reading = make_request(500)
    made.add(reading)
    made.admit(cells)
    assert made.plan().decoding == writing
    assert not made.plan().chunks  # a step without prompts is measured first
    made.observe(made.plan(), 2, 0.01)
    assert made.plan().chunks == [(reading, 8)]


def test_the_oldest_prompt_gets_half_and_short_ones_need_not_wait_for_it(
    make_request: Numbered,
) -> None:
    made = scheduler(budget=64)
    long, short, last = make_request(400), make_request(20), make_request(300)
    for each in (long, short, last):
        made.add(each)
    made.admit(Cells())
    assert made.plan().chunks == [(long, 32), (short, 16), (last, 16)]


def test_a_simulation_of_many_requests_keeps_all_promises() -> None:
    found = simulate(requests=300, n_cells=50_000, n_seq_max=16)
    assert len(found.waits) == 300
    assert found.pauses
    assert max(found.pauses) <= 0.25
    assert found.passed_over <= PASSED_OVER + 1


def test_what_is_being_read_is_not_computed(make_request: Numbered) -> None:
    class Reads(Cells):
        def reuse_prefix(self, request: ScheduledRequest) -> int:
            request.loading = len(request.prompt) == 100
            return super().reuse_prefix(request)

    made, cells = scheduler(), Reads()
    slow, other = make_request(100), make_request(5)
    for each in (slow, other):
        made.add(each)
    made.admit(cells)
    assert [each for each, _ in made.plan().chunks] == [other]
    later = ScheduledRequest(slow.prompt.copy(), 120)
    later.number = 9
    longer = ScheduledRequest(np.append(slow.prompt, np.array([1, 2, 3], np.int32)), 120)
    longer.number = 10
    for each in (later, longer):
        made.add(each)
    made.admit(cells)
    assert (later.follows, longer.seq) == (True, -1)  # one follows, and one waits for the same
    made.remove(other)
    works = [made.has_work]
    slow.done = 98
    made.loaded(slow)
    works.append(made.has_work)
    assert works == [False, True]
    assert made.plan().chunks == [(slow, 2)]
    made.admit(cells)
    assert longer.seq >= 0  # what it waited for is there
