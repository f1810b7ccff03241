"""Endings: few tokens that complete a constrained text, and texts that are complete whatever max_tokens is."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

import aleator
from aleator import samplers as S
from aleator.generate.complete_grammar import (
    THOROUGH,
    TRIALS,
    EndingSearch,
    GrammarCompleter,
    Work,
    finish,
)
from aleator.grammar.spelling import spelling
from tests.drawn import differences
from tests.json_schemas import schema

PETS = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "pets": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
NODE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "left": {"$ref": "#/$defs/node"},
                "right": {"$ref": "#/$defs/node"},
                "value": {"type": "integer", "minimum": 100},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
}


SCHEMAS: list[tuple[Any, str, int]] = [
    (PETS, "", 36),
    (PETS, '{"name": "O }]', 28),
    (PETS, '{"name": "a", "age": 1', 20),
    (PETS, '{"name": "a", "age": 1, "pets": ["', 8),
    ({}, '{"a": [[[{"b": "x', 7),
    ({}, '{"a": [[[{"b": "x\\', 8),
    (NODE, '{"left": {"left": {"r', 199),
    ({"type": "integer", "minimum": 1000, "multipleOf": 10}, "", 5),
    ({"type": "integer", "multipleOf": 7, "minimum": 1000}, "1", 5),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "0", 4),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 20}, "[1", 60),
    ({"type": "string", "minLength": 30}, '"a', 31),
    ({"type": "string", "pattern": "^(a|b)*cd+$"}, '"a', 4),
    ({"type": "string", "pattern": "[0-9]{3}"}, '"a', 5),
    ({"enum": ["one", 'quo"te', {"a": [1, 2]}]}, "", 12),
    *(
        ({"type": "string", "format": name}, '"', 40)
        for name in ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri")
    ),
]  # fmt: skip
"""Schemas, what stands there of a text already, and the tokens of its ending at most."""


@pytest.mark.parametrize(("schema", "before", "longest"), SCHEMAS)
def test_short_endings_are_found(
    schema: Any, before: str, longest: int, model: aleator.LanguageModel
) -> None:
    made = spelling(model.tokenizer)
    constraint = S.JSONSchema(schema, model.tokenizer).constraint.clone()
    for token in made.tokens(before.encode()):
        constraint.accept(token)
    mask = constraint.mask().tobytes()
    found = finish(EndingSearch(made).search(constraint, 200))
    assert constraint.mask().tobytes() == mask  # it is left as it was
    assert found is not None
    assert len(found) <= longest
    text = before + b"".join(made.pieces[token] for token in found).decode()
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert (
        finish(
            EndingSearch(made).search(constraint, min(3, len(found) - 1) if len(found) < 4 else 1)
        )
        is None
    )


def test_grammars_and_banned_tokens(model: aleator.LanguageModel) -> None:
    made = spelling(model.tokenizer)
    grammar = S.Grammar('root ::= ("a" | "b")* ("stop" | "end!")', vocabulary=model.tokenizer)
    found = finish(EndingSearch(made).search(grammar.constraint, 50))
    assert found is not None
    assert b"".join(made.pieces[token] for token in found) in (b"stop", b"end!")
    banned = [i for i, piece in enumerate(made.pieces) if b"s" in piece or b"o" in piece]
    other = finish(EndingSearch(made, banned).search(grammar.constraint, 50))
    assert other is not None
    assert b"".join(made.pieces[token] for token in other) == b"end!"
    endless = S.Grammar('root ::= "a" root', vocabulary=model.tokenizer)
    assert finish(EndingSearch(made).search(endless.constraint, 300)) is None


@pytest.mark.parametrize(
    ("sampler", "most"),
    [
        (S.Regex("[a-z]{1000}"), 350),
        (S.JSONSchema({"type": "string", "minLength": 1000}), 3400),
        (S.Regex("((a|b)(c|d)){500}"), 12000),  # where chance chooses all attempts are made
    ],
)
def test_what_cannot_fit_is_not_tried_again_and_again(
    sampler: S.Regex, most: int, model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    search = EndingSearch.search

    def counted(self: EndingSearch, *given: Any) -> Work[list[int] | None]:
        found = yield from search(self, *given)
        searched.append((given[2] if len(given) > 2 else TRIALS) - self._trials)
        return found

    monkeypatch.setattr(EndingSearch, "search", counted)
    assert not model.generate("a", grammar=sampler, max_tokens=60, seed=1).complete
    assert len(searched) == 2  # after the first token, and in place of it
    assert all(0 < tried <= most for tried in searched), searched


def test_an_ending_takes_no_banned_character(model: aleator.LanguageModel) -> None:
    grammar = S.Grammar('root ::= "]" | "kq"', vocabulary=model.tokenizer)
    made = spelling(model.tokenizer)
    banned = [i for i, piece in enumerate(made.pieces) if piece == b"]"]
    for tokens, text in (((), b"]"), (banned, b"kq")):
        found = finish(EndingSearch(made, tokens).search(grammar.constraint, 9))
        assert found is not None
        assert b"".join(made.pieces[t] for t in found) == text


@pytest.mark.parametrize("max_tokens", [36, 37, 50, 81])
def test_the_text_is_complete_whatever_max_tokens_is(
    max_tokens: int, model: aleator.LanguageModel
) -> None:
    made = model.generate(
        "ROMEO:", json_schema=PETS, max_tokens=max_tokens, seed=5, temperature=3.0, logprobs=1
    )
    jsonschema.validate(json.loads(made.text), PETS)
    assert made.complete
    assert len(made.tokens) <= max_tokens
    assert made.logprobs is not None
    assert len(made.logprobs) == len(made.tokens)
    cut = model.generate("ROMEO:", json_schema=PETS, max_tokens=max_tokens, seed=5, temperature=3.0,
                         complete_grammar=False)  # fmt: skip
    assert cut.complete is (cut.stop_reason == "grammar")
    (state,) = made._reader.run.states  # type: ignore[attr-defined]
    assert state.completer.closing is (made.tokens[: len(cut.tokens)] != cut.tokens)
    shared = 0
    while (
        shared < min(len(cut.tokens), len(made.tokens))
        and cut.tokens[shared] == made.tokens[shared]
    ):
        shared += 1
    assert shared >= max_tokens - 36  # up to the ending it is the same text


def test_what_cannot_fit_is_reported(model: aleator.LanguageModel) -> None:
    made = model.generate("ROMEO:", json_schema=PETS, max_tokens=9, seed=5)
    assert (len(made.tokens), made.stop_reason, made.complete) == (9, "length", False)
    assert made.as_json()["complete"] is False
    assert model.generate("ROMEO:", max_tokens=2, seed=5).complete is None
    llama = model.generate("A", json_schema=PETS, max_tokens=60, seed=5, numerics="llama.cpp")
    assert llama.complete is False  # llama.cpp's tokens are left alone


def test_the_context_ends_a_text_too(model: aleator.LanguageModel) -> None:
    small = aleator.load(n_ctx=64, n_threads=1)
    made = small.generate("ROMEO:", json_schema=PETS, seed=1)
    jsonschema.validate(json.loads(made.text), PETS)
    assert made.stop_reason in ("context", "grammar")


def _obey(model: aleator.LanguageModel, number: int, max_tokens: int) -> None:
    """A text for the schema of a number, at high temperature, is valid and complete."""
    made = model.generate(
        "JULIET:\n",
        json_schema=schema(number),
        max_tokens=max_tokens,
        preset="neutral",
        temperature=random.Random(-number).choice((1.0, 2.0, 5.0)),
        seed=number,
    )
    jsonschema.Draft202012Validator(schema(number)).validate(json.loads(made.text))
    assert made.complete


@pytest.mark.parametrize("number", range(24))
def test_random_schemas(number: int, model: aleator.LanguageModel) -> None:
    _obey(model, number, 160)


def test_deep_recursion_is_closed(model: aleator.LanguageModel) -> None:
    """Number 585 is a tree whose nodes need strings of 8 characters: dozens of levels to close."""
    _obey(model, 585, 400)


@pytest.mark.parametrize("max_tokens", [36, 50, 81])
def test_on_a_device_the_text_is_the_same(max_tokens: int, model: aleator.LanguageModel) -> None:
    pytest.importorskip("torch")
    given: dict[str, Any] = {
        "json_schema": PETS,
        "max_tokens": max_tokens,
        "seed": 5,
        "temperature": 3.0,
    }
    alone = model.generate("ROMEO:", logprobs=1, **given)
    made = model.generate("ROMEO:", logprobs=1, sampling_device="device", **given)
    assert made.complete
    assert (made.tokens, made.text) == (alone.tokens, alone.text)
    free = model.generate("ROMEO:", sampling_device="device", max_tokens=9, seed=5)
    assert free.tokens == model.generate("ROMEO:", max_tokens=9, seed=5).tokens


ENDINGS: list[tuple[Any, Any, str]] = [
    (S.JSONSchema, PETS, ""),
    (S.JSONSchema, NODE, '{"left": {"left": {"r'),
    (S.JSONSchema, {"type": "integer", "multipleOf": 7, "minimum": 1000}, "1"),
    (S.JSONSchema, {"type": "string", "format": "date-time"}, '"'),
    (S.JSONSchema, {"enum": ["one", 'quo"te', {"a": [1, 2]}]}, ""),
    (S.Regex, "((a|b)(c|d)){20}e", ""),
    (S.Regex, "[a-z]{30}", "a"),
]


def test_endings_and_the_trials_they_took_are_as_recorded(model: aleator.LanguageModel) -> None:
    made, told = spelling(model.tokenizer), []
    endings = [*ENDINGS, *((S.JSONSchema, *each[:2]) for each in SCHEMAS if each[2] < 60)]
    for form, source, before in endings:
        constraint = form(source, model.tokenizer).constraint.clone()
        for token in made.tokens(before.encode()):
            constraint.accept(token)
        limit = 200
        for trials in (7, 1500, 1500):  # the last for one token less than the ending has
            search = EndingSearch(made)
            ending = finish(search.search(constraint, limit, trials))
            told.append([ending, search._trials, search.out_of_trials])
            limit = 200 if trials == 7 else len(ending or (1,)) - 1
    assert differences("endings", told) == []


class Scripted:
    """A search that finds what it is told, and notes what it was asked for; the chain of its completer."""

    ends, history = (99,), [1, 2]

    def __init__(self, found: list[list[int] | None], out_of_trials: bool) -> None:
        self.found, self.out_of_trials, self.asked, self.done = (
            found,
            out_of_trials,
            list[Any](),
            list[Any](),
        )
        self.constraints = [SimpleNamespace(constraint=None)]

    def search(self, constraint: Any, limit: int, trials: int = TRIALS) -> Work[list[int] | None]:
        self.asked.append((limit, trials == THOROUGH))
        yield
        return self.found.pop(0)

    def accept(self, token: int, generated: bool) -> None:
        assert generated
        self.done.append(token)

    def rollback(self, n: int) -> None:
        self.done.append(-n)


@pytest.mark.parametrize(
    ("token", "plan", "off", "wait", "found", "out_of_trials", "told", "asked", "done", "closing"),
    [
        # an ending fits: nothing is searched again while it must fit
        (5, None, False, 0, [[7, 8]], False, 5, [(19, False)], [], False),
        (5, [4, 3], False, 0, [[7, 8]], False, 5, [(19, False)], [], False),
        (5, [4], False, 2, [], False, 5, [], [], False),
        (5, [4], False, 1, [[7]], False, 5, [(19, False)], [], False),
        (5, [5, 6], False, 1, [], False, 5, [], [], False),
        (99, [4], False, 0, [], False, 99, [], [], False),
        (5, None, True, 0, [], False, 5, [], [], False),
        # only without a plan is it searched thoroughly
        (5, None, False, 0, [None, [7]], True, 5, [(19, False), (19, True)], [], False),
        (5, [4, 3], False, 0, [None], True, 4, [(19, False)], [-1, 4], True),
        (5, None, False, 0, [None, [6, 7]], False, 6, [(19, False), (20, True)], [-1, 6], True),
        (5, None, False, 0, [None, None], False, 5, [(19, False), (20, True)], [-1, 5], False),
        (5, [], False, 0, [None], False, None, [(19, False)], [-1], True),
    ],
)
def test_when_an_ending_is_looked_for(
    token: int, plan: Any, off: bool, wait: int, found: Any, out_of_trials: bool, told: Any, asked: Any,
    done: Any, closing: bool,
) -> None:  # fmt: skip
    script: Any = Scripted(list(found), out_of_trials)
    completer = GrammarCompleter(script, script)
    completer._off, completer._wait = off, wait
    completer._plan = None if plan is None else [*plan]
    assert finish(completer.check(token, 20)) == told
    assert (script.asked, script.done, completer.closing) == (asked, done, closing)
    assert completer._off is (off or (told == token and done != []))
    if closing and plan is not None and len(plan) > 1:
        row: Any = None
        assert [finish(completer.sample(row, 9)) for _ in range(2)] == [3, None]


@pytest.mark.parametrize(
    ("left", "length", "wait"), [(65, 1, 1), (64, 1, 0), (129, 1, 2), (300, 100, 2), (299, 100, 1)]
)
def test_for_how_long_an_ending_fits(left: int, length: int, wait: int) -> None:
    script: Any = Scripted([[7] * length], False)
    completer = GrammarCompleter(script, script)
    finish(completer.check(5, left))
    assert (completer._wait, completer._growth) == (wait, max(64, length))


def test_work_that_is_given_up_takes_its_token_back() -> None:
    script: Any = Scripted([None], False)
    work = GrammarCompleter(script, script).check(5, 20)
    next(work)
    work.close()
    assert script.done == [-1]
