"""States that are refused: of another chain, damaged, or of older arithmetic."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import AleatorError, ParameterError, StateError
from tests.samplers.test_chain_state import GBNF, WINDOWS, Cycle, chain, draw, row

CHAIN = list(chain("dist"))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: chain("dist", "llama.cpp"), "numerics"),
        (lambda: chain("dist", completion=1), "completion"),
        (lambda: chain("mirostat_v2"), "mirostat_v2"),
        (lambda: chain("dist", seed=6), "has other parameters, another seed"),
        (lambda: chain("dist", more=[S.TopP(top_p=0.5)]), "top_p"),
        (lambda: S.SamplerChain([*WINDOWS[1:], S.Dist()], seed=5), "penalties"),
        (
            lambda: S.SamplerChain(
                [WINDOWS[0], S.DRY(2.0, 1.75, 1, -1, [(3, 5)]), *CHAIN[2:]], seed=5
            ),
            "dry.* has other parameters",
        ),
    ],
)
def test_a_state_of_another_chain_is_refused(other: Any, says: str) -> None:
    one = chain("dist")
    draw(one, 5)
    target = other()
    target.accept_many([1, 2])
    before = target.state_write()
    with pytest.raises(StateError, match=says):
        target.state_read(one.state_write())
    assert target.state_write() == before


def signed(blob: bytes) -> bytes:
    """With the checksum of what it now is: what somebody with bad intentions would send."""
    return blob[:12] + hashlib.blake2b(blob[28:], digest_size=16).digest() + blob[28:]


@pytest.mark.parametrize("wrong", [None, 3, "text", [1]])
def test_what_is_not_bytes_is_refused(wrong: Any) -> None:
    with pytest.raises(ParameterError, match="state"):
        chain("dist").state_read(wrong)


@pytest.mark.parametrize("last", ["mirostat", "adaptive_p"])
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_damaged_states_are_refused_before_any_change(
    last: str, numerics: str, model: aleator.LanguageModel
) -> None:
    grammar = S.Grammar(GBNF, vocabulary=model.tokenizer)

    def new() -> S.SamplerChain:
        return chain(last, numerics, more=[Cycle()], grammar=grammar)

    one = new()
    one.accept_many([1, 2])
    draw(one, 4)
    state = one.state_write()
    target = new()
    target.sample(row(1))
    before = target.state_write()
    rng = random.Random(f"{last} {numerics}")
    cuts = [state[:n] for n in (0, 7, 11, 20, 31, 40, len(state) // 2, len(state) - 1)]
    for damaged in [
        *cuts,
        state + b"\0",
        *(signed(cut) for cut in cuts[3:]),
        signed(state + b"\0"),
    ]:
        with pytest.raises(StateError):
            target.state_read(damaged)
    with pytest.raises(StateError, match="cut short"):
        target.state_read(signed(state[:31]))
    with pytest.raises(StateError, match="header"):  # all that comes before it is there
        target.state_read(signed(state[:28] + bytes(4)))
    later = state[:8] + (2).to_bytes(4, "little") + state[12:]
    with pytest.raises(StateError, match="version 2"):
        target.state_read(later)
    read = 0
    for _ in range(300):
        hostile = bytearray(state)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(28, len(state))
            hostile[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            target.state_read(signed(bytes(hostile)))
        except StateError:
            assert target.state_write() == before
        else:  # another sound state: the chain must be able to live with it
            read += 1
            try:
                target.sample(row(2))
                target.rollback(1)
                target.rollback(min(3, len(target.history)))
            except AleatorError:
                pass
            target.reset()
            target.state_read(before)
    assert 0 < read < 300


def test_mutations_without_a_new_checksum_are_all_refused() -> None:
    one = chain("mirostat_v2")
    draw(one, 3)
    state = one.state_write()
    for at in range(0, len(state), 7):
        damaged = bytearray(state)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(StateError):
            one.state_read(bytes(damaged))
    assert one.state_write() == state


def test_a_state_under_older_arithmetic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of samplers that changed and do something: the presets name typical-p and leave it off."""
    cases: list[tuple[S.Sampler, bool]] = [
        (S.TopP(top_p=0.5), False),
        (S.TypicalP(), False),
        (S.TypicalP(typical_p=0.5), True),
    ]
    for sampler, changed in cases:
        with monkeypatch.context() as older:
            older.setattr(S.TypicalP, "since", 1)
            state = S.SamplerChain([sampler, S.Dist()], seed=5).state_write()
        now = S.SamplerChain([sampler, S.Dist()], seed=5)
        if changed:
            with pytest.raises(StateError, match="another version of the numerics"):
                now.state_read(state)
        else:
            now.state_read(state)


def test_what_a_state_says_of_itself_is_checked() -> None:
    one = chain("dist")
    draw(one, 3)
    for old, new, says in (
        (b'"text_start":0', b'"text_start":9', "begin behind its end"),
        (b'"completion":0', b'"completion":""', "header is not what it should be"),
        (b'"text_start":0', b'"text_start":[]', "header is not what it should be"),
    ):
        state = one.state_write()
        assert old in state
        size = int.from_bytes(state[28:32], "little") + len(new) - len(old)
        changed = state[:28] + size.to_bytes(4, "little") + state[32:].replace(old, new, 1)
        with pytest.raises(StateError, match=says):
            chain("dist").state_read(signed(changed))


@dataclass(frozen=True)
class Weighed(S.Sampler):
    """A sampler of somebody else, which remembers its parameter."""

    name = "weighed"
    parts: Any = 1

    def reference(self, row: Any, step: Any, place: Any) -> None:
        step.state[self.name, 0] = self.parts


def weighed(parts: Any) -> S.SamplerChain:
    return S.SamplerChain([Weighed(parts), S.Dist(seed=1)])


def test_parameters_that_are_arrays_tell_chains_apart() -> None:
    ones = np.ones(3, np.float32)
    written = weighed(ones).state_write()
    weighed(ones.copy()).state_read(written)
    for other in (2 * ones, ones.view(np.int32), ones[None], object()):
        with pytest.raises(StateError, match=r"weighed.* has other parameters"):
            weighed(other).state_read(written)


def test_of_other_parameters_the_type_tells_chains_apart() -> None:
    written = weighed(object()).state_write()
    weighed(object()).state_read(written)
    with pytest.raises(StateError, match=r"weighed.* has other parameters"):
        weighed(Weighed()).state_read(written)


def test_what_a_sampler_without_kernel_remembers_is_written_and_read() -> None:
    one = weighed("kept")
    one.sample(row(0))
    state = one.state_write()
    again = weighed("kept")
    again.state_read(state)
    assert again.state_write() == state
    damaged = state.replace(b"({('weighed'", b"((('weighed')")
    assert damaged != state
    with pytest.raises(StateError, match="weighed cannot read its own"):
        again.state_read(signed(damaged))
    assert again.state_write() == state


@pytest.mark.parametrize("kept", [print, float("nan")])
def test_what_cannot_be_written_as_a_literal_is_refused(kept: Any) -> None:
    one = weighed(kept)
    one.sample(row(0))
    with pytest.raises(ParameterError, match="weighed remembers what Python's literals cannot"):
        one.state_write()
