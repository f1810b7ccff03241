"""Refuse JSON schemas that llguidance accepts, but that are endless, too large, or not followed exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import lcm
from typing import Any
from urllib.parse import unquote

from aleator.core.errors import GrammarError
from aleator.grammar.bounds import ELEMENTS, MULTIPLE

DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are not schemas."""
MOST_LEVELS = 512
"""Most levels of a schema, its references followed; llguidance's code calls itself for each, and from about
1,600 on it ends the process (8 MiB of stack)."""


def check_schema(schema: Any) -> None:
    """Refuse a schema that never ends, asks for too much, or is not followed exactly by llguidance (1.9)."""
    references = References(schema)
    references.check_ends()
    _check_multiples(schema, references)
    for path, node in _objects(schema, "#"):
        _check_bounds(node, path)
        _check_properties(node, path)


def places(schema: Any, key: str) -> Iterator[str]:
    """JSON pointers of the objects that have ``key``, outermost first."""
    return (path for path, node in _objects(schema, "#") if key in node)


def _objects(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects that may be schemas, with their JSON pointers, outermost first."""
    if isinstance(schema, dict):
        yield path, schema
        for name, each in schema.items():
            if name not in DATA:
                yield from _objects(each, f"{path}/{name}")
    elif isinstance(schema, list):
        for index, each in enumerate(schema):
            yield from _objects(each, f"{path}/{index}")


def check_levels(schema: Any) -> None:
    """Refuse a schema that is nested too deeply where its references are followed, each part once."""
    own = schema.get("$id") if isinstance(schema, dict) else None
    references, known = References(schema), True
    parts, total = {id(schema): schema}, 0
    weights, leads = dict[int, int](), dict[int, list[int]]()
    for part in (order := [id(schema)]):
        leads[part] = []
        left = [(parts[part], 1)]
        for node, level in left:
            weights[part] = level
            if isinstance(node, dict | list):
                within = node.values() if isinstance(node, dict) else node
                left += [(each, level + 1) for each in within if isinstance(each, dict | list)]
            if not isinstance(node, dict):
                continue
            known &= node is schema or "$id" not in node
            ref = node.get("$ref")
            if isinstance(ref, str):
                ref = ref.removeprefix(own) if isinstance(own, str) and own else ref
                known &= ref == "#" or ref.startswith("#/")
                to = references.found(ref)
                leads[part].append(id(to))
                if id(to) not in parts:
                    parts[id(to)] = to
                    order.append(id(to))
        total = total or len(left)
    levels = _most_levels(weights, leads) if known else total
    if levels > MOST_LEVELS:
        how = "" if known else ', some by "$id" or "$anchor"'
        raise GrammarError(
            f"the JSON schema leads through up to {levels} levels by its references{how}, and {MOST_LEVELS} "
            "are the most: let fewer definitions lead to one another, and write references as #/$defs/NAME"
        )


def _most_levels(weights: Mapping[int, int], leads: Mapping[int, Sequence[int]]) -> int:
    """The most levels on any way through parts; those that lead to one another all count together."""
    seen, done, into = set[int](), dict[int, None](), defaultdict[int, list[int]](list)
    left = list(leads)
    while left:  # parts in the order in which they are finished
        part = left[-1]
        if part in seen:
            done[left.pop()] = None
            continue
        seen.add(part)
        for each in leads[part]:
            into[each].append(part)
            left += [each] if each not in seen else []
    most = dict[int, int]()
    for part in reversed(done):
        if part not in most:
            group, before = {part: None}, 0
            for one in (left := [part]):
                for each in into[one]:
                    before = max(before, most.get(each, 0))
                    if each not in most and each not in group:
                        group[each] = None
                        left.append(each)
            most.update(dict.fromkeys(group, before + sum(weights[each] for each in group)))
    return max(most.values())


class References:
    """The references of a schema to its own parts."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        # Their targets; references without one are left to llguidance.
        self.targets: dict[str, Any] = {}
        self._ending: set[str] = set()
        for _, node in _objects(schema, "#"):
            ref = node.get("$ref")
            if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
                found = self.found(ref)
                if found is not None:
                    self.targets[ref] = found

    def found(self, ref: str) -> Any:
        """The part at a JSON pointer; None if there is none."""
        node = self._schema
        for name in ref.split("/")[1:]:
            name = unquote(name).replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(name)] if isinstance(node, list) else node[name]
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        return node

    def check_ends(self) -> None:
        """Refuse a schema with a part that has no finite text, because it must contain itself."""
        left = list(self.targets)
        n: int | None = None
        while n != len(left):  # remove parts that end because others do; forwards and backwards
            n = len(left)
            for ref in left:
                if self._blocked(self.targets[ref], ref) is None:
                    self._ending.add(ref)
            left = [ref for ref in reversed(left) if ref not in self._ending]
        blocked = self._blocked(self._schema, "#")
        if blocked is None and left:
            blocked = self._blocked(self.targets[left[0]], left[0])
        if blocked is None:
            return
        passed = set[str]()
        path, ref = blocked
        while ref not in passed:
            passed.add(ref)
            path, ref = self._blocked(self.targets[ref], ref) or (path, ref)
        raise GrammarError(
            f'the JSON schema never ends: $ref "{ref}" (at {path}) leads back to itself, and nothing on '
            "the way can be left out: make a property optional, or give another branch, as anyOf with "
            '{"type": "null"}'
        )

    def _blocked(self, node: Any, path: str) -> tuple[str, str] | None:
        """The place and target of a required reference that is not known to end."""
        if not isinstance(node, dict) or "const" in node or "enum" in node:
            return None
        ref = node.get("$ref")
        if isinstance(ref, str) and ref in self.targets and ref not in self._ending:
            return path, ref
        for found in self._parts(node, path, "allOf"):
            if found:
                return found
        for name in ("anyOf", "oneOf"):
            branches = self._parts(node, path, name)
            if branches and all(branches):
                return branches[0]
        kinds = node.get("type")
        each = [
            NEEDS[kind](self, node, path) if kind in NEEDS else None
            for kind in (kinds if isinstance(kinds, list) else [kinds])
            if isinstance(kind, str)
        ]
        return each[0] if each and all(each) else None

    def _parts(self, node: dict[str, Any], path: str, name: str) -> list[tuple[str, str] | None]:
        parts = node.get(name)
        if not isinstance(parts, list):
            return []
        return [self._blocked(each, f"{path}/{name}/{i}") for i, each in enumerate(parts)]

    def _object(self, node: dict[str, Any], path: str) -> tuple[str, str] | None:
        properties, required = node.get("properties"), node.get("required")
        if not (isinstance(properties, dict) and isinstance(required, list)):
            return None
        names = (name for name in required if isinstance(name, str) and name in properties)
        parts = (self._blocked(properties[name], f"{path}/properties/{name}") for name in names)
        return next(filter(None, parts), None)

    def _array(self, node: dict[str, Any], path: str) -> tuple[str, str] | None:
        least = node.get("minItems")
        if not isinstance(least, int) or least < 1:
            return None
        first = node.get("prefixItems")
        n = len(first) if isinstance(first, list) else 0
        found = self._parts(node, path, "prefixItems")[:least]
        if least > n:
            found.append(self._blocked(node.get("items"), f"{path}/items"))
        return next(filter(None, found), None)


NEEDS: dict[str, Callable[[References, dict[str, Any], str], tuple[str, str] | None]] = {
    "object": References._object,
    "array": References._array,
}


def _check_multiples(schema: Any, references: References) -> None:
    """Refuse ``multipleOf`` whose automata would be too large."""
    most = ELEMENTS // MULTIPLE
    total = 0
    for path, node in _objects(schema, "#"):
        units = _units(node, references, ()) if "multipleOf" in node or "allOf" in node else 1
        total += units if units > 1 else 0
        if total > most:
            raise GrammarError(
                f"the JSON schema asks for too much by multipleOf (at {path}): without their decimal points "
                f"such numbers come to {total}, and {most} are the most: give smaller ones, or check the "
                "result for it"
            )


def _units(node: Any, references: References, passed: tuple[str, ...]) -> int:
    """The least integer, ignoring the decimal point, of which every valid number is a multiple."""
    if not isinstance(node, dict):
        return 1
    own = node.get("multipleOf")
    units = _whole(own) if isinstance(own, int | float) else 1
    ref, parts = node.get("$ref"), node.get("allOf")
    if isinstance(ref, str) and ref in references.targets and ref not in passed:
        units = lcm(units, _units(references.targets[ref], references, (*passed, ref)))
    for each in parts if isinstance(parts, list) else ():
        units = lcm(units, _units(each, references, passed))
    return units


def _whole(number: float) -> int:
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    return abs(int(Decimal(repr(number)).scaleb(places))) or 1


def _check_bounds(node: dict[str, Any], path: str) -> None:
    """Refuse an exclusive integer bound that is less than 1 away from the other bound.

    llguidance allows 0 for exclusiveMinimum 0 and maximum 0.5.
    """
    low, high = (
        [v for n in names if isinstance(v := node.get(n), int | float)]
        for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        bound = node.get(name)
        excluded = isinstance(bound, int | float) and bound == int(bound) and low and high
        if excluded and node.get("type") != "integer" and min(high) - max(low) < 1:
            raise GrammarError(
                f"the JSON schema has {name} {bound} (at {path}) less than 1 from the other bound, which is "
                "not supported, as the excluded number would be let through: move the bound a little"
            )


def _check_properties(node: dict[str, Any], path: str) -> None:
    """Refuse ``minProperties`` with free names, because llguidance may count one name twice."""
    least, required = node.get("minProperties"), node.get("required", [])
    if (
        isinstance(least, int)
        and isinstance(required, list)
        and least > len(required) + 1
        and node.get("additionalProperties") is not False
    ):
        raise GrammarError(
            f"the JSON schema has minProperties {least} (at {path}) where properties may have any name, which "
            "is not supported, as the same name could be drawn twice: name the properties, and give "
            "additionalProperties false"
        )
