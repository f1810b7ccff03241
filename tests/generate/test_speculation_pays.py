"""How many tokens are guessed: as many as pay."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.generate.speculative import (
    LONGEST_PAUSE,
    MOST_FIRST,
    SHARE,
    SHOWN,
    Costs,
    Experience,
    Guesser,
    Speculation,
)
from tests.generate.test_speculation import Oracle
from tests.generate.test_speculation import steady as steady


def test_rows_cost_what_was_measured() -> None:
    costs = Costs()
    costs.observe(1, 4, 9.0)  # nothing to compare with
    before = costs.row(1)
    costs.observe(1, 0, 1.0)
    costs.observe(1, 4, 3.0)
    assert before < 0.34 < costs.row(1)  # the first one counts half
    for _ in range(100):
        costs.observe(1, 4, 3.0)
    assert costs.row(1) == pytest.approx(0.5, abs=0.01)
    assert costs.is_measured(1)
    assert not costs.is_measured(2)
    assert costs.steps(1, 2.0) == 2.0
    assert costs.steps(2, 2.0) == 0.0
    costs.observe(8, 0, 2.0)
    assert costs.row(8) == pytest.approx(0.25, abs=0.01)  # as many seconds, of a longer step


@pytest.mark.parametrize("row", [0.05, 0.3, 0.6, 1.0])
def test_guesses_that_do_not_pay_cost_next_to_nothing(row: float) -> None:
    """By what steps cost, from rows that are nearly free to rows that cost as much as a step."""

    class Always:
        def draft(self, tokens: Sequence[int], n: int) -> list[int]:
            return [0] * n

    for likely in (0.0, 0.1, 0.3, 0.5, 0.7):
        for seed in range(8):
            rng, costs = random.Random(seed), Costs()
            drafts = Speculation(Always(), 8, 100)
            made, steps = 0, 0.0
            while made < 200:
                n = drafts.n_guesses(199 - made, 1, costs)
                steps += 1 + row * n
                costs.observe(1, n, 0.01 * (1 + row * n))
                right = next((i for i in range(n) if rng.random() >= likely), n)
                if n:
                    drafts.learn(n, right)
                made += right + 1
            assert made / steps >= 0.975


def test_a_drafter_that_finds_nothing_is_asked_as_often_as_its_time_allows() -> None:
    """A lookup that takes a tenth of a step, as in a very small model."""
    costs, drafts, asked = Costs(), Speculation(Oracle([]), 8, 100), 0
    costs.observe(1, 0, 0.01)
    for _ in range(200):
        if drafts.n_guesses(99, 1, costs):
            drafts.observe(0, 0.001)
            asked += 1
    assert 30 < asked < 55  # 0.02 of 200 steps


def wrong(made: Speculation, costs: Costs, steps: int) -> list[int]:
    """The steps in which guesses are asked for, all of them wrong."""
    asked = []
    for step in range(steps):
        n = 0 if made.rests() else made.n_guesses(99, 1, costs)
        costs.observe(1, n, 1.0 + 0.2 * n)
        if n:
            made.learn(n, 0)
            asked.append(step)
    return asked


def test_where_guesses_do_not_pay_pauses_double() -> None:
    costs, experience = Costs(), Experience()
    costs.observe(1, 0, 1.0)
    first = wrong(Speculation(Oracle([]), 8, 100, experience), costs, 400)
    assert len(first) < 12
    gaps = [b - a for a, b in pairwise(first)]
    assert gaps[-1] > LONGEST_PAUSE > gaps[0]
    experience.gain = -0.1
    again = wrong(Speculation(Oracle([]), 8, 100, experience), costs, 400)
    assert again[0] == LONGEST_PAUSE // 2  # as was learnt from other texts
    assert len(again) <= 3
    assert experience.gain < -0.1


def test_pauses_end_where_guesses_pay_again() -> None:
    costs, experience = Costs(), Experience()
    costs.observe(1, 0, 1.0)
    experience.gain = -0.2
    made, asked = Speculation(Oracle([]), 8, 100, experience), []
    for step in range(2 * LONGEST_PAUSE):
        n = 0 if made.rests() else made.n_guesses(99, 1, costs)
        costs.observe(1, n, 1.0 + 0.1 * n)
        if n:
            made.learn(n, n)
            asked.append(step)
    assert asked == [*range(LONGEST_PAUSE // 2, 2 * LONGEST_PAUSE)]
    assert experience.gain > 0


@pytest.mark.parametrize(
    ("seconds", "least", "most"), [(0.5 * SHARE, 200, 200), (2 * SHARE, 2, 20)]
)
def test_a_drafter_that_seldom_finds_anything_but_costs_little_is_always_asked(
    seconds: float, least: int, most: int
) -> None:
    """As n-grams beside a large model: a pause would miss what repeats itself."""
    costs, experience = Costs(), Experience(0.0)
    costs.observe(1, 0, 1.0)
    for _ in range(2):  # also where another text has found nothing
        made, asked = Speculation(Oracle([]), 8, 100, experience), 0
        for _ in range(200):
            if not made.rests() and made.n_guesses(99, 1, costs):
                asked += 1
                made.observe(0, seconds)
        assert least <= asked <= most


@pytest.mark.parametrize(("right", "least", "most"), [(True, 40, 100), (False, 0, 10)])
def test_texts_shorter_than_the_first_pause_are_guessed_again(
    right: bool, least: int, most: int
) -> None:
    """One bad text, or one client's, must not end the guesses of all later ones."""
    costs, experience, guessed = Costs(), Experience(-2.0), 0
    costs.observe(1, 0, 1.0)
    for _ in range(200):
        made, asked = Speculation(Oracle([]), 8, 100, experience), 0
        for _ in range(LONGEST_PAUSE // 4):
            n = 0 if made.rests() else made.n_guesses(99, 1, costs)
            costs.observe(1, n, 1.0 + 0.2 * n)
            if n:
                made.observe(n, 0.0)
                made.learn(n, n * right)
                asked += 1
        guessed += asked > 0
        made.end()
    assert least <= guessed <= most


def test_hidden_states_of_a_pause_are_left_out_but_the_last() -> None:
    class Head(Guesser):
        def __init__(self) -> None:
            super().__init__(SimpleNamespace())  # type: ignore[arg-type]
            self.seen = list[int]()

        def add_hidden(self, pos: int, hidden: Any) -> None:
            self.seen.append(pos)

    experience, head = Experience(), Head()
    experience.gain = -1.0
    made = Speculation(head, 8, 100, experience)
    for step in range(LONGEST_PAUSE):
        rests = made.rests()
        made.add_hidden(step, None)  # type: ignore[arg-type]
        if not rests:
            break
    assert head.seen == [*range(step - SHOWN, step + 1)]


def test_a_question_that_waited_for_other_programs_is_not_remembered_for_long() -> None:
    costs, experience = Costs(), Experience(1.0)
    costs.observe(1, 0, 1.0)
    made = Speculation(Oracle([]), 8, 100, experience)
    for seconds in (0.0, 500.0):
        assert made.n_guesses(99, 1, costs)
        made.observe(0, seconds)
    assert experience.gain > 0
    assert not made.rests()


@pytest.mark.parametrize(("seconds", "paid"), [(0.6, 0.6), (9.0, MOST_FIRST)])
def test_the_first_question_is_paid_for(seconds: float, paid: float) -> None:
    """It includes the prompt, which may take as long as many tokens."""
    costs = Costs()
    costs.observe(1, 0, 1.0)
    made = Speculation(Oracle([]), 8, 100)
    assert made.n_guesses(99, 1, costs)
    made.observe(0, seconds)
    before = made._account
    made.n_guesses(99, 1, costs)
    assert made._account == pytest.approx(before + SHARE - paid)


def account(likely: float, row: float, drafter: float, n_sequences: int) -> list[str]:
    """What a drafter is asked for in 120 steps, and what is thought of rows and of guesses then."""

    class Always:
        def draft(self, tokens: Sequence[int], n: int) -> list[int]:
            return [0] * n

    rng, costs, made = random.Random(6), Costs(), Speculation(Always(), 6, 100)
    told = []
    for step in range(120):
        n = made.n_guesses(12 - step % 11, n_sequences, costs)
        if n:
            made.observe(n if rng.random() < 0.8 else 0, drafter * n)
        costs.observe(n_sequences, n, 0.01 * (1 + row * n) * (1 + 0.2 * rng.random()))
        right = next((i for i in range(n) if rng.random() >= likely), n)
        if n:
            made.learn(n, right)
        told.append(f"{n} {costs.row(n_sequences).hex()} {made.likely.hex()}")
    return [*told, repr((made._account, made._retry, made._off, costs.steps(n_sequences, 1.0)))]


def test_the_account_of_guesses_is_as_recorded() -> None:
    """``python -m tests.generate.test_speculation_pays`` records a change that is meant."""
    assert json.loads(ACCOUNTS.read_text()) == accounts()


ACCOUNTS = Path(__file__).parent.parent / "data" / "speculation.json"


def accounts() -> dict[str, str]:
    """A digest of each case, and what is asked for."""
    made = {}
    for likely, row, drafter, n_sequences in product(
        (0.1, 0.6, 0.95), (0.02, 0.4), (0, 1e-3), (1, 3)
    ):
        told = account(likely, row, drafter, n_sequences)
        asked = "".join(each.partition(" ")[0] for each in told[:-1])
        digest = hashlib.blake2b("\n".join(told).encode(), digest_size=8).hexdigest()
        made[f"{likely} {row} {drafter} {n_sequences}"] = f"{digest} {asked}"
    return made


if __name__ == "__main__":
    ACCOUNTS.write_text(json.dumps(accounts(), indent=1) + "\n")
