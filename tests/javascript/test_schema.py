"""JSON schemas in the npm package: the grammars that they become, and what is refused."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import aleator
from aleator.grammar import compile_gbnf
from aleator.models.hub.bundled import bundled_model
from tests.javascript.byte_texts import BYTES, takes
from tests.javascript.conftest import Refuses, Run
from tests.javascript.random_cases import told_of
from tests.json_schemas import schema as random_schema

CASES = (Path(__file__).parent / "schemas.txt").read_text()


def _grammars(run: Run, schemas: list[Any]) -> list[Any]:
    """Their texts, or what refuses them."""
    return run("value", [{"code": "gbnf(given)", "given": each} for each in schemas])


def _cases() -> dict[str, list[tuple[str, str]]]:
    """Texts below each schema, each with what stands before its line."""
    cases: dict[str, list[tuple[str, str]]] = {}
    schema = ""
    for line in CASES.splitlines()[1:]:
        if line[:2] in ("+ ", "- ", "! "):
            cases[schema] += [(line[0], text) for text in line[2:].split(" | ")]
        elif line:
            schema, cases[line] = line, []
    return cases


def test_grammars_take_what_obeys_and_nothing_else(run: Run) -> None:
    cases = _cases()
    found = _grammars(run, [json.loads(schema) for schema in cases])
    for (schema, lines), grammar in zip(cases.items(), found, strict=True):
        if lines[0][0] == "!":
            assert grammar["error"] == "GrammarError", (schema, grammar)
            assert lines[0][1] in grammar["message"], (schema, grammar)
            continue
        compiled = compile_gbnf(grammar, "root", BYTES)
        checker = jsonschema.Draft202012Validator(json.loads(schema))
        for mark, text in lines:
            assert takes(compiled, text) == (mark == "+"), (schema, text)
            assert mark == "-" or checker.is_valid(json.loads(text)), (schema, text)


def test_other_texts_than_json_are_not_taken(run: Run) -> None:
    compiled = compile_gbnf(_grammars(run, [True])[0], "root", BYTES)
    wrong = ["", "01", "1.", "[1,2]", '"\n"', "+1", '"\\ud800"', "\ufeff1"]
    assert [text for text in wrong if takes(compiled, text)] == []


@pytest.mark.parametrize(("least", "most"), [(0, 2001), (2500, 4600), (0, 3000)])
def test_long_texts_are_counted(run: Run, least: int, most: int) -> None:
    schema = {"type": "string", "minLength": least, "maxLength": most}
    compiled = compile_gbnf(_grammars(run, [schema])[0], "root", BYTES)
    lengths = {least, least + 1, least + 999, least + 1000, most - 1000, most - 1, most}
    assert all(takes(compiled, json.dumps("a" * n)) for n in lengths)
    assert not takes(compiled, json.dumps("a" * (most + 1)))
    assert not least or not takes(compiled, json.dumps("a" * (least - 1)))


def test_large_maxima_are_narrowed(run: Run) -> None:
    schema = {"type": "string", "maxLength": 2**31 - 1}
    compiled = compile_gbnf(_grammars(run, [schema])[0], "root", BYTES)
    assert takes(compiled, json.dumps("a" * 100_000))
    assert not takes(compiled, json.dumps("a" * 100_001))


TREE = {str(n): {"allOf": [{"$ref": f"#/$defs/{n - 1}"}] * 2} if n else {} for n in range(31)}
LONG: dict[str, Any] = {"190": {}}
for i in range(190):
    LONG[str(i)] = {"$ref": f"#/$defs/{i + 1}"}
    for _ in range(90):
        LONG[str(i)] = {"allOf": [LONG[str(i)]]}
NAMES = dict.fromkeys(map(str, range(3000)), True)
MANY = [{"minimum": n} for n in range(40)]
TOO_MUCH: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    ({"properties": {str(n): {"const": n} for n in range(40_000)}}, "more than 100000 rules"),
    ('{"items":' * 300 + "{}" + "}" * 300, "deeper than 200"),
    ("[" * 10**5 + "]" * 10**5, "deeper than 200"),
    ({"$ref": "#/$defs/0", "$defs": LONG}, "asks for too much"),
    ({"properties": NAMES, "allOf": [{"properties": {}}] * 3000}, "asks for too much"),
    ('{"items": {"const": -1e400}}', "too large a number (at #/items/const)"),
    ('{"enum": [1e400]}', "too large a number (at #/enum/0)"),
    ({"allOf": [{"enum": [*range(50_000)]}, {"enum": [0.5] * 50_000}]}, "no text obeys"),
    ({"$ref": "#/$defs/30", "$defs": TREE}, "asks for too much"),
    ({"anyOf": MANY, "allOf": [{"anyOf": MANY}]}, "more than 1000 branches"),
    ({"type": "string", "pattern": "(" * 60 + ")" * 60}, "too deep"),
]  # fmt: skip


def test_schemas_that_ask_for_too_much_are_refused(run: Run) -> None:
    for (_, said), told in zip(TOO_MUCH, _grammars(run, [s for s, _ in TOO_MUCH]), strict=True):
        assert told["error"] == "GrammarError"
        assert said in told["message"]


def test_numbers_of_properties_that_hold_anyhow_need_no_counting(run: Run) -> None:
    names = [f"p{n}" for n in range(600)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in names},
        "required": names[:500],
        "additionalProperties": False,
    }
    bounds = {"minProperties": 500, "maxProperties": 600}
    plain, bounded = _grammars(run, [schema, schema | bounds])
    assert bounded == plain


def test_branches_that_refer_to_themselves_are_told_apart_by_their_tags(run: Run) -> None:
    branches = [
        {
            "type": "object",
            "properties": {"left": {"$ref": "#"}, "op": {"enum": [n]}, "right": {"$ref": "#"}},
            "required": ["left", "op", "right"],
        }
        for n in range(30)
    ]
    [text] = _grammars(run, [{"oneOf": [*branches, {"type": "null"}]}])
    compiled = compile_gbnf(text, "root", BYTES)
    assert takes(compiled, '{"left": null, "op": 29, "right": null}')
    assert not takes(compiled, '{"left": null, "op": 30, "right": null}')


BOUNDS: list[dict[str, float]] = [
    {"minimum": 0}, {"minimum": 7, "maximum": 123}, {"exclusiveMinimum": -13, "exclusiveMaximum": 4},
    {"maximum": -1}, {"exclusiveMaximum": 0}, {"minimum": -205.5, "maximum": -99.25},
    {"minimum": -0.5, "exclusiveMaximum": 110}, {"minimum": 99, "exclusiveMinimum": 99},
    {"maximum": 100, "exclusiveMaximum": 109}, {"minimum": 10, "exclusiveMinimum": 9.5},
    {"exclusiveMinimum": 0.25, "maximum": 0.5}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"minimum": 1.5, "maximum": 1.75}, {"minimum": -1, "maximum": 0},
    {"exclusiveMinimum": -1.05, "maximum": -0.1},
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
        assert [n for n in range(-250, 1100) if takes(grammar, str(n))] == valid, schema
        assert not takes(grammar, "-0")
        assert not takes(grammar, "007")


def test_decimals_keep_their_bounds(run: Run) -> None:
    schemas: list[Any] = [{"type": "number", **each} for each in BOUNDS]
    r = random.Random(3)
    for schema, text in zip(schemas, _grammars(run, schemas), strict=True):
        grammar, checker = (
            compile_gbnf(text, "root", BYTES),
            jsonschema.Draft202012Validator(schema),
        )
        near = [Decimal(str(value)) for value in schema.values() if not isinstance(value, str)]
        steps = [Decimal(n) / 10**k for k in range(4) for n in range(-12, 13)]
        numbers = [at + step for at in near for step in steps]
        numbers += [Decimal(r.randint(-30000, 30000)) / 100 for _ in range(300)]
        for each in numbers:
            shown = format(each if each else abs(each), "f")
            assert takes(grammar, shown) == checker.is_valid(float(each)), (schema, shown)


def test_the_last_decimal_beside_a_bound_is_another_double(run: Run) -> None:
    [text] = _grammars(run, [{"type": "number", "exclusiveMinimum": 99.1, "exclusiveMaximum": 100}])
    grammar = compile_gbnf(text, "root", BYTES)
    most = [n for n in range(30) if takes(grammar, "99.1" + "0" * n + "1")]
    assert most == list(range(11))
    assert float("99.1" + "0" * 10 + "1") > 99.1
    assert not takes(grammar, "99." + "9" * 13)


def test_multiples_keep_their_bounds(run: Run) -> None:
    r = random.Random(5)
    divisors = [2, 3, 7, 10, 12, 48, 125, 999, 1000, 0.1, 0.5, 0.01, 0.25, 0.003, 1.5, 0.04]
    schemas = [
        {"type": "number", "multipleOf": divisor, **bounds}
        for divisor in divisors
        for bounds in BOUNDS
    ]
    for schema, text in zip(schemas, _grammars(run, schemas), strict=True):
        divisor = Decimal(str(schema["multipleOf"]))
        places = len(str(divisor).partition(".")[2])
        checker = jsonschema.Draft202012Validator(
            {key: value for key, value in schema.items() if key != "multipleOf"}
        )
        ends = [Decimal(str(value)) for key, value in schema.items() if "imum" in key]
        near = [at // divisor * divisor + divisor * n for at in ends for n in range(-3, 4)]
        other = [at + Decimal(n).scaleb(-places) for at in ends for n in range(-12, 13)]
        far = [divisor * r.randint(-300, 300) for _ in range(20)]
        numbers = [each.quantize(Decimal(1).scaleb(-places)) for each in near + other + far]
        valid = [n for n in numbers if n % divisor == 0 and checker.is_valid(float(n))]
        if not isinstance(text, str):
            assert not valid, schema
            assert "no text obeys" in text["message"]
            continue
        grammar = compile_gbnf(text, "root", BYTES)
        for each in numbers:
            for shown in {format(each, "f"), format(each.normalize(), "f")}:
                if Decimal(shown) or not shown.startswith("-"):
                    assert takes(grammar, shown) == (each in valid), (schema, shown)


def _known(value: Any) -> Any:
    """A schema without the keywords and formats that are refused here."""
    if isinstance(value, list):
        return [_known(each) for each in value]
    if not isinstance(value, dict):
        return value
    formats = (
        "date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "hostname", "uri", "email",
    )  # fmt: skip
    return {key: _known(each) for key, each in value.items() if key != "format" or each in formats}


def test_texts_of_random_schemas_obey_them_and_are_those_of_python(run: Run) -> None:
    schemas = [_known(random_schema(n)) for n in range(25)]
    grammars = _grammars(run, schemas)
    works: list[tuple[int, Any, Any, dict[str, Any]]] = [
        (i, schema, grammar, {"seed": i, "preset": "neutral", "temperature": 1.0 + i % 3})
        for i, (schema, grammar) in enumerate(zip(schemas, grammars, strict=True))
        if isinstance(grammar, str)
    ]
    assert len(works) >= 24
    base = {"path": str(bundled_model()), "prompt": "JULIET:\n"}
    cases = [
        {**base, "options": {**options, "json_schema": schema, "maxTokens": 60}}
        for _, schema, _, options in works
    ]
    model, whole = aleator.load(n_threads=1), 0
    for (_, schema, grammar, options), told in zip(works, run("text", cases), strict=True):
        made = model.generate("JULIET:\n", grammar=grammar, max_tokens=60, **options)
        assert told == told_of(made)
        if told["complete"]:
            whole += 1
            checker = jsonschema.FormatChecker()
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(
                json.loads(told["text"])
            )
    assert whole >= 20  # the shortest texts of some are longer


ALONE = (
    "model.generate('a', { json_schema: true, grammar: 'root ::= \"a\"' })",
    "new Chain({ json_schema: {} })",
)


def test_a_schema_needs_a_tokenizer_and_stands_alone(refuses: Refuses) -> None:
    refuses(dict.fromkeys(ALONE, "json_schema"))
