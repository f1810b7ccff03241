"""What samplers are compared by and shown as: their parameters, not tokenizers or what is made of these."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.samplers.phases import Phases
from tests.samplers.steps import texts_and_ends
from tests.samplers.test_phases import PHASES, VOCAB, params


class Bytes:
    """A tokenizer, and a vocabulary, of single bytes; those of two objects differ."""

    eog = frozenset({0})

    def __init__(self, shift: int) -> None:
        self.shift, self.vocab = shift, self

    def __len__(self) -> int:
        return 256

    def token_bytes(self, token: int) -> bytes:
        return bytes([(token + self.shift) % 256])

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [(byte - self.shift) % 256 for byte in text.encode()]


def phases(vocabulary: Any) -> Phases:
    answer = params().by_phase()["answer"].list(VOCAB)
    table = {"thinking": {"begin": "<t>"}, **{"answer": PHASES["answer"]}}
    checked = S.SamplingParams(phases=table).values()["phases"]
    return Phases(checked, {"answer": answer, "thinking": answer}, vocabulary)


MADE: dict[str, Any] = {
    "dry": lambda of: S.DRY(0.5, tokenizer=of),
    "bad_words": lambda of: S.BadWords(["abc"], tokenizer=of),
    "infill": lambda of: S.Infill(texts_and_ends("a", *("b" * of.shift), "", "")),
    "grammar": lambda of: S.Grammar('root ::= "a"', vocabulary=of),
    "regex": lambda of: S.Regex("a", vocabulary=of),
    "json_schema": lambda of: S.JSONSchema({"type": "null"}, vocabulary=of),
    "lark": lambda of: S.Lark('start: "a"', vocabulary=of),
    "phases": phases,
}


@pytest.mark.parametrize("name", MADE)
def test_helpers_are_neither_compared_nor_shown(name: str) -> None:
    one, other = MADE[name](Bytes(0)), MADE[name](Bytes(3))
    assert one == other
    assert repr(one) == repr(other)
    kept = [field for field in dataclasses.fields(one) if not field.compare]
    assert kept
    for field in kept:
        assert not field.repr
    changed = {"grammar": "grammar", "regex": "pattern", "lark": "grammar"}.get(name)
    if changed:
        text = {"grammar": 'root ::= "b"', "regex": "b", "lark": 'start: "b"'}[name]
        assert dataclasses.replace(one, **{changed: text}) != one


@pytest.mark.parametrize(
    ("kind", "names"),
    [(S.BadWords, ["sequences"]), (S.DRY, ["breakers"]),
     (Phases, ["names", "start", "own", "seed", "marks"])],
)  # fmt: skip
def test_what_is_made_of_parameters_is_not_given(kind: type[Any], names: list[str]) -> None:
    assert [each.name for each in dataclasses.fields(kind) if not each.init] == names


def test_biases_of_texts_are_compared_by_their_tokens() -> None:
    one, other, same = (
        S.LogitBias({text: 2.0}, tokenizer=Bytes(n)) for text, n in (("a", 0), ("d", 0), ("d", 3))
    )
    assert one == same != other
    assert repr(one) == repr(same) == "LogitBias(logit_bias=((97, 2.0),))"


def test_what_the_second_version_of_the_numerics_has_changed() -> None:
    assert {cls.name: cls.since for cls in S.SAMPLERS if isinstance(cls.since, int) and cls.since > 1} == {
        "typical_p": 2, "eta_cutoff": 2,
    }  # fmt: skip
    dynamic = [S.Temperature(temperature=0.5, dynatemp_range=r).since for r in (0.0, 0.1)]
    assert dynamic == [1, 2]
    made = phases(VOCAB)
    assert made.since == 1
    typical: Any = {"answer": [S.TypicalP(typical_p=0.5), S.Dist()], "thinking": [S.Dist()]}
    assert dataclasses.replace(made, chains=typical).since == 2


def test_phases_choose_the_token() -> None:
    chain = params().chain(VOCAB)
    with pytest.raises(ParameterError, match="phases chooses the token, so nothing can follow it"):
        chain.add(S.TopK(1))
