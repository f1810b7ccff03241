"""JSON schema, regular expressions and Lark grammars: what they refuse, and how they follow tokens."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import ConstraintError, GrammarError
from aleator.grammar import bounds, llguidance
from aleator.grammar.llguidance import lark_grammar, regex_grammar, schema_text
from aleator.grammar.schema_checks import check_schema
from aleator.grammar.spelling import spelling
from aleator.text import Tokenizer, Vocabulary
from tests.text.vocabularies import byte_level


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ('{"type": }', "line 1, column 10"),
        ('{\n  "a": [}', "line 2, column 9"),
        ('{"a": NaN}', "NaN is not JSON"),
        (False, "which no text obeys"),
        ("[1]", "an object or a boolean, not list"),
        ({"a": {1, 2}}, "cannot be written as JSON"),
        ({"minimum": float("nan")}, "cannot be written as JSON"),
        ({"uniqueItems": True}, "uniqueItems (at #), which is not supported"),
        (
            {"properties": {"x": {"not": {}, "uniqueItems": True}}},
            "not (at #/properties/x), uniqueItems (at #/properties/x), which are not",
        ),
        ({"if": {}, "then": {}}, "if (at #), then (at #)"),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "oneOf (at #) with branches"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "#/nowhere"}, "/nowhere"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
        ({"enum": []}, "Unsatisfiable"),
        (
            {"items": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}},
            "exclusiveMinimum 0 (at #/items) less than 1 from",
        ),
        ({"type": "object", "minProperties": 3}, "minProperties 3 (at #)"),
    ],
)
def test_schemas_that_are_refused(schema: Any, wanted: str) -> None:
    with pytest.raises(GrammarError) as error:
        S.JSONSchema(schema)
    assert wanted in str(error.value)


@pytest.mark.parametrize(
    ("make", "text", "line", "column", "reason"),
    [
        (S.Regex, "a(b", 1, 2, "unclosed group"),
        (S.Regex, "^a(b", 1, 3, "unclosed group"),
        (S.Regex, "ab(", 1, 3, "unclosed group"),
        (S.Regex, "a\\\\\\", 1, 4, "escapes nothing"),
        (S.Regex, "(?=a)b", 1, 1, "look-around"),
        (S.Regex, "\\d+\\", 1, 4, "escapes nothing"),
        (S.Regex, "\\", 1, 1, "escapes nothing"),
        (S.Lark, 'start: "a" !!', 1, 13, "lexer error"),
        (S.Lark, 'start: "a"\n  | "b" !!', 2, 10, "lexer error"),
    ],
)
def test_the_place_of_a_mistake_is_shown(
    make: Any, text: str, line: int, column: int, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason) as error:
        make(text)
    assert (error.value.line, error.value.column) == (line, column)
    shown, caret = str(error.value).splitlines()[-2:]
    assert shown.strip() == text.splitlines()[line - 1].strip()
    assert len(caret) - 2 == column


def test_an_escaped_backslash_or_dollar_may_end_an_expression() -> None:
    assert [S.Regex(text).pattern for text in (r"a\\", r"a\$", r"a\\$")]


def test_a_dollar_at_the_end_is_the_end_and_nothing_else_is_dropped() -> None:
    assert regex_grammar("^ab$") == regex_grammar("ab") != regex_grammar("a")
    assert len({regex_grammar(text) for text in (r"ab\$", r"ab\\$", r"ab\\\$", "ab")}) == 4
    assert regex_grammar(r"ab\\$") == regex_grammar(r"ab\\")


def test_a_mistake_without_a_place_names_none() -> None:
    with pytest.raises(GrammarError, match="is not supported") as error:
        S.Regex(r"\b")
    assert (error.value.line, error.value.column) == (0, 0)
    assert "column" not in str(error.value)


def test_a_complaint_without_a_caret_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance, "_complaint", lambda grammar: "error: too much")
    with pytest.raises(GrammarError, match=r"is wrong: too much$") as error:
        regex_grammar("^abc")
    assert (error.value.line, error.value.column) == (0, 0)


def test_a_mistake_whose_place_is_not_told_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match=r"not JSON: NaN is not JSON$") as error:
        S.JSONSchema('{"a": NaN}')
    assert (error.value.line, error.value.column) == (0, 0)
    monkeypatch.setattr(llguidance, "_complaint", lambda grammar: "it is odd")
    with pytest.raises(GrammarError, match=r"^the Lark grammar is wrong: it is odd$") as error:
        lark_grammar("start: x")
    assert (error.value.line, error.value.column) == (0, 0)


def test_a_schema_as_text_keeps_its_letters() -> None:
    assert schema_text({"const": "é"}) == '{"const": "é"}'
    assert [schema_text(True), schema_text("{}")] == ["{}", "{}"]


class Forgetful:
    """A matcher that cannot take tokens back: it says so, or breaks."""

    def __init__(self, matcher: Any, says_so: bool) -> None:
        self._matcher, self._says_so = matcher, says_so

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def rollback(self, n: int) -> bool:
        return not self._says_so

    def is_error(self) -> bool:
        return not self._says_so


@pytest.mark.parametrize("says_so", [True, False])
def test_what_a_matcher_cannot_take_back_is_read_again(small: Vocabulary, says_so: bool) -> None:
    parts: Any = llguidance._tokenizer(small), regex_grammar("a[bc]d|\x00"), "it"
    made = llguidance.LLGuidanceConstraint(*parts)
    assert made.allows(0)
    for token in b"ab":
        made.accept(token)
    made._matcher = Forgetful(made._matcher, says_so)
    made.rollback(1)
    assert [t for t in range(260) if made.allows(t)] == [ord("b"), ord("c")]
    assert isinstance(made._matcher, Forgetful) is False
    made.reset()
    made.accept(0)
    made.rollback(0)
    assert [t for t in range(-1, 261) if made.allows(t)] == [258, 259]


def test_true_is_any_json() -> None:
    assert S.JSONSchema(True) == S.JSONSchema("true") == S.JSONSchema({})


def test_without_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match=r"pip install 'aleator\[grammar\]'"):
        S.JSONSchema({})


def words(constraint: Any) -> set[int]:
    bits = np.unpackbits(constraint.mask().astype("<i4").view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.fixture(scope="module")
def small() -> Vocabulary:
    """Byte b is token b, then "ab" (256), "abc" (257), two ends of generation."""
    made = Vocabulary.from_metadata(
        byte_level(("<|end|>", "<|eot_id|>"), eos_token_id=258, eot_token_id=259)
    )
    assert made.eog == {258, 259}
    return made


def test_masks_and_ends(small: Vocabulary) -> None:
    c = S.Regex("(abc|b)+d?", small).constraint.clone()
    assert words(c) == {ord("a"), ord("b"), 256, 257}
    for token in b"ab":
        c.accept(token)
    assert words(c) == {ord("c")}
    assert c.jump_forward() == b"c"
    with pytest.raises(ConstraintError):
        c.accept(258)
    c.accept(ord("c"))
    assert c.complete
    assert words(c) == {ord("a"), ord("b"), ord("d"), 256, 257, 258, 259}
    c.accept(ord("d"))
    assert words(c) == {258, 259}
    c.accept(259)
    assert words(c) == {258, 259}
    assert c.jump_forward() == b""
    c.rollback(3)
    assert words(c) == {ord("c")}
    copy = c.clone()
    c.reset()
    assert words(c) == {ord("a"), ord("b"), 256, 257}
    assert words(copy) == {ord("c")}
    for wrong in (-1, 260, 5000, 0):
        with pytest.raises(ConstraintError):
            copy.accept(wrong)
    assert words(copy) == {ord("c")}


def test_a_vocabulary_without_an_end() -> None:
    vocabulary = Vocabulary.from_metadata(byte_level())
    assert not vocabulary.eog
    assert not llguidance._tokenizer(vocabulary).end_mask.any()
    chain = S.SamplerChain([S.Greedy()], grammar=S.Regex("ab", vocabulary))
    row = np.zeros(258, np.float32)
    chain.sample(row)
    while not chain.finished:
        chain.sample(row)
    assert vocabulary.token_bytes(256) == b"ab"
    assert b"".join(map(vocabulary.token_bytes, chain.history)) == b"ab"


@pytest.mark.parametrize("more", [29, 30, 31])
def test_a_mask_has_a_bit_for_every_token_and_no_word_more(more: int) -> None:
    """Also where the end that llguidance needs would be the first bit of another word."""
    added = tuple(f"<{i}>" for i in range(more))
    vocabulary = Vocabulary.from_metadata(byte_level(added))
    constraint = S.Regex("ab", vocabulary).constraint.clone()
    assert len(constraint.mask()) == -(-(258 + more) // 32)
    assert words(constraint) == {256}


def test_forced_text_is_written_as_the_tokenizer_writes_it(small: Vocabulary) -> None:
    c = S.Regex("abcab", Tokenizer(small)).constraint.clone()
    assert words(c) == {257}
    c.accept(ord("a"))  # others that spell it are taken too
    assert c.jump_forward() == b"bcab"


def test_one_tokenizer_for_each_vocabulary_and_none_is_kept() -> None:
    vocabulary = Vocabulary.from_metadata(byte_level())
    first, second = (llguidance._tokenizer(vocabulary) for _ in range(2))
    assert first is second
    assert spelling(vocabulary) is spelling(vocabulary)
    gone = weakref.ref(vocabulary), weakref.ref(first)
    del first, second, vocabulary
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_spelling(model: aleator.LanguageModel, small: Vocabulary) -> None:
    for given in (model.tokenizer, model.vocab):
        made = spelling(given)
        for text in (b"", b"abc", b"O Romeo, Romeo!", "é ü".encode(), b"\xff\xfe", b'{"name": "'):
            assert b"".join(made.pieces[t] for t in made.tokens(text)) == text
    assert spelling(small).tokens(b"abcab") == [257, 256]
    assert model.tokenizer.encode("To be", add_special=False) == spelling(model.tokenizer).tokens(
        b"To be"
    )


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"exclusiveMinimum": 0, "maximum": 1}, True),
        ({"exclusiveMinimum": 0, "maximum": 0.999}, False),
        ({"exclusiveMinimum": 3, "maximum": 4}, True),
        ({"exclusiveMinimum": 3, "maximum": 3.5}, False),
        ({"minimum": -4, "exclusiveMaximum": -3}, True),
        ({"minimum": -3.5, "exclusiveMaximum": -3}, False),
        ({"minimum": 2.5, "exclusiveMinimum": 2, "maximum": 3.25}, False),
        ({"exclusiveMinimum": 0.25, "maximum": 0.5}, True),
        ({"exclusiveMinimum": 0}, True),
        ({"exclusiveMaximum": 0}, True),
    ],
)
def test_excluded_bounds_close_to_the_other(schema: dict[str, float], fits: bool) -> None:
    if fits:
        check_schema({"type": "number"} | schema)
    else:
        with pytest.raises(GrammarError, match="less than 1 from the other bound"):
            check_schema({"type": "number"} | schema)
    check_schema({"type": "integer"} | schema)


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"minProperties": 1}, True),
        ({"minProperties": 2}, False),
        ({"minProperties": 2, "required": ["a"]}, True),
        ({"minProperties": 3, "required": ["a"]}, False),
        ({"minProperties": 3, "required": ["a"], "additionalProperties": False}, True),
        ({"minProperties": 3, "required": ["a"], "additionalProperties": True}, False),
    ],
)
def test_numbers_of_properties_with_any_name(schema: dict[str, Any], fits: bool) -> None:
    if fits:
        check_schema(schema)
    else:
        with pytest.raises(GrammarError, match="minProperties"):
            check_schema([schema])


def test_special_tokens_are_told_apart() -> None:
    vocab = Vocabulary.from_metadata(byte_level(("<a>", "<b>", "<e>"), eos_token_id=260))
    lark = S.Lark('start: (<[259]> | "x") /a*/ <[258]>', vocabulary=Tokenizer(vocab))
    constraint = lark.constraint.clone()

    def allowed() -> set[str]:
        return {vocab.tokens[t] for t in range(len(vocab)) if constraint.allows(t)}

    assert allowed() == {"<b>", "x"}
    constraint.accept(259)
    assert allowed() == {"a", "<a>"}
    constraint.accept(ord("a"))
    constraint.accept(258)
    assert constraint.complete
    forced = S.Lark('start: "ab" <[258]> "c"', vocabulary=Tokenizer(vocab)).constraint.clone()
    assert forced.jump_forward() == b"ab"
    forced.accept(256)
    assert forced.jump_forward() == b""
    forced.accept(258)
    assert forced.jump_forward() == b"c"


@pytest.mark.parametrize("wrong", [None, b"start: A", 3])
def test_a_lark_grammar_is_text(wrong: Any) -> None:
    with pytest.raises(GrammarError, match="a Lark grammar is text, not"):
        lark_grammar(wrong)


def digits(constraint: Any, first: str) -> list[int] | str:
    """The tokens of a number that begins with a digit, 200 of them, or why there are no more."""
    made = [ord(first)]
    try:
        constraint.accept(made[0])
        while len(made) < 200:
            allowed = sorted(words(constraint) & set(b"0123456789"))
            made.append(allowed[sum(made) % len(allowed)])
            constraint.accept(made[-1])
    except GrammarError as error:
        return str(error)
    return made


@pytest.mark.parametrize(("states", "fails"), [(500, False), (100, True)])
def test_what_a_text_may_be_does_not_depend_on_texts_before(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch, states: int, fails: bool
) -> None:
    monkeypatch.setattr(bounds, "STATES", states)

    def constraint() -> Any:
        return S.JSONSchema({"type": "integer", "multipleOf": 1009}, small).constraint

    alone = {first: digits(constraint().clone(), first) for first in "3579"}
    kept = constraint()
    running = {first: kept.clone() for first in alone}  # before the first has filled the lexer
    for first, text in alone.items():
        assert digits(kept.clone(), first) == text
        assert isinstance(text, str) == fails
    for first, beside in running.items():
        assert digits(beside, first) == alone[first]


@pytest.mark.parametrize("forks", [False, True])
def test_a_lexer_that_others_fill_refuses_no_text(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    """Neither a copy's other texts, which another thread may be reading, nor those before a rollback."""
    monkeypatch.setattr(bounds, "STATES", 500)
    constraint = S.JSONSchema({"type": "integer", "multipleOf": 1009}, small).constraint
    text = digits(constraint.clone(), "3")
    assert isinstance(text, list)
    adapter = llguidance.LLGuidanceConstraint
    told_late = property(lambda self: self._matcher)  # that the lexer is full, as beside a thread
    monkeypatch.setattr(adapter, "_usable", told_late)
    kept = constraint.clone()
    for first in "579":
        if forks:
            digits(kept.clone(), first)
        else:
            kept.rollback(len(digits(kept, first)))
    assert digits(kept, "3") == text


def test_a_copy_that_is_made_while_a_lexer_is_renewed_has_the_lexer_of_its_matcher(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = llguidance.LLGuidanceConstraint(
        llguidance._tokenizer(small), regex_grammar("[ab]+"), "it"
    )
    made._lexer.full = True
    module, copies = llguidance.load(), list[Any]()

    def matcher(*args: Any, **options: Any) -> Any:
        copies.append(copy.copy(made))  # as another thread does meanwhile
        return module.LLMatcher(*args, **options)

    double = SimpleNamespace(LLMatcher=matcher, LLParserLimits=module.LLParserLimits)
    monkeypatch.setattr(llguidance, "load", lambda: double)
    made.clone()
    assert (copies[0]._lexer.full, made._lexer.full) == (True, False)
