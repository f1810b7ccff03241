"""Random JSON schemas: a schema's number is its seed, so that a failure can be run again alone."""

from __future__ import annotations

import random
import string
from typing import Any

Schema = dict[str, Any]
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "duration", "uri")
PATTERNS = (
    "^[a-z]{2,5}$",
    "^(ab|cd)*ef$",
    "[0-9]{3}",
    "^[A-Z][a-z]*( [A-Z][a-z]*){0,3}$",
    "^a+b?$",
)


def schema(number: int) -> Schema:
    """The schema of a number: objects, arrays, strings, numbers, enums, unions, references to themselves."""
    rng = random.Random(number)
    made = any_of_depth(rng, rng.randint(1, 4))
    if rng.random() < 0.25:
        made = recursive(rng)
    return made


def any_of_depth(rng: random.Random, depth: int) -> Schema:
    """A schema nested at most ``depth`` deep."""
    makers = [text, number, integer, enumeration, constant, boolean]
    if depth > 0:
        makers += [thing, thing, array, array, union]
    return rng.choice(makers)(rng, depth - 1)


def text(rng: random.Random, depth: int) -> Schema:
    """Strings: free, or with a length, a pattern or a format."""
    kind = rng.randrange(5)
    made: Schema = {"type": "string"}
    if kind == 1:
        made["maxLength"] = rng.randint(0, 30)
    elif kind == 2:
        made["minLength"] = rng.randint(1, 10)
        made["maxLength"] = made["minLength"] + rng.randint(0, 10)
    elif kind == 3:
        made["pattern"] = rng.choice(PATTERNS)
    elif kind == 4:
        made["format"] = rng.choice(FORMATS)
    return made


def integer(rng: random.Random, depth: int) -> Schema:
    """Integers, with and without bounds."""
    made: Schema = {"type": "integer"}
    low = rng.randint(-2000, 2000)
    if rng.random() < 0.5:
        made[rng.choice(("minimum", "exclusiveMinimum"))] = low
    if rng.random() < 0.5:
        made[rng.choice(("maximum", "exclusiveMaximum"))] = low + rng.randint(20, 3000)
    if rng.random() < 0.2:
        made["multipleOf"] = rng.randint(2, 9)
    return made


def number(rng: random.Random, depth: int) -> Schema:
    """Numbers, with and without bounds."""
    made: Schema = {"type": "number"}
    low = round(rng.uniform(-50, 50), rng.randint(0, 3))
    if rng.random() < 0.5:
        made[rng.choice(("minimum", "exclusiveMinimum"))] = low
    if rng.random() < 0.5:
        made[rng.choice(("maximum", "exclusiveMaximum"))] = low + rng.randint(1, 90)
    return made


def enumeration(rng: random.Random, depth: int) -> Schema:
    """One of several values of any kind."""
    pool = [
        1, -3.5, True, None, "", "yes", 'a "b" \\ c', "né", [1, "x"], {"k": [None]}, "two words",
    ]  # fmt: skip
    return {"enum": rng.sample(pool, rng.randint(1, 5))}


def constant(rng: random.Random, depth: int) -> Schema:
    """One value."""
    return {"const": rng.choice(["fixed", 7, None, False, ["a", {"b": 1}]])}


def boolean(rng: random.Random, depth: int) -> Schema:
    """True, false or null."""
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"], ["string", "integer"]])}


def names(rng: random.Random, count: int) -> list[str]:
    """Different names of properties, some odd ones among them."""
    pool = ["name", "id", "tags", "é", "with space", 'quo"te', "a/b", "x1", "value", "$kind", "列"]
    pool += ["".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(3)]
    return rng.sample(pool, count)


def thing(rng: random.Random, depth: int) -> Schema:
    """Objects: required and optional properties; others are forbidden, free, or of some kind."""
    properties = {name: any_of_depth(rng, depth) for name in names(rng, rng.randint(0, 5))}
    made: Schema = {"type": "object", "properties": properties}
    required = [name for name in properties if rng.random() < 0.6]
    if required:
        made["required"] = required
    others = rng.randrange(3)
    if others == 0:
        made["additionalProperties"] = False
    elif others == 1:
        made["additionalProperties"] = any_of_depth(rng, min(depth, 1))
    return made


def array(rng: random.Random, depth: int) -> Schema:
    """Arrays: of one kind, with a number of items, or with their own kinds for the first few."""
    made: Schema = {"type": "array", "items": any_of_depth(rng, depth)}
    if rng.random() < 0.4:
        made["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        made["maxItems"] = made.get("minItems", 0) + rng.randint(0, 4)
    if rng.random() < 0.2:
        made["prefixItems"] = [any_of_depth(rng, min(depth, 1)) for _ in range(rng.randint(1, 2))]
    return made


def union(rng: random.Random, depth: int) -> Schema:
    """Any of several; one of several that differ in type; all of two."""
    kind = rng.randrange(3)
    if kind == 0:
        return {"anyOf": [any_of_depth(rng, depth) for _ in range(rng.randint(2, 3))]}
    if kind == 1:
        branches = [text, integer, array, thing]
        return {"oneOf": [make(rng, depth) for make in rng.sample(branches, rng.randint(2, 3))]}
    return {"allOf": [{"type": "integer"}, {"minimum": rng.randint(-9, 9)}]}


def recursive(rng: random.Random) -> Schema:
    """Trees, lists, and objects that may hold themselves."""
    node = {"$ref": "#/$defs/node"}
    value = any_of_depth(rng, 1)
    shapes: list[Schema] = [
        {"value": value, "children": {"type": "array", "items": node}},
        {"value": value, "next": {"anyOf": [node, {"type": "null"}]}},
        {"left": node, "right": node, "value": value},
    ]
    index = rng.randrange(3)
    made: Schema = {"type": "object", "properties": shapes[index], "additionalProperties": False}
    made["required"] = [key for key in shapes[index] if index < 2 or key == "value"]
    return {"$ref": "#/$defs/node", "$defs": {"node": made}}
