"""One bound for every notation, and what is said where a grammar goes past it: no name of a library."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import GrammarError
from aleator.grammar import bounds
from aleator.grammar.llguidance import (
    FALLBACK,
    INTERNAL,
    KINDS,
    plain,
    schema_grammar,
    schema_text,
)
from aleator.grammar.schema_checks import check_levels, check_schema

SELF = {"$ref": "#"}
NULL = {"type": "null"}


def holding(inner: Any, *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "ref", "place"),
    [
        (SELF, "#", "#"),
        ({"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "#/$defs/a", "#/$defs/a"),
        ({"allOf": [{"type": "object"}, SELF]}, "#", "#/allOf/1"),
        ({"anyOf": [SELF, {"oneOf": [SELF]}]}, "#", "#/anyOf/0"),
        (holding(SELF, "a"), "#", "#/properties/a"),
        ({"type": "array", "items": SELF, "minItems": 1}, "#", "#/items"),
        ({"type": "array", "prefixItems": [NULL, SELF], "minItems": 2}, "#", "#/prefixItems/1"),
        ({"type": ["array", "object"], **holding(SELF, "a"), "minItems": 1, "items": SELF} | {
            "type": ["array", "object"]}, "#", "#/items"),
        (
            {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": holding({"$ref": "#/$defs/x"}, "a")},
             "type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1},
            "#/$defs/x", "#/$defs/y/properties/a",
        ),
        ({"type": "array", "items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}},
         "#/$defs/a~1b", "#/$defs/a~1b"),
    ],
)  # fmt: skip
def test_a_schema_that_never_ends_is_refused_by_place(schema: Any, ref: str, place: str) -> None:
    with pytest.raises(GrammarError) as error:
        check_schema(schema)
    wanted = f'the JSON schema never ends: $ref "{ref}" (at {place}) leads back to itself'
    assert str(error.value).startswith(wanted)
    if schema == SELF:
        with pytest.raises(GrammarError, match="never ends"):
            S.JSONSchema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        holding(SELF),
        {"anyOf": [SELF, NULL]},
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [NULL], "items": SELF, "minItems": 1},
        {"type": ["object", "null"], **holding(SELF, "a")} | {"type": ["object", "null"]},
        {"properties": {"a": SELF}, "required": ["a"]},  # may be a number
        {"const": {"$ref": "#"}},
        {"enum": [{"$ref": "#"}]},
        {
            "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(200)} | {"d200": NULL},
            "$ref": "#/$defs/d0",
        },
        {"$ref": "#/nowhere"},
        holding(SELF, "b"),
        holding(SELF) | {"required": [3, ["a"], None]},
        {"type": "array", "items": SELF, "minItems": "1"},
        {"type": "array", "items": SELF, "minItems": 0},
        {"type": "array", "prefixItems": 3, "minItems": 1},
        {"$ref": 3, "allOf": 3, "anyOf": 3},
        {"type": []},
        {"type": "strange"},
        {"anyOf": [3, True]},
        {"minProperties": "3", "required": 3},
        {"minProperties": 3, "required": "abc"},
        {"exclusiveMinimum": "0", "maximum": 0.5},
        {"exclusiveMinimum": 0.5, "maximum": 1, "type": 3},
    ],
)
def test_a_schema_that_ends_is_not(schema: Any) -> None:
    check_schema(schema)


def test_a_tree_is_written(model: aleator.LanguageModel) -> None:
    tree = {
        "type": "object",
        "properties": {"name": {"enum": ["a", "b"]}, "left": SELF, "right": SELF},
        "required": ["name"],
        "additionalProperties": False,
    }
    made = model.generate("x", json_schema=tree, max_tokens=60, seed=1)
    assert made.text.startswith('{"name": "')
    assert made.complete


MULTIPLES = bounds.ELEMENTS // bounds.MULTIPLE


@pytest.mark.parametrize(
    ("schema", "total"),
    [
        ({"type": "integer", "multipleOf": MULTIPLES + 1}, MULTIPLES + 1),
        ({"allOf": [{"multipleOf": 1009}, {"multipleOf": 1013}]}, 1009 * 1013),
        ({"$ref": "#/$defs/x", "multipleOf": 1009, "$defs": {"x": {"multipleOf": 1013}}}, 1009 * 1013),
        (holding({"multipleOf": 200000}) | {"items": {"multipleOf": 100000}}, 300000),
        (holding({"multipleOf": 2}) | {"items": {"multipleOf": MULTIPLES - 1}}, MULTIPLES + 1),
    ],
)  # fmt: skip
def test_multiples_are_bounded(schema: Any, total: int) -> None:
    with pytest.raises(GrammarError, match=f"multipleOf .*come to {total}, and {MULTIPLES} are"):
        S.JSONSchema(schema)


@pytest.mark.parametrize("number", [MULTIPLES, 0.01, 1e-7, 5, 2.5])
def test_multiples_within_the_bound(number: float) -> None:
    check_schema({"type": "number", "multipleOf": number})


@pytest.mark.parametrize(
    "schema",
    [
        holding({"multipleOf": MULTIPLES}),
        {"allOf": [True, {"type": "number"}, {"multipleOf": MULTIPLES // 2 - 1}]},
        {"multipleOf": 0, "items": {"multipleOf": MULTIPLES}},
        {"multipleOf": "2", "allOf": 3},
    ],
)
def test_only_multiples_count(schema: Any) -> None:
    check_schema(schema)


LINKS: list[Callable[[dict[str, str]], Any]] = [
    lambda ref: ref,
    lambda ref: {"allOf": [ref]},
    lambda ref: {"properties": {"$defs": ref, "enum": ref}},
]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["#/$defs/a{}", "https://x.example/y#/$defs/a{}", "#a{}", "a{}"])
def test_chains_of_references_are_bounded(link: Callable[[dict[str, str]], Any], name: str) -> None:
    """A long one ended the process by a signal, in llguidance."""

    def chain(n: int, last: str) -> dict[str, Any]:
        made: dict[str, Any] = {
            f"a{i}": dict(link({"$ref": name.format(i + 1)}) if i < n else {"$ref": last})
            for i in range(n + 1)
        }
        for i, each in enumerate(made.values()):
            each |= {"$anchor": f"a{i}"} if name == "#a{}" else {}
            each |= {"$id": f"a{i}"} if name == "a{}" else {}
        return {"$id": "https://x.example/y", "$ref": name.format(0), "$defs": made | {"z": {}}}

    schema_grammar(schema_text(chain(20, "https://x.example/y#/$defs/z")))
    with pytest.raises(
        GrammarError, match=r"up to \d+ levels by its references.* and 512 are the most"
    ):
        schema_grammar(schema_text(chain(3000, "https://x.example/y#/$defs/z")))


def test_parts_that_lead_to_one_another_count_once() -> None:
    parts = {
        f"a{i}": {"properties": {f"x{j}": {"$ref": f"#/$defs/a{i // 9 * 9 + j}"} for j in range(9)}}
        for i in range(900)
    }
    either = [{"$ref": f"#/$defs/a{i}"} for i in range(0, 900, 9)]
    check_levels({"anyOf": either, "$defs": parts})
    for i in range(0, 891, 9):
        parts[f"a{i}"]["properties"]["next"] = {"$ref": f"#/$defs/a{i + 9}"}
    with pytest.raises(GrammarError, match="levels"):
        check_levels({"anyOf": either, "$defs": parts})


def test_digits_of_multiples_are_bounded() -> None:
    with pytest.raises(GrammarError, match="multipleOf has too many digits"):
        S.JSONSchema({"type": "number", "multipleOf": 2500.01})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda v: S.Regex("[^\\s\\S]", v), "the regular expression cannot be used: no text"),
        (lambda v: S.Lark("start: start", v), "the Lark grammar cannot be used: no text obeys it"),
        (
            lambda v: S.Grammar("%llguidance {}\nstart: start", vocabulary=v),
            "the Lark grammar cannot be used: no text obeys it",
        ),
        (
            lambda v: S.JSONSchema({"enum": [f"x{i * 7919}" for i in range(100_000)]}, v),
            "asks for more than 1000000 elements",
        ),
        (
            lambda v: S.JSONSchema(
                {"type": "object", "properties": {f"x{i}": NULL for i in range(20_000)}}, v
            ),
            "asks for more than 1000000 elements",
        ),
        (lambda v: S.Grammar('root ::= "a"{1000001}', vocabulary=v), "than 1000000 elements"),
    ],
)
def test_what_goes_past_the_bound_is_refused_in_plain_words(
    model: aleator.LanguageModel, make: Any, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason) as error:
        make(model.tokenizer)
    assert not re.search(INTERNAL, str(error.value).splitlines()[0])


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("regex", "((.{1,999}){1,999}){1,999}", "the regular expression cannot be used after"),
        ("grammar", "root ::= ((.{0,999} [a-y]{0,999}){0,999} [a-x]{0,999}){0,999}", "ambiguous"),
    ],
)
def test_repetitions_of_repetitions_end_where_a_step_takes_too_long(
    model: aleator.LanguageModel, option: str, value: str, reason: str
) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(GrammarError, match=reason):
        model.generate("x", max_tokens=2000, temperature=3, seed=1, **options).result()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("NoExtensionBias", "no text obeys it"),
        ("lexer error: too many expressions constructed", "leaves too many ways open"),
        (
            "grammar size (number of symbols) too big (limit for this grammar: 5)",
            "1000000 elements",
        ),
        ("lexer precomputation failed; either increase limits.initial_lexer_fuel", "1000000"),
        (
            "Unable to determine if regex is empty:  (And (SearchRegex /a/))",
            "simplify its patterns",
        ),
        ("InternalError", FALLBACK),
        ("assertion failed: sym.cond_nullable.is_empty()", FALLBACK),
        ("thread panicked at parser/src/x.rs", FALLBACK),
        ("", FALLBACK),
        ('unknown name: "CamelCase_too"', 'unknown name: "CamelCase_too"'),
        ("Pointer '/nowhere' does not exist: json-schema:///#/a", "does not exist: #/a"),
        ("regex parse error:\n    (?=a)\n    ^^^\nerror: look-around is not", "look-around is not"),
        ("x" * 1000, "x" * 300 + "..."),
        ("x" * 301, "x" * 300 + "..."),
    ],
)
def test_complaints_in_plain_words(said: str, wanted: str) -> None:
    assert wanted in plain(said)
    assert plain("x" * 300) == "x" * 300
    assert not any(re.search(INTERNAL, words) for _, words in KINDS)
