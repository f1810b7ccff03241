"""Prompts and those who write share the time: by a clock that is made up, so the same on every machine."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from simulate_engine import Machine, share

from aleator.core.errors import ParameterError
from aleator.engine.options import EngineOptions
from aleator.engine.pace import AIM, FIRST, LEAST, Pace
from aleator.engine.scheduled_request import ScheduledRequest
from aleator.engine.scheduler import Scheduler

SMALL = Machine()
LARGE = Machine(step=0.4, row=0.01, token=0.05, depth=20_000, noise=0.05)
"""A step without prompts takes longer than max_pause."""
FAST = Machine(step=4e-3, row=1e-5, token=2e-5, depth=4000)


def measured(pace: Pace, depth: int, token: float, plain: float = 0.01) -> int:
    """Tokens of the next piece, which costs so much a token, and of steps without prompts after it."""
    while pace.decode_only():
        pace.observe(4, 0, 0, plain)
    n = pace.tokens(depth)
    pace.observe(4, n, depth + n / 2, plain + n * token)
    return n


@pytest.mark.parametrize("writers", [1, 4, 15])
@pytest.mark.parametrize("length", [512, 4096, 16384])
def test_what_max_pause_promises(length: int, writers: int) -> None:
    found = share([length], writers, SMALL)
    assert found.beside <= 2.5 * found.alone
    assert found.speed >= 0.5
    assert found.longest <= 0.3


@pytest.mark.parametrize("max_pause", [0.05, 0.1, 1.0])
def test_a_longer_pause_is_kept_as_well(max_pause: float) -> None:
    found = share([2048], 4, SMALL, max_pause)
    assert found.longest <= 1.2 * max_pause
    assert found.speed >= 0.5
    assert found.beside <= 2.5 * found.alone


def test_where_a_step_takes_longer_than_the_pause_a_piece_takes_as_long_as_two_steps() -> None:
    found = share([512], 4, LARGE)
    assert found.longest <= 3.3 * 0.44
    assert found.speed >= 0.5
    pieces = 512 * LARGE.token  # what small pieces add, also where they are alone
    assert found.beside <= 2.5 * pieces


def test_a_fast_machine_computes_the_whole_budget_at_once() -> None:
    found = share([4096], 4, FAST)
    assert found.steps < 50
    assert found.longest < 0.1


@pytest.mark.parametrize("writers", [1, 4, 15])
def test_pauses_are_bounded_where_many_prompts_come_together(writers: int) -> None:
    found = share([700, 20, 3000, 64, 64, 1500, 5, 900], writers, SMALL)
    assert found.longest <= 0.3
    assert found.beside <= 2.5 * found.alone


def test_more_prompts_than_writers_get_more_than_half_of_the_time() -> None:
    """Of 16 requests that come together the first one to write does not hold up the 15 others."""
    found = share([300] * 15, 1, SMALL)
    assert found.beside <= 1.5 * found.alone
    assert found.speed > 1 / 16


def test_prompts_that_begin_deep_are_known_to_cost_more() -> None:
    """Most of a prompt is cached: its first piece costs many times what a token of a new one does."""
    found = share([16_300], 4, SMALL, cached=16_000, known=16_300)
    assert found.longest <= 0.3
    back = share([512], 4, SMALL, known=16_300)
    assert back.longest <= 0.3
    assert back.beside <= 2.5 * back.alone


def test_neither_side_starves_whatever_steps_cost() -> None:
    rng = random.Random(1)
    for _ in range(40):
        machine = Machine(
            step=10 ** rng.uniform(-3, 0),
            row=10 ** rng.uniform(-5, -2),
            token=10 ** rng.uniform(-5, -1),
            depth=10 ** rng.uniform(2, 5),
            noise=rng.uniform(0, 0.3),
        )
        lengths = [rng.randint(1, 1500) for _ in range(rng.randint(1, 3))]
        writers = rng.randint(len(lengths), 20)
        found = share(lengths, writers, machine, max_pause=rng.choice([0, 0.05, 0.25, 2]))
        # But for the last piece, after which they get their time when the prompts are computed.
        later = max(found.beside - found.longest, 1e-9)
        assert found.speed * found.beside / later > 0.4, (machine, lengths, writers)
        # Prompts take at most this long in pieces of a few tokens, each of which has a step to itself.
        least = machine.seconds(random.Random(1), 0, [(n, 0) for n in lengths])
        alone = max(found.alone, least)
        plain = machine.step + machine.row * (writers + len(lengths))
        pieces = sum(lengths) / LEAST + 20
        assert found.beside < 4 * alone + 3 * pieces * plain, (machine, lengths, writers)


def test_the_first_piece_is_small_and_the_next_as_large_as_the_pause_allows() -> None:
    pace = Pace(0.25)
    assert pace.decode_only()  # a step of theirs is measured first
    assert measured(pace, 0, 1e-3) == FIRST
    after = measured(pace, 0, 1e-3)
    assert FIRST < after <= AIM * 250
    assert measured(pace, 0, 1e-3) >= 0.5 * AIM * 250


def test_those_who_write_get_as_much_time_as_a_piece_took() -> None:
    pace = Pace(0.25)
    pace.observe(4, 0, 0, 0.01)
    assert not pace.decode_only()

    def steps(depth: int, prompts: int = 1) -> int:
        pace.observe(4, 50, depth, 0.15, prompts=prompts)
        n = 0
        while pace.decode_only():
            pace.observe(4, 0, 0, 0.01)
            n += 1
        return n

    # And one in the step with the piece: 1.18 times 140 ms.
    assert steps(125) == 16
    assert steps(125, prompts=8) == 7  # twice as many wait as write
    assert 27 <= steps(25) <= 28  # the first of a prompt: none come after its last


def test_who_has_just_begun_to_write_has_a_turn() -> None:
    """The prompt of a short request was computed beside a long one's, and nobody wrote yet."""
    pace = Pace(0.25)
    pace.observe(4, 0, 0, 0.01)
    pace.observe(0, 50, 600, 0.1)
    assert not pace.decode_only()
    pace.observe(0, 51, 650, 0.1, begun=1)
    assert pace.decode_only()
    pace.observe(0, 51, 650, 0.1, begun=1, prompts=0)  # the only prompt
    assert not pace.decode_only()


def test_the_turn_of_those_who_sit_out_a_step_passes_too() -> None:
    pace = Pace(0.25)
    pace.observe(4, 0, 0, 0.01)
    pace.observe(4, 50, 125, 0.15)
    for _ in range(40):  # all of them are choosing
        pace.observe(0, 0, 0, 0.005)
    assert not pace.decode_only()


def test_nobody_is_owed_time_for_what_held_nobody_up() -> None:
    pace = Pace(0.25)
    pace.observe(4, 0, 0, 0.01)
    pace.observe(4, 50, 25, 0.2)
    pace.observe(0, 512, 256, 5.0)
    assert not pace.decode_only()


def test_a_step_that_was_held_up_counts_little() -> None:
    pace = Pace(0.25)
    for _ in range(5):
        usual = measured(pace, 0, 1e-3)
    pace.observe(4, 0, 0, 5.0)
    assert abs(pace.tokens(0) - usual) <= 0.1 * usual
    # A piece that was: the next ones are smaller, and then as before.
    pace.observe(4, usual, usual / 2, 2.0)
    assert measured(pace, 0, 1e-3) <= 0.2 * usual
    sizes = [measured(pace, 0, 1e-3) for _ in range(12)]
    assert sizes[-1] >= 0.9 * usual
    assert max(b / a for a, b in pairwise(sizes)) <= 2.1


def test_what_a_step_without_prompts_takes_stays_known() -> None:
    """The machine was slow for a while: what writers get is soon reckoned by what steps take again."""
    pace = Pace(0.25)
    for _ in range(3):
        measured(pace, 0, 1e-3)
    for _ in range(30):
        measured(pace, 0, 1e-2, plain=0.15)
    for _ in range(30):
        measured(pace, 0, 1e-3)
    assert pace.decode_only()
    steps = 0
    while pace.decode_only():
        pace.observe(4, 0, 0, 0.01)
        steps += 1
    assert steps >= 15


def test_a_piece_may_seem_to_take_no_time() -> None:
    """Where the step before it was held up: the next pieces are larger, by a factor and not by all."""
    pace = Pace(0.25)
    pace.observe(4, 0, 0, 1.0)
    pace.observe(4, FIRST, 8, 0.5)
    pace.observe(4, 0, 0, 0.01)
    assert pace.tokens(FIRST) == 4 * FIRST
    pace.observe(4, 4 * FIRST, 3 * FIRST, 0.5)
    assert pace.tokens(5 * FIRST) == 16 * FIRST


def test_the_cost_of_depth_is_learned() -> None:
    pace, depth = Pace(0.25), 0
    while depth < 8000:
        n = measured(pace, depth, 1e-3 * (1 + depth / 2000))
        assert n * 1e-3 * (1 + (depth + n / 2) / 2000) <= 0.25
        depth += n
    for deep in (8000, 4000, 0, 8000, 0):
        for _ in range(4):
            n = measured(pace, deep, 1e-3 * (1 + deep / 2000))
            assert n * 1e-3 * (1 + deep / 2000) <= 0.3
        assert n * 1e-3 * (1 + deep / 2000) >= 0.6 * AIM * 0.25


def test_without_a_pace_prompts_go_first() -> None:
    made = Scheduler(4, 1000, 64, None)
    requests = [ScheduledRequest(np.full(n, n, np.int32), n + 50) for n in (5, 400)]
    for i, request in enumerate(requests):
        request.number = i
        made.running[i] = request
    made._start_decode(requests[0])
    made._start_prefill(requests[1])
    for _ in range(3):
        plan = made.plan()
        assert plan.chunks == [(requests[1], 63)]
        made.observe(plan, 1, 10.0)


def test_max_pause_is_seconds() -> None:
    assert EngineOptions().max_pause == 0.25
    assert EngineOptions(max_pause=0).max_pause == 0
    with pytest.raises(ParameterError, match=r"max_pause=-1.*0 to 1000000"):
        EngineOptions(max_pause=-1)
    assert replace(EngineOptions(), max_pause=2).max_pause == 2
