"""Guesses that a text repeats itself, beside those of a draft head."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import aleator
from aleator.generate.prompt_lookup import PromptLookup, Repeats
from aleator.generate.speculative import (
    ALLOWANCE,
    EXPECTED,
    LONGEST_PAUSE,
    PAUSE,
    SHARE,
    TRIED,
    Costs,
    Guesser,
    Line,
    Speculation,
)

LOOP = [5, 6, 7, 8] * 12


class Head(Guesser):
    """A draft head that notes what it is told."""

    stops = True

    def __init__(self) -> None:
        super().__init__(SimpleNamespace())  # type: ignore[arg-type]
        self.told: list[int] = []

    def learn(self, right: int) -> None:
        self.told.append(right)


def measured(row: float = 0.2) -> Costs:
    costs = Costs()
    costs.observe(1, 0, 1.0)
    for _ in range(50):
        costs.observe(1, 4, 1.0 + 4 * row)
    return costs


def test_repeats_are_believed_as_far_as_they_were_right() -> None:
    repeats = Repeats()
    seen = []
    for end in range(1, len(LOOP) + 1):
        repeats.draft(LOOP[:end], 4)
        seen.append(repeats.likely)
    assert seen[:6] == [0.0] * 6  # nothing was found of which the next token is known
    assert seen[6] > 0.5
    assert seen == sorted(seen)
    assert seen[-1] > 0.95
    assert list(repeats.draft(LOOP, 6)) == [5, 6, 7, 8, 5, 6]
    repeats.draft([*LOOP, 5, 6, 9], 4)  # two were right, and one was not
    assert 0.6 < repeats.likely < 0.95
    before = repeats.likely
    repeats.draft(LOOP[:9], 4)  # a context shift: nothing is known of the last guesses
    assert repeats.likely == before


def test_long_runs_tell_where_in_a_verse_a_text_is() -> None:
    """After two or three tokens of it, each of two continuations is as often right."""
    verse, lookup = [1, 2, 3, 4] * 3 + [5, 6], PromptLookup()
    text = verse * 4
    for end in range(3 * len(verse), len(text) - 4):
        assert list(lookup.draft(text[:end], 4)) == text[end : end + 4]


def test_a_lookup_learns_the_same_in_one_piece_and_in_many() -> None:
    for n in range(40):
        whole, pieces = PromptLookup(), PromptLookup()
        for end in range(n + 1):
            pieces.draft(LOOP[:end], 4)
        whole.draft(LOOP[:n], 4)
        assert whole._after == pieces._after


def test_a_text_that_repeats_itself_needs_no_head() -> None:
    head, costs = Head(), measured()
    made = Speculation(head, 8, 100)
    for end in range(8, 16):
        assert not made.repeated(LOOP[:end], 9, 1, Costs())  # nothing to compare with
    found = [*made.repeated(LOOP[:16], 9, 1, costs)]
    assert found == [5, 6, 7, 8, 5, 6, 7, 8][: len(found)]
    assert found
    likely = made.likely
    made.learn(len(found), len(found))
    assert made.likely == likely
    assert head.told == []
    assert [*made.repeated(LOOP[:18], 1, 1, costs)] == [7]
    assert not made.repeated(LOOP[:19], 0, 1, costs)
    assert not made.repeated([*LOOP[:19], 90, 91, 92], 9, 1, costs)
    made.learn(2, 2)
    assert head.told == [2]
    assert made.likely > likely


def test_after_repeats_the_head_learns_of_its_own_guesses() -> None:
    head, costs = Head(), measured()
    made = Speculation(head, 8, 100)
    for end in range(8, 16):
        made.repeated(LOOP[:end], 0, 1, costs)
    assert made.repeated(LOOP[:16], 9, 1, costs)
    made.learn(2, 2)
    assert not made.repeated([*LOOP[:18], 90, 91], 9, 1, costs)
    made.learn(2, 1)
    assert head.told == [1]


def test_tokens_after_a_wrong_guess_say_nothing_of_further_ones() -> None:
    short, long = Repeats(), Repeats()
    for end in range(1, len(LOOP) + 1):
        short.draft(LOOP[:end], 4)
        long.draft(LOOP[:end], 4)
    short.draft([*LOOP, 5, 9], 4)  # one was right, one was not
    long.draft([*LOOP, 5, 9, 1, 1], 4)  # as after steps that rested
    assert short.likely == long.likely


def test_the_head_guesses_where_it_is_right_more_often() -> None:
    made, costs = Speculation(Head(), 8, 100), measured()
    for end in range(8, 17):
        assert not made.repeated([*LOOP[:end]], 0, 1, costs)
    assert made.repeated([*LOOP[:16], 9, 5, 6, 7], 9, 1, costs)  # not as sure as before
    made.learn(2, 0)
    for _ in range(9):
        made.repeated([9], 0, 1, costs)
        made.learn(8, 8)
    assert not made.repeated([*LOOP[:16], 9, 5, 6, 7], 9, 1, costs)
    assert made.n_guesses(9, 1, costs) == 8


def test_an_empty_account_is_paid_its_share_once_a_step_and_rests() -> None:
    made, costs = Speculation(Head(), 8, 100), measured()
    for end in range(8, 17):
        made.repeated(LOOP[:end], 0, 1, costs)
    made._account = 0.0
    for n in range(1, 5):
        assert not made.repeated(LOOP[: 16 + n], 9, 1, costs)
        assert not made.n_guesses(9, 1, costs)
        assert made._account == pytest.approx(n * SHARE)
    assert made.rests()


def test_a_further_guess_is_worth_what_is_made_in_its_time() -> None:
    made, costs = Speculation(Head(), 8, 100), measured(0.1)
    row, (_, speed) = costs.row(1), made._worth_of(1, costs)
    assert speed == pytest.approx(1.75 / (1 + 2 * row))  # two guesses of probability 1/2
    assert made.least_probability(1, costs) == pytest.approx(speed * row)
    made.observe(1, 9.0)  # the first call includes the prompt
    for n in [1, 3, 5, 8] * 5:
        made.observe(n, 0.4 + 0.1 * n)
    slower = made._worth_of(1, costs)[1]
    assert slower < speed
    assert made.least_probability(1, costs) == pytest.approx(slower * (row + 0.1))


def test_a_head_is_asked_for_as_many_as_it_guesses_at_once() -> None:
    head = Head()
    head.most = 3
    made, costs = Speculation(head, 8, 100), measured()
    assert made.n_guesses(9, 1, costs) == 3
    assert made.n_guesses(2, 1, costs) == 2
    assert made.repeated(LOOP, 9, 1, costs) == ()
    made._account = 99.0
    found = [len(made.repeated(LOOP[:end], 9, 1, costs)) for end in range(8, len(LOOP))]
    assert max(found) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costs, "row", lambda *others: 0.01)
    monkeypatch.setattr(Costs, "steps", lambda *others: 0.0)
    found, repeated = list[int](), Speculation.repeated

    def noted(self: Speculation, *given: Any) -> Any:
        made = repeated(self, *given)
        found.extend(made)
        return made

    monkeypatch.setattr(Speculation, "repeated", noted)
    model = aleator.load(model_draft="bundled", n_threads=1)
    texts = [
        model.generate(
            "a b c d a b c d a b", max_tokens=60, temperature=temperature, seed=3, spec_type=kind
        )
        for kind in ("none", "draft")
    ]
    assert texts[0].result() == texts[1].result()
    assert texts[0].tokens == texts[1].tokens
    if temperature == 0:  # it does repeat itself
        assert found
        assert texts[1].stats.draft_n_accepted > 20


def test_texts_of_a_temperature_share_what_guesses_gained() -> None:
    model = aleator.load(n_threads=1)
    maker, requests = model.request_states, {}
    for temperature in (0.0, 0.8, 0.83):
        made = model.generate("ROMEO:", max_tokens=1, temperature=temperature, spec_type="ngram")
        requests[temperature] = made.request
    assert {*maker._experience} == {("ngram", 0.0), ("ngram", 0.8)}
    maker._experience["ngram", 0.8].gain = -0.1
    for temperature, request in requests.items():
        (state,) = maker.make([request])
        assert state.speculation is not None
        assert state.speculation.rests() == (temperature > 0)


@pytest.mark.parametrize("spec_type", ["ngram", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_text_depends_on_what_guesses_gained(temperature: float, spec_type: str) -> None:
    model = aleator.load(model_draft="bundled", n_threads=1)
    wanted: Any = {"max_tokens": 70, "temperature": temperature, "seed": 3}
    for prompt in ("", "R", "a b c d " * 12):
        plain = model.generate(prompt, **wanted)
        assert plain.wait()
        for gain in (-2.0, 9.0):  # of the next text
            made = model.generate(prompt, spec_type=spec_type, **wanted)
            assert made.wait()
            assert made.tokens == plain.tokens
            assert made.chain.state_write() == plain.chain.state_write()
            model.request_states._experience[spec_type, temperature].gain = gain


def test_what_guesses_gained_is_remembered_of_few_temperatures() -> None:
    """Clients choose them, each another one."""
    model = aleator.load(n_threads=1)
    made = model.generate("A", max_tokens=1, spec_type="ngram").request
    for step in range(1000):
        params = made.params.replace(temperature=0.001 * 1.1**step)
        model.request_states.make([replace(made, params=params)])
    assert len(model.request_states._experience) <= 21


def test_other_drafters_are_asked_alone() -> None:
    class Always:
        def draft(self, tokens: Any, n: int) -> list[int]:
            return [0] * n

    made = Speculation(Always(), 8, 100)
    assert not made.looks_for_repeats
    assert Speculation(Head(), 8, 100).looks_for_repeats
    assert all(not made.repeated(LOOP[:end], 9, 1, measured()) for end in range(1, 48))


def test_wrong_repeats_are_paid_for() -> None:
    """A text that repeats itself until it is guessed to: the account says when to stop."""
    made, costs, lost = Speculation(Head(), 8, 100), measured(0.5), 0.0
    for n in range(16, 48):
        found = made.repeated(LOOP[:n], 9, 1, costs)
        lost += 0.5 * len(found)
        made.learn(len(found), 0)
    assert 0 < lost < ALLOWANCE * (1 + EXPECTED) + SHARE * 32 + 0.5


def test_nothing_is_asked_for_a_while_where_nothing_pays() -> None:
    made, costs = Speculation(Head(), 8, 100), measured()
    assert made.n_guesses(9, 1, costs)
    assert not made.rests()
    for _ in range(10):
        made.learn(1, 0)
    account, pause = made._account, made._pause
    assert pause > PAUSE
    assert [made.rests() for _ in range(pause + 1)] == [True] * pause + [False]
    assert made._account == pytest.approx(account + pause * SHARE)
    assert 0 < made.n_guesses(9, 1, costs) <= TRIED
    made.learn(TRIED, 0)
    assert made._pause == min(2 * pause, LONGEST_PAUSE)


@pytest.mark.parametrize(
    ("fixed", "each", "wanted"),
    [(3.0, 2.0, 2.0), (0.0, 2.0, 2.0), (50.0, 0.0, 1.7), (-4.0, 2.0, 1.3)],
)
def test_what_one_more_costs(fixed: float, each: float, wanted: float) -> None:
    line = Line()
    assert line.slope == 0.0
    line.observe(0, 9.0)
    assert line.slope == 0.0
    line = Line()
    for n in [1, 3, 5, 8] * 20:
        line.observe(n, fixed + each * n)
    assert line.slope == pytest.approx(wanted, rel=0.1)  # between a fifth of the mean and the mean
    line = Line()
    for _ in range(9):
        line.observe(4, 8.0)
    assert line.slope == pytest.approx(2.0)  # nothing to tell it by


def test_calls_without_guesses_do_not_make_a_guess_dearer() -> None:
    """A head that is unsure for a while is asked no more of later."""
    line = Line()
    for n in [1, 3, 5, 8] * 5 + [0] * 200:
        line.observe(n, 45.0 + 20.0 * n)
    assert line.slope == pytest.approx(20.0)
