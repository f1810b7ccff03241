"""States of chains: what goes on is what would have gone on, and what is not sound changes nothing."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import ConstraintError, ParameterError, StateError
from aleator.core.numerics import Row, Step
from aleator.samplers.base import Place

V = 2048
GBNF = 'root ::= word (" " word){0,60} "."\nword ::= [a-z]+ | "\\"" [A-Z] [^"\\n]* "\\""'
LAST: dict[str, S.Sampler] = {
    "dist": S.Dist(),
    "mirostat": S.Mirostat(mirostat_tau=3.0, mirostat_eta=0.3),
    "mirostat_v2": S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.3),
    "adaptive_p": S.AdaptiveP(adaptive_target=0.4, adaptive_decay=0.8),
    "greedy": S.Greedy(),
}
WINDOWS: list[S.Sampler] = [
    S.Penalties(penalty_last_n=9, repetition_penalty=1.3, frequency_penalty=0.2),
    S.DRY(2.0, 1.75, 1, -1, [(3, 4)]),
    S.DRY(2.0, 1.75, 1, 12, []),
    S.XTC(0.5, 0.01),
    S.Temperature(temperature=1.3),
]


class Cycle:
    """A user's sampler with a state: bans what it saw so many tokens ago."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, candidates: S.Candidates) -> None:
        banned = set(self.seen[-5:-3])
        candidates.keep([i for i in candidates.ids.tolist() if i not in banned])

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def rollback(self, n: int) -> None:
        del self.seen[len(self.seen) - n :]

    def reset(self) -> None:
        self.seen = []

    def state_write(self) -> bytes:
        return np.asarray(self.seen, "<i4").tobytes()

    def state_read(self, state: bytes) -> None:
        self.seen = np.frombuffer(state, "<i4").tolist()


class Forgetful:
    """A user's sampler without state methods."""

    name = "forgetful"

    def apply(self, candidates: S.Candidates) -> None:
        pass


def row(i: int) -> Any:
    return np.random.default_rng(i).normal(size=V).astype(np.float32) * 3


def chain(last: str, numerics: str = "portable", **changes: Any) -> S.SamplerChain:
    before = [] if last == "mirostat" and numerics == "llama.cpp" else WINDOWS
    nested = S.SamplerChain([S.TopK(top_k=200), S.MinP(min_p=0.001)])
    samplers = [*before, *changes.pop("more", []), nested, LAST[last]]
    return S.SamplerChain(samplers, **{"numerics": numerics, "seed": 5, **changes})


def draw(one: S.SamplerChain, n: int, start: int = 0) -> list[int]:
    return [one.sample(row(start + i)) for i in range(n)]


def check_goes_on(one: S.SamplerChain, new: Callable[[], S.SamplerChain]) -> None:
    """A new chain with the state of this one does what it does: forwards, and back at any depth."""
    other = new()
    other.accept_many([7, 7, 9])
    other.sample(row(99))
    other.state_read(one.state_write())
    assert (other.history, other.position) == (one.history, one.position)
    assert other.state_write() == one.state_write()
    assert draw(other, 25, 100) == draw(one, 25, 100)
    for depth, replay in ((3, True), (11, False), (20, True)):
        for each in (one, other):
            each.rollback(depth, replay)
        assert draw(other, 8, 200) == draw(one, 8, 200)
    assert other.state_write() == one.state_write()


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_every_chain_goes_on(last: str, numerics: str) -> None:
    def new() -> S.SamplerChain:
        return chain(last, numerics, completion=3)

    one = new()
    check_goes_on(new(), new)
    one.accept_many([1, 2, 3, 4, 1, 2, 3])
    draw(one, 30)
    check_goes_on(one, new)
    one.apply(S.Candidates(row(7)))  # a draw that nobody has accepted yet
    check_goes_on(one, new)


@pytest.mark.parametrize("cls", S.SAMPLERS, ids=lambda cls: cls.name)
def test_every_sampler_has_one(cls: type[S.Sampler], model: aleator.LanguageModel) -> None:
    special: dict[str, Callable[[], S.Sampler]] = {
        "infill": lambda: S.Infill(model.tokenizer),
        "logit_bias": lambda: S.LogitBias({3: 2.0}),
        "token_mask": lambda: S.TokenMask(list(range(1000))),
    }
    sampler = special.get(cls.name, cls)()
    end = [] if sampler.selects else [S.Dist()]

    def new() -> S.SamplerChain:
        return S.SamplerChain([S.TopK(top_k=50), sampler, *end], seed=1)

    one = new()
    draw(one, 5)
    check_goes_on(one, new)
    twin = pickle.loads(pickle.dumps(one))
    assert draw(twin, 5) == draw(one, 5)


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@pytest.mark.parametrize("place", ["grammar", "list"])
def test_the_place_in_a_grammar(numerics: str, place: str, model: aleator.LanguageModel) -> None:
    grammars = {
        "gbnf": S.Grammar(GBNF, vocabulary=model.tokenizer),
        "lazy": S.Grammar(GBNF, vocabulary=model.tokenizer, trigger_patterns=["[aeiou]{2}"]),
        "regex": S.Regex("([a-z]{1,4}-){80}[0-9]+", model.tokenizer),
    }
    for name, grammar in grammars.items():

        def new(grammar: S.ConstraintSampler = grammar) -> S.SamplerChain:
            if place == "list":
                return S.SamplerChain([grammar, *chain("dist")], numerics, seed=5)
            return chain("dist", numerics, grammar=grammar)

        one = new()
        one.accept_many([5, 6])
        draw(one, 4)
        other = new()
        other.state_read(one.state_write())
        for c, d in zip(other.constraints, one.constraints, strict=True):
            assert c.constraint.waiting == d.constraint.waiting, name
        assert draw(other, 6, 9) == draw(one, 6, 9), name
        one.restart()  # another text: its tokens only are the grammar's
        draw(one, 3, 20)
        other.state_read(one.state_write())
        assert draw(other, 4, 30) == draw(one, 4, 30), name
        for each in (one, other):
            each.rollback(5)
            with pytest.raises(ParameterError, match="began anew"):
                each.rollback(4)
        assert draw(other, 4, 40) == draw(one, 4, 40), name


def test_a_users_sampler_with_state_methods_and_one_without() -> None:
    for numerics in ("portable", "llama.cpp"):

        def new(numerics: str = numerics) -> S.SamplerChain:
            return chain("mirostat_v2", numerics, more=[Cycle()])

        one = new()
        draw(one, 12)
        check_goes_on(one, new)
        other = new()
        user = other[len(WINDOWS)]
        other.state_read(one.state_write())
        assert other[len(WINDOWS)] is user  # the same object, with another state
        assert user.seen == one.history

        plain = S.SamplerChain([Forgetful(), S.Dist()], numerics, seed=1)
        with pytest.raises(ParameterError, match=r"forgetful .* no state_write\(\)"):
            plain.state_write()


def test_a_users_sampler_that_fails_leaves_all_as_it_was() -> None:
    class Picky(Cycle):
        name = "picky"
        angry = False

        def state_read(self, state: bytes) -> None:
            super().state_read(state)
            if self.angry:
                self.angry = False
                raise RuntimeError("no")

    one = chain("dist", more=[Cycle(), Picky()])
    draw(one, 9)
    state = one.state_write()
    draw(one, 4)
    now, first, second = one.state_write(), one[len(WINDOWS)], one[len(WINDOWS) + 1]
    second.angry = True
    with pytest.raises(StateError, match="picky cannot read its state: no"):
        one.state_read(state)
    assert one.state_write() == now
    assert first.seen == second.seen == one.history


@dataclass(frozen=True)
class Drawn(S.Sampler):
    """A sampler with a reference only, which remembers the tokens that it saw come."""

    name = "drawn"

    def reference(self, row: Row, step: Step, place: Place) -> None:
        key = (self.name, place.ordinal)
        last, share = step.state.get(key, (0, 0.1))
        row.keep(row.ids != row.ids[int(share * len(row))])
        for token in row.ids.tolist():
            step.pending[key] = (token, (token, (share * 1.7 + last) % 1))


def test_a_sampler_with_a_reference_only() -> None:
    def new() -> S.SamplerChain:
        return S.SamplerChain([S.TopK(top_k=4), Drawn(), S.Dist()], seed=2)

    one = new()
    draw(one, 7)
    other = new()
    other.state_read(one.state_write())
    assert draw(other, 6, 9) == draw(one, 6, 9)
    for each in (one, other):
        each.rollback(8)
    assert other.state_write() == one.state_write()


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_have_a_state_of_their_own(numerics: str, copied: Any) -> None:
    one = chain("adaptive_p", numerics)
    draw(one, 10)
    other = copied(one)
    before = one.state_write()
    drawn = draw(other, 10, 50)
    assert one.state_write() == before
    assert draw(one, 10, 50) == drawn
    assert other.state_write() == one.state_write()


def test_a_clone_shows_its_own_users_samplers() -> None:
    one = chain("dist", more=[Cycle()])
    draw(one, 4)
    other = one.clone()
    draw(other, 2)
    assert other[len(WINDOWS)] is not one[len(WINDOWS)]
    assert len(other[len(WINDOWS)].seen) == 6
    assert len(one[len(WINDOWS)].seen) == 4


def test_a_pickled_chain_goes_on_in_another_process(model: aleator.LanguageModel) -> None:
    grammar = S.Grammar(GBNF, vocabulary=model.tokenizer)
    one = chain("mirostat_v2", grammar=grammar, seed=None)
    one.accept_many([3, 4])
    draw(one, 5)
    code = (
        "import pickle, sys, numpy as np; c = pickle.load(sys.stdin.buffer); "
        "row = lambda i: np.random.default_rng(i).normal(size=2048).astype(np.float32) * 3; "
        "print([c.sample(row(i)) for i in range(50, 60)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(one), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == str(draw(one, 10, 50))


def test_a_seed_of_the_chain_is_as_good_as_the_samplers_own() -> None:
    one = S.SamplerChain([S.Dist()], seed=9)
    draw(one, 3)
    other = S.SamplerChain([S.Dist(seed=9)])
    other.state_read(one.state_write())
    assert draw(other, 3) == draw(one, 3)


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_a_prompt_in_one_call_is_the_same_as_token_by_token(last: str, numerics: str) -> None:
    tokens = np.random.default_rng(3).integers(0, 9, 500)
    one, other = chain(last, numerics, more=[Cycle()]), chain(last, numerics, more=[Cycle()])
    for token in tokens.tolist():
        one.accept(token)
    other.accept_many(tokens)
    one.accept(5, generated=True)
    other.accept_many(iter([5]), generated=True)
    other.accept_many([])
    assert other.state_write() == one.state_write()
    assert draw(other, 10) == draw(one, 10)


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_tokens_of_which_one_is_refused_are_all_refused(
    numerics: str, model: aleator.LanguageModel
) -> None:
    grammar = S.Grammar('root ::= [a-z]+ "."', vocabulary=model.tokenizer)
    one = chain("mirostat_v2", numerics, grammar=grammar, more=[Cycle()])
    good = model.tokenizer.encode("abc", add_special=False)
    bad = model.tokenizer.encode("ab!", add_special=False)
    one.accept_many(good, generated=True)
    before = one.state_write()
    with pytest.raises(ConstraintError):
        one.accept_many([*good, *bad], generated=True)
    for wrong in (
        [1, -1],
        [1, 2**24],
        [2**31],
        [2**70],
        [1.0],
        [1, None],
        ["a"],
        [[1], [2]],
        5,
        "12",
        [True],
    ):
        with pytest.raises(ParameterError, match="token"):
            one.accept_many(wrong)  # type: ignore[arg-type]
    assert one.state_write() == before


@pytest.mark.parametrize("last", ["mirostat", "mirostat_v2", "adaptive_p"])
def test_what_an_adaptive_sampler_was_after_each_token(
    last: str, model: aleator.LanguageModel
) -> None:
    grammar = S.Grammar(GBNF, vocabulary=model.tokenizer)
    one = chain(last, grammar=grammar)
    names = {"adaptive_p": ["total", "weight"]}.get(last, ["mu"])
    seen: list[list[float]] = []

    def note() -> None:
        seen.append([one.state_history(len(one) - 1)[name][-1] for name in names])

    note()
    one.accept_many([1, 2])
    for i in range(5):
        one.sample(row(i))
        note()
    one.accept(4)
    assert one.generated == [False] * 2 + [True] * 5 + [False]
    states = one.state_history(len(one) - 1)
    assert list(states) == names
    np.testing.assert_array_equal(np.stack(list(states.values()), 1), seen)
    assert len({tuple(each) for each in seen}) == 6
    assert one.state_history(0) == {}


def test_a_part_of_a_chain_is_where_the_chain_is() -> None:
    one = chain("mirostat_v2")
    one.accept_many([1, 2])
    draw(one, 6)
    native = one._native
    part = native.part(0, len(native.samplers))  # type: ignore[union-attr]
    assert part.write_state(True) == native.write_state(True)
    some = native.part(len(native.samplers) - 1, 1)  # type: ignore[union-attr]
    assert (some.history, some.position, len(some.samplers)) == (one.history, 6, 1)
    some.rollback(6)
    assert one.position == 6


def test_names_of_samplers_are_written_as_they_are() -> None:
    class Named(Cycle):
        name = "zählt"

    state = S.SamplerChain([Named(), S.Dist()], seed=1).state_write()
    assert "zählt".encode() in state
    S.SamplerChain([Named(), S.Dist()], seed=1).state_read(state)
