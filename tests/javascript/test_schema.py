"""JSON schemas in the npm package: the grammars that they become, and what is refused."""

from __future__ import annotations

import json
import random
import sys
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

import aleator
from aleator.core import host
from aleator.grammar import compile_gbnf
from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import ROOT, Run
from tests.javascript.random_cases import told_of

sys.path.append(str(ROOT / "tools"))

from json_schemas import schema as random_schema

S, N = {"type": "string"}, {"type": "integer"}
CLOSED = {"type": "object", "additionalProperties": False}


class Bytes:
    """A vocabulary of the bytes."""

    eog = frozenset({256})
    ids: dict[str, int] = {}

    def __len__(self) -> int:
        return 257

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


BYTES = Bytes()


def _grammars(run: Run, schemas: list[Any]) -> list[Any]:
    """Their texts, or what refuses them."""
    return run("value", [{"code": f"gbnf({json.dumps(each)})"} for each in schemas])


def _takes(grammar: host.Constraint, text: str) -> bool:
    grammar.reset()
    for byte in text.encode():
        if not grammar.allows(byte):
            return False
        grammar.accept(byte)
    return grammar.complete


TEXTS: list[tuple[Any, list[str], list[str]]] = [
    (True, ["1", '{"a": [null, true]}', '"\\u00e9"', "-0.5e-7", "[]", "{}"], ["", "01", "1.", "[1,2]", '"\\ud800"', '"\n"', "+1"]),
    ({"type": ["boolean", "null"]}, ["true", "false", "null"], ["1", "nul"]),
    ({"const": {"a": [1, "é\"\n"]}}, ['{"a": [1, "é\\"\\n"]}'], ['{"a":[1, "é\\"\\n"]}']),
    ({"enum": ["a", "b\b\f\\b"]}, ['"a"', '"b\\b\\f\\\\b"'], ['"b"', "a"]),
    ({"enum": [1, "a", None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"enum": [1, 2.5], "type": "number"}, ["1", "2.5"], []),
    ({"enum": [1, 2.5], "type": "integer"}, ["1"], ["2.5"]),
    ({"enum": [1, 2], "const": 2}, ["2"], ["1"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"\\u00e9\U0001f600x"'], ['"a"', '"abcd"', '"\\ud83d\\ude00"']),
    ({"type": "string", "maxLength": 2001}, [json.dumps("a" * n) for n in (0, 999, 1000, 1001, 2000, 2001)], [json.dumps("a" * 2002)]),
    ({"type": "string", "minLength": 2500, "maxLength": 4600}, [json.dumps("a" * n) for n in (2500, 4600)], [json.dumps("a" * n) for n in (2499, 4601)]),
    ({"type": "string", "pattern": "^(ab|c?d)+$"}, ['"ab"', '"dcd"'], ['""', '"abc"']),
    ({"type": "string", "pattern": "[0-9]{2,3}x"}, ['"12x"', '"..1234x."'], ['"1x"', '"12"']),
    ({"type": "string", "pattern": "^a|b$"}, ['"a"', '"xb"', '"ab"'], ['"ba"']),
    ({"type": "string", "pattern": '^[^a-c\\d]\\D["\\\\\\n]{0,1}.$'}, ['"dx\\nz"', '"éé\\"z"', '"-xz"'], ['"ax\\nz"', '"d1z"', '"dx\\u000az"', '"dx\\n\\n"']),
    ({"type": "string", "pattern": "^\\w\\W\\s\\S\\x41\\u0042\\t[\\]-]*?$"}, ['"_- xAB\\t]-"'], ['"-- xAB\\t"', '"_a xAB\\t"', '"_-  AB\\t"']),
    ({"type": "string", "pattern": "^(?:a{2}){2,}$", "minLength": 4}, ['"aaaa"', '"aaaaaa"'], ['"aa"', '"aaaaa"']),
    ({"type": "string", "pattern": "^[a-z]{2}$", "maxLength": 2, "minLength": 2}, ['"ab"'], ['"a"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"', '"1999-12-31"', '"1999-11-30"'], ['"2023-02-29"', '"1999-11-31"', '"99-01-01"', '"1999-00-10"']),
    ({"type": "string", "format": "date-time"}, ['"2024-02-28T23:59:59.5Z"', '"2024-02-28T00:00:00+05:30"'], ['"2024-02-28T24:00:00Z"', '"2024-02-28 00:00:00Z"']),
    ({"type": "string", "format": "uuid"}, ['"01234567-89ab-cdef-0123-456789abcdef"'], ['"01234567-89ab-cdef-0123-456789abcde"']),
    ({"type": "string", "format": "ipv4"}, ['"255.0.19.250"'], ['"256.0.0.1"', '"01.0.0.1"', '"1.1.1"']),
    ({"type": "string", "format": "email"}, ['"a.b@c-d.org"'], ['"a@b"', '"a..b@c.de"']),
    ({"type": "array", "items": N, "minItems": 1, "maxItems": 3}, ["[1]", "[1, 2, 3]"], ["[]", "[1, 2, 3, 4]", "[1, 2, 3, ]", "[1,2]"]),
    ({"type": "array", "items": N, "maxItems": 0}, ["[]"], ["[1]"]),
    ({"type": "array", "items": False}, ["[]"], ["[1]", "[null]"]),
    ({"type": "array", "items": N, "maxItems": 1}, ["[]", "[1]"], ["[1, 2]"]),
    ({"type": "array", "prefixItems": [N, S], "items": {"type": "null"}}, ["[]", "[1]", '[1, "a"]', '[1, "a", null, null]'], ['["a"]', "[1, null]", '[1, "a", 1]']),
    ({"type": "array", "prefixItems": [N, S], "items": N, "minItems": 1, "maxItems": 3}, ["[1]", '[1, "a", 3]'], ["[]", '[1, "a", 3, 4]']),
    ({"type": "array", "prefixItems": [N, S], "minItems": 3, "items": N}, ['[1, "a", 2]'], ['[1, "a"]', "[]"]),
    ({"type": "array", "prefixItems": [N, S], "maxItems": 1}, ["[]", "[1]"], ['[1, "a"]']),
    ({"type": "array", "prefixItems": [N, S], "items": False}, ["[]", '[1, "a"]'], ['[1, "a", 2]']),
    ({"type": "array", "prefixItems": [N, False, S]}, ["[]", "[1]"], ["[1, 2]"]),
    ({**CLOSED, "properties": {"a": N, "b": N, "c": N}, "required": ["b"]}, ['{"b": 1}', '{"a": 1, "b": 2, "c": 3}', '{"b": 1, "c": 2}'], ["{}", '{"a": 1}', '{"b": 1, "a": 1}', '{"b": 1, }', '{"b": 1, "d": 1}', '{, "b": 1}']),
    ({**CLOSED, "properties": {"a": N, "b": N}}, ["{}", '{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'], ['{"b": 1, "a": 1}', '{"a": 1, "a": 1}']),
    ({**CLOSED, "properties": {"a": N, "b": False}}, ["{}", '{"a": 1}'], ['{"b": 1}']),
    ({"type": "object", "properties": {"ab": N, 'q"\n\u0001': N}, "additionalProperties": {"type": "null"}},
     ["{}", '{"ab": 1}', '{"a": null}', '{"abc": null, "": null, "b": null}', '{"ab": 1, "q\\"\\n\\u0001": 2, "q\\"": null}'],
     ['{"ab": null}', '{"a": 1}', '{"\\u0061b": null}', '{"q\\"\\n\\u0001": null}', '{"a": null, "ab": 1}']),
    ({"type": "object", "required": ["x"], "additionalProperties": N}, ['{"x": 1}', '{"x": 1, "y": 2}'], ["{}", '{"y": 1}', '{"x": null}']),
    ({"type": "object", "properties": {"a": True}, "required": ["a"]}, ['{"a": [{}]}', '{"a": 1, "b": {"a": "x"}}'], ['{"b": 1}']),
    ({"properties": {"a": N}}, ["1", '{"a": 1}', '{"b": "x"}'], ['{"a": "x"}']),
    ({"anyOf": [N, S]}, ["1", '"a"'], ["null"]),
    ({"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 3}]}, ['"a"', '"abc"'], ['"ab"', "1"]),
    ({"oneOf": [{"const": "a"}, {"const": "b"}, N]}, ['"a"', '"b"', "3"], ['"c"']),
    ({"oneOf": [{**CLOSED, "properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]}, ['{"k": "a"}', '{"k": "b"}'], ['{"k": "c"}']),
    ({"oneOf": [{"type": "object", "required": ["a"]}, {**CLOSED, "properties": {"b": N}}]}, ["{}", '{"b": 1}', '{"a": 1}'], ['{"b": "x"}']),
    ({"allOf": [{"type": ["integer", "string"]}, {"type": "number", "minimum": 3}], "maximum": 5}, ["3", "5"], ["2", "6", '"a"', "3.5"]),
    ({"allOf": [{"type": "object", "properties": {"a": N}, "required": ["a"]}, {**CLOSED, "properties": {"a": {"maximum": 5}, "b": S}, "required": ["b"]}]},
     ['{"a": 5, "b": "x"}'], ['{"a": 6, "b": "x"}', '{"a": 5}', '{"a": 5, "b": "x", "c": 1}', '{"b": "x"}']),
    ({"allOf": [{"type": "array", "prefixItems": [N]}, {"items": {"enum": [1, "a"]}, "minItems": 2, "maxItems": 2}]}, ["[1, 1]", '[1, "a"]'], ['["a", 1]', "[1]"]),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2]}]}, ["2", "3"], ["1"]),
    ({"allOf": [{"type": "object", "additionalProperties": False, "properties": {"a": N}}, {"properties": {"b": N}}]}, ["{}", '{"a": 1}'], ['{"b": 1}']),
    ({"$ref": "#/$defs/a~1b%20", "$defs": {"a/b ": {"type": "array", "items": {"$ref": "#"}}}}, ["[]", "[[], [[]]]"], ["[1]", "1"]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {**CLOSED, "properties": {"v": N, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"]}}},
     ['{"v": 1, "next": {"v": 2, "next": null}}'], ['{"v": 1}', '{"v": 1, "next": {}}']),
    ({"$ref": "#/$defs/n", "maximum": 3, "title": "t", "$defs": {"n": N}}, ["3"], ["4"]),
    ({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"const": "end"}]}, ['"end"', '["end"]'], ["[]"]),
    # What can never be obeyed is left out.
    ({"anyOf": [{"type": "integer", "minimum": 3, "maximum": 2}, S]}, ['"a"'], ["2", "3"]),
]  # fmt: skip


def test_grammars_take_what_obeys_and_nothing_else(run: Run) -> None:
    for (schema, good, bad), text in zip(TEXTS, _grammars(run, [s for s, _, _ in TEXTS]), strict=True):
        assert isinstance(text, str), (schema, text)
        grammar = compile_gbnf(text, "root", BYTES)
        assert [each for each in good if not _takes(grammar, each)] == [], schema
        assert [each for each in bad if _takes(grammar, each)] == [], schema
        checker = jsonschema.Draft202012Validator(schema)
        assert all(checker.is_valid(json.loads(each)) for each in good), schema


BOUNDS = [
    {"minimum": 0}, {"minimum": 7, "maximum": 123}, {"exclusiveMinimum": -13, "exclusiveMaximum": 4},
    {"maximum": -1}, {"exclusiveMaximum": 0}, {"minimum": -205.5, "maximum": -99.25},
    {"minimum": -0.5, "exclusiveMaximum": 110}, {"minimum": 99, "exclusiveMinimum": 99}, {"maximum": 100, "exclusiveMaximum": 109},
    {"minimum": 10, "exclusiveMinimum": 9.5}, {"exclusiveMinimum": 0.25, "maximum": 0.5}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"minimum": 1.5, "maximum": 1.75}, {"minimum": -1, "maximum": 0}, {"exclusiveMinimum": -1.05, "maximum": -0.1},
]  # fmt: skip


def test_whole_numbers_keep_their_bounds(run: Run) -> None:
    schemas: list[Any] = [{"type": "integer", **each} for each in BOUNDS]
    for schema, text in zip(schemas, _grammars(run, schemas), strict=True):
        checker = jsonschema.Draft202012Validator(schema)
        valid = [n for n in range(-250, 1100) if checker.is_valid(n)]
        if not valid:
            assert "no text obeys" in text["message"]
            continue
        grammar = compile_gbnf(text, "root", BYTES)
        assert [n for n in range(-250, 1100) if _takes(grammar, str(n))] == valid, schema
        assert not _takes(grammar, "-0")
        assert not _takes(grammar, "007")


def test_decimals_keep_their_bounds(run: Run) -> None:
    schemas: list[Any] = [{"type": "number", **each} for each in BOUNDS]
    r = random.Random(3)
    for schema, text in zip(schemas, _grammars(run, schemas), strict=True):
        grammar, checker = compile_gbnf(text, "root", BYTES), jsonschema.Draft202012Validator(schema)
        near = [Decimal(str(value)) for value in schema.values() if not isinstance(value, str)]
        steps = [Decimal(n) / 10**k for k in range(4) for n in range(-12, 13)]
        numbers = [at + step for at in near for step in steps]
        numbers += [Decimal(r.randint(-30000, 30000)) / 100 for _ in range(300)]
        for each in numbers:
            shown = format(each if each else abs(each), "f")
            assert _takes(grammar, shown) == checker.is_valid(float(each)), (schema, shown)


def test_the_last_decimal_beside_a_bound_is_another_double(run: Run) -> None:
    [text] = _grammars(run, [{"type": "number", "exclusiveMinimum": 99.1, "exclusiveMaximum": 100}])
    grammar = compile_gbnf(text, "root", BYTES)
    most = [n for n in range(30) if _takes(grammar, "99.1" + "0" * n + "1")]
    assert most == list(range(11))
    assert float("99.1" + "0" * 10 + "1") > 99.1
    assert not _takes(grammar, "99." + "9" * 13)


REFUSED: list[tuple[Any, str]] = [
    ({"properties": {"tags": {"uniqueItems": True}}}, "uniqueItems=true (at #/properties/tags)"),
    ({"items": {"not": {}}}, "not (at #/items), which is not supported"),
    ({"multipleOf": 3}, "multipleOf (at #)"),
    ({"patternProperties": {}}, "patternProperties (at #)"),
    ({"properties": {"a": {"$id": "x"}}}, "$id (at #/properties/a)"),
    ({"toString": 1}, "toString (at #)"),
    ({"type": "strin"}, 'type="strin" (at #)'),
    ({"minLength": -1}, "minLength=-1 (at #)"),
    ({"maxItems": 1.5}, "maxItems=1.5 (at #)"),
    ({"exclusiveMinimum": True}, "exclusiveMinimum=true (at #)"),
    ({"required": ["a", 1]}, 'required=["a", 1] (at #)'),
    ({"properties": []}, "properties=[] (at #)"),
    ({"items": [N]}, "items=[{"),
    ({"anyOf": []}, "anyOf=[] (at #)"),
    ({"type": "string", "format": "colour"}, 'format="colour" (at #)'),
    ({"type": "string", "format": "date", "pattern": "a"}, "format (at #), beside pattern"),
    ({"type": "string", "format": "date", "minLength": 11}, "minLength (at #), beside a pattern or format of shorter"),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "maxLength (at #), beside a pattern or format of longer"),
    ({"enum": ["a"], "minLength": 3}, "enum (at #), beside minLength"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern (at #)"),
    ({"oneOf": [S, {"minLength": 1}]}, "oneOf (at #)"),
    ({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}, "oneOf (at #)"),
    ({"$ref": "#/nowhere"}, '"#/nowhere" (at #)'),
    ({"$ref": "other.json"}, '"other.json" (at #)'),
    ({"$ref": "#"}, "never ends"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text obeys"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no text obeys"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "no text obeys"),
    ({"enum": []}, "no text obeys"),
    (False, "no text obeys"),
    ({"type": "integer", "minimum": 2**53}, "minimum (at #)"),
    ({"type": "number", "maximum": 1e-9}, "maximum (at #)"),
    ({"type": "number", "minimum": 0.30000000000000004}, "minimum (at #), with too many digits"),
    ([1], "an object or a boolean, not [1]"),
    ("{", "is not JSON"),
    ({"type": "string", "maxLength": 10**9}, "more than 100000 rules"),
    (json.loads('{"items":' * 300 + "{}" + "}" * 300), "deeper than 200"),
    ({"anyOf": [{"const": n} for n in range(40)], "allOf": [{"anyOf": [{"minimum": n} for n in range(40)]}]}, "more than 1000 branches"),
    ({"$ref": "#/$defs/30", "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n - 1}"}] * 2} if n else {} for n in range(31)}}, "asks for too much"),
]  # fmt: skip


def test_what_cannot_be_kept_is_refused_by_name_and_place(run: Run) -> None:
    for (schema, said), told in zip(REFUSED, _grammars(run, [s for s, _ in REFUSED]), strict=True):
        assert told["error"] == "GrammarError", (schema, told)
        assert said in told["message"], (schema, told)


PATTERNS = {
    "(?=a)": "looking around", "(?<n>a)": "looking around", "a(": "a group is not closed", "a)": ") is not supported here",
    "(^a)": "a group is not closed", "a^b": "^ is not supported here", "[a": "a class is not closed", "[z-a]": "a range of a class",
    "[a-\\d]": "a range of a class", "*a": "* repeats or closes nothing", "a**": "a repetition is repeated", "a{2,1}": "below its minimum",
    "a{x}": "a repetition is not", "\\b": "\\b is not supported", "(a)\\1": "\\1 is not supported", "a\\": "escapes nothing",
    "\\u12": "\\u is not supported", "\\p{L}": "\\p is not supported", "(" * 60 + ")" * 60: "too deep", "[a-": "a class is not closed",
}  # fmt: skip


def test_patterns_that_are_not_known_are_refused(run: Run) -> None:
    told = _grammars(run, [{"type": "string", "pattern": each} for each in PATTERNS])
    for (pattern, said), each in zip(PATTERNS.items(), told, strict=True):
        assert said in each["message"], pattern
        assert f"pattern {json.dumps(pattern)[:20]}"[:20] in each["message"]


def _known(value: Any) -> Any:
    """A schema without the keywords and formats that are refused here."""
    if isinstance(value, list):
        return [_known(each) for each in value]
    if not isinstance(value, dict):
        return value
    formats = ("date", "time", "date-time", "uuid", "ipv4", "email")
    return {
        key: _known(each)
        for key, each in value.items()
        if key != "multipleOf" and (key != "format" or each in formats)
    }


def test_texts_of_random_schemas_obey_them_and_are_those_of_python(run: Run) -> None:
    schemas = [_known(random_schema(n)) for n in range(60)]
    grammars = _grammars(run, schemas)
    works = [
        (i, schema, grammar, {"seed": i, "preset": "neutral", "temperature": 1.0 + i % 3})
        for i, (schema, grammar) in enumerate(zip(schemas, grammars, strict=True))
        if isinstance(grammar, str)
    ]
    assert len(works) >= 58
    cases = [
        {"path": str(bundled_model()), "prompt": "JULIET:\n", "options": {**options, "json_schema": schema, "maxTokens": 60}}
        for _, schema, _, options in works
    ]  # fmt: skip
    model, whole = aleator.load(n_threads=1), 0
    for (_, schema, grammar, options), told in zip(works, run("text", cases), strict=True):
        made = model.generate("JULIET:\n", grammar=grammar, max_tokens=60, **options)
        assert told == told_of(made)
        if told["complete"]:
            whole += 1
            checker = jsonschema.FormatChecker()
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(told["text"]))
    assert whole >= 50  # the shortest texts of some are longer


@pytest.mark.parametrize("code", ["model.generate('a', { json_schema: true, grammar: 'root ::= \"a\"' })", "new Chain({ json_schema: {} })"])  # fmt: skip
def test_a_schema_needs_a_tokenizer_and_stands_alone(run: Run, code: str) -> None:
    [told] = run("value", [{"code": code, "path": str(bundled_model())}])
    assert told["error"] == "ParameterError"
    assert "json_schema" in told["message"]
