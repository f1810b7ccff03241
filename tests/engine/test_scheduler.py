"""Decisions without a model: order, room, pieces of prompts, and a simulation of many requests."""

from __future__ import annotations

import random

import numpy as np
import pytest
from simulate_engine import simulate

from aleator.engine.job import PLACES, WORTH_WAITING, Job
from aleator.engine.pace import BEGIN, FIRST, LEAST, LOOKS, Pace
from aleator.engine.queue import LOOKED_AT, PASSED_OVER, Queue
from aleator.engine.scheduler import Scheduler


class Cells:
    """Nothing is cached; what running jobs hold is what they have computed."""

    def __init__(self, cached: int = 0, tells: bool = True) -> None:
        self.cached, self.tells = cached, tells
        self.holding: list[Job] = []

    def adopt(self, job: Job) -> int:
        self.holding.append(job)
        return min(self.cached, len(job.prompt) - 1)

    def drop(self, job: Job) -> None:
        self.holding.remove(job)

    def held(self) -> int | None:
        own = sum(job.done - min(self.cached, job.done) for job in self.holding)
        return own + self.cached * bool(self.holding) if self.tells else None


class Numbered:
    """Makes jobs, numbered as they come."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, prompt: int, longest: int | None = None, **more: int | bool) -> Job:
        tokens = np.arange(prompt, dtype=np.int32) + 1000 * self.n * (not more.pop("alike", False))
        job = Job(tokens, prompt + 10 if longest is None else longest, **more)  # type: ignore[arg-type]
        job.number = self.n
        self.n += 1
        return job


@pytest.fixture
def job() -> Numbered:
    return Numbered()


def scheduler(n_seq_max: int = 4, n_cells: int = 1000, budget: int = 64) -> Scheduler:
    return Scheduler(n_seq_max, n_cells, budget, Pace(2.0))


def read_all(made: Scheduler) -> None:
    """Steps until nobody reads a prompt any more."""
    while any(each.left for each in made.running.values()):
        plan = made.plan()
        for each, n in plan.chunks:
            each.done += n
            for follower in each.partners:
                follower.done = each.done if follower.follows else follower.done
        made.observe(plan, len(plan.writing), 0.01)


def test_jobs_begin_in_the_order_of_arrival_while_there_are_sequences(job: Numbered) -> None:
    made, jobs = scheduler(n_seq_max=2), [job(5) for _ in range(3)]
    for each in jobs:
        made.add(each)
    assert made.admit(Cells()) == jobs[:2]
    assert [each.seq for each in jobs] == [0, 1, -1]
    made.remove(jobs[0])
    assert made.admit(Cells()) == jobs[2:]
    assert jobs[2].seq == 0


def test_a_priority_is_worth_so_many_places_and_no_more(job: Numbered) -> None:
    queue = Queue()
    early, others = job(1), [job(1, priority=1) for _ in range(PLACES + 5)]
    for each in (early, *others):
        queue.add(each)
    order = list(queue)
    assert order.index(early) == PLACES - 1
    assert len(order) == len(queue) == PLACES + 6
    assert order[0] is others[0]


def test_a_job_begins_when_there_is_room_for_the_longest_that_it_can_become(job: Numbered) -> None:
    made = scheduler(n_cells=100)
    one, other = job(10, 60), job(10, 41)
    made.add(one)
    made.add(other)
    assert made.admit(Cells()) == [one]
    assert made.reserved == 60
    made.remove(one)
    assert made.admit(Cells()) == [other]
    assert made.reserved == 41


def test_shared_prompts_need_their_cells_once(job: Numbered) -> None:
    cells, made = Cells(cached=60), scheduler(n_cells=100)
    jobs = [job(61, 75, alike=True) for _ in range(4)]
    for each in jobs:
        made.add(each)
    assert made.admit(cells) == jobs[:2]  # 60 + 2 * 15; a third would need 105
    assert cells.holding == jobs[:1]  # the other one follows it
    assert [each.done for each in jobs] == [60, 0, 0, 0]
    apart = scheduler(n_cells=100)
    for each in [job(61, 75, shares=False, alike=True) for _ in range(2)]:
        apart.add(each)
    assert len(apart.admit(Cells(cached=60))) == 1
    untold = scheduler(n_cells=100)
    for each in [job(61, 75, alike=True) for _ in range(2)]:
        untold.add(each)
    told_not = Cells(cached=60, tells=False)
    assert len(untold.admit(told_not)) == 2  # one follows the other, as is known without looking
    read_all(untold)
    untold.add(job(61, 75, alike=True))
    assert untold.admit(told_not) == []


def test_one_computes_a_prompt_and_the_others_follow(job: Numbered) -> None:
    made, cells = scheduler(n_cells=120), Cells()
    leader, second, third, other = (job(40, 60, alike=True) for _ in range(4))
    for each in (leader, second, third):
        made.add(each)
    assert made.admit(cells) == [leader, second, third]
    assert made.reserved == 60 + 20 + 20
    assert made.reading == [leader]
    assert [each.growth for each in (leader, second, third)] == [60, 20, 20]
    # Who gives up leaves the prompt, and the cells reserved for it, to the next.
    assert made.heir(leader) is second
    made.remove(leader)
    assert made.reserved == 60 + 20
    assert made.reading == [second]
    assert made.heir(third) is None
    made.add(other)
    assert made.admit(cells) == [other]
    assert made.plan().chunks == [(second, 40)]
    read_all(made)
    assert made.plan().writing == [second, third, other]
    assert made.heir(second) is None
    made.remove(second)
    made.remove(other)
    assert made.reserved == 60  # with the prompt, which is another's no more
    made.remove(third)
    assert made.reserved == 0
    assert not made.reading
    assert made._alike == {}  # nothing is searched that has ended


def test_a_second_prompt_has_a_sequence_and_cells_of_its_own(job: Numbered) -> None:
    made, cells = scheduler(n_seq_max=3, n_cells=100), Cells()
    guided, plain, last = job(10, 50, beside=6), job(5, 20), job(5, 20)
    for each in (guided, plain, last):
        made.add(each)
    assert made.admit(cells) == [guided, plain]
    assert (guided.seq, guided.beside_seq, plain.seq) == (0, 1, 2)
    assert guided.left == 16
    guided.done, guided.beside_done = 0, 6
    assert (guided.left, guided.growth) == (10, 44)
    guided.done = 10
    plain.done = 5
    made.observe(made.plan(), 0, 0.01)
    made.remove(plain)
    assert made.admit(cells) == [last]
    another = job(5, 20, beside=2)
    made.add(another)
    assert made.admit(cells) == []  # one sequence is not enough
    made.remove(guided)
    assert made.admit(cells) == [another]


def test_who_does_not_fit_lets_others_go_first_but_not_for_ever(job: Numbered) -> None:
    made, cells = scheduler(n_cells=100), Cells()
    running, large = job(5, 50), job(5, 90)
    made.add(running)
    made.admit(cells)
    made.add(large)
    small = [job(5, 20) for _ in range(PASSED_OVER + LOOKED_AT)]
    went = 0
    for each in small:
        made.add(each)
        if made.admit(cells) == [each]:
            went += 1
            made.remove(each)
    assert went == PASSED_OVER
    made.remove(running)
    assert made.admit(cells)[0] is large


def test_nobody_is_looked_at_again_before_something_changes(job: Numbered) -> None:
    made, cells = scheduler(n_cells=100), Cells()
    first, waiting = job(50, 60), job(50, 70)
    made.add(first)
    made.add(waiting)
    made.admit(cells)
    cells.held = lambda: 1 // 0  # type: ignore[method-assign]
    assert made.admit(cells) == []
    made.remove(waiting)
    assert not len(made.waiting)


def test_a_prompt_that_another_is_computing_is_waited_for(job: Numbered) -> None:
    made, cells = scheduler(budget=40), Cells()
    leader, follower, other = job(200, alike=True), job(100, alike=True), job(9)
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


def test_everybody_who_writes_is_in_every_step(job: Numbered) -> None:
    made, cells = scheduler(budget=10), Cells()
    writing = [job(3), job(3)]
    for each in writing:
        made.add(each)
    made.admit(cells)
    read_all(made)
    reading = job(500)
    made.add(reading)
    made.admit(cells)
    assert made.plan().writing == writing
    assert made.plan().chunks == []  # a step without prompts is measured first
    made.observe(made.plan(), 2, 0.01)
    assert made.plan().chunks == [(reading, 8)]


def test_the_oldest_prompt_gets_half_and_short_ones_need_not_wait_for_it(job: Numbered) -> None:
    made = scheduler(budget=64)
    long, short, last = job(400), job(20), job(300)
    for each in (long, short, last):
        made.add(each)
    made.admit(Cells())
    assert made.plan().chunks == [(long, 32), (short, 16), (last, 16)]


def test_pieces_of_prompts_are_as_long_as_the_pause_allows() -> None:
    pace = Pace(2.0)
    assert pace.tokens(4) == 0
    pace.observe(4, 0, 0.010)
    assert pace.tokens(4) == FIRST
    pace.observe(4, 32, 0.010 + 32 * 0.0001)
    assert pace.tokens(4) == int(BEGIN * 100)  # of 10 ms, at 0.1 ms each
    for _ in range(LOOKS):
        pace.observe(4, 60, 0.016)
    assert pace.tokens(4) == 0  # to learn what a step costs now
    slow = Pace(1.0)
    slow.observe(1, 0, 0.01)
    slow.observe(1, 8, 0.02)
    assert slow.tokens(4) == LEAST


def test_prompts_that_came_together_are_computed_as_if_all_wrote_already() -> None:
    """Or the first one would write at a pace that it soon has not, and the others wait for it."""
    pace = Pace(2.0)
    pace.observe(1, 0, 0.010)
    pace.observe(1, 32, 0.010 + 32 * 0.001)
    assert pace.tokens(1) == int(BEGIN * 10)
    assert pace.tokens(1, prompts=15) == int(14 + BEGIN * 24)  # a step takes 24 ms then


def test_a_step_with_more_rows_than_the_latest_without_prompts_is_allowed_more() -> None:
    pace = Pace(2.0)
    pace.observe(1, 0, 0.010)
    pace.observe(1, 32, 0.010 + 32 * 0.001)
    usual = (10, 14, 20)  # ms; a token of the prompt adds one
    allowed = [BEGIN * each for each in usual]
    assert [pace.tokens(rows) for rows in (1, 5, 11)] == pytest.approx(allowed, abs=1)
    pace.observe(11, 0, 0.020)
    assert [pace.tokens(rows) for rows in (11, 21)] == pytest.approx(
        [BEGIN * 20, BEGIN * 30], abs=1
    )


def test_a_step_that_was_held_up_counts_little() -> None:
    pace = Pace(2.0)
    pace.observe(0, 1, 0.009)  # a prompt of one token says nothing
    pace.observe(4, 0, 0.010)
    assert pace.tokens(4) == FIRST
    pace.observe(4, 32, 0.010 + 32 * 0.0001)
    pace.observe(4, 0, 5.0)
    assert BEGIN * 100 <= pace.tokens(4) <= BEGIN * 130


def test_a_prompt_comes_to_its_end_whatever_a_step_costs() -> None:
    pace = Pace(2.0)
    pace.observe(0, 100, 5.0)
    pace.observe(1, 0, 0.001)
    assert pace.tokens(1) == LEAST


def test_pieces_stay_below_a_size_at_which_the_cost_jumps() -> None:
    """As where rows of another kernel begin: up to six tokens of a step cost little, the seventh much."""
    pace, pauses, sizes = Pace(2.0), [], []
    pace.observe(4, 0, 0.008)
    for _ in range(300):
        n = pace.tokens(4)
        seconds = 0.008 + 0.0005 * n + (0.016 if 4 + n > 6 else 0.0)
        pace.observe(4, n, seconds)
        sizes.append(n)
        pauses.append(seconds / 0.008)
    assert sorted(pauses)[int(0.95 * len(pauses))] <= 2.0
    assert sorted(sizes)[len(sizes) // 2] == 2


def test_less_is_aimed_at_where_what_a_step_takes_varies() -> None:
    """One in twenty steps may take longer than the bound, whatever their spread."""
    rng, pace, pauses = random.Random(3), Pace(2.0), []
    for i in range(1500):
        n = pace.tokens(4) if i > 3 else 0
        seconds = (0.010 + 0.001 * n) * rng.lognormvariate(0.0, 0.2)
        pace.observe(4, n, seconds)
        if n:
            pauses.append(seconds / 0.010)
    assert np.mean(np.array(pauses[200:]) > 2.2) < 0.07  # the usual step is known within a tenth
    assert np.median(pauses[200:]) > 1.3


def test_pauses_stay_within_the_bound_where_cost_rises_by_steps() -> None:
    """As of matrix kernels, which compute six rows together; with a tenth of noise."""
    for seed in range(5):
        rng, pace, pauses = random.Random(seed), Pace(2.0), []
        for _ in range(4):
            pace.observe(4, 0, 0.010)
        left = 512
        while left > 0:
            n = min(left, pace.tokens(4))
            seconds = 0.010 * -(-(4 + n) // 6) * (1 + 0.1 * rng.random())
            pace.observe(4, n, seconds)
            pauses.append(seconds / 0.010)
            left -= n
        assert np.mean(np.array(pauses) > 2.0) < 0.2  # longer pieces are tried now and then
        assert len(pauses) < 300  # it does come to its end


def test_longer_pieces_are_tried_again() -> None:
    pace = Pace(2.0)
    pace.observe(4, 0, 0.010)
    for n in (64, 8):
        pace.observe(4, n, 0.010 + n * 0.001)  # while something else ran
    for _ in range(40 * LOOKS):
        n = pace.tokens(4)
        pace.observe(4, n, 0.010 + n * 0.0001)
    assert max(pace.tokens(4), pace.tokens(4)) > 80 or pace.tokens(4) == 0


def test_a_simulation_of_many_requests_keeps_all_promises() -> None:
    found = simulate(requests=300, n_cells=50_000, n_seq_max=16)
    assert len(found.waits) == 300
    assert found.passed_over <= PASSED_OVER + 1
