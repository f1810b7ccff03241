"""Dataclasses with less to compile are as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from aleator.core import records


class Paper:
    """What the decorators are given."""

    kind: ClassVar[str] = "paper"
    sheets: int
    colour: str = "white"
    marks: list[int] = field(default_factory=list, compare=False)
    weight: float = field(default=80.0, repr=False, kw_only=True)
    area: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.sheets / 16)


class Envelope:
    """A subclass."""

    window: bool = False


FORMS = [{}, {"frozen": True}, {"eq": False}, {"repr": False}, {"kw_only": True}, {"slots": True}]
FORMS += [{"frozen": True, "slots": True}]


def body(cls: type) -> dict[str, Any]:
    """What a class consists of, to make it again."""
    return {
        name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")
    }


def both(**settings: Any) -> list[Any]:
    """The two classes, each with a subclass, as the two decorators make them."""
    made: list[Any] = []
    for decorate in (dataclasses.dataclass, records.dataclass):
        paper: Any = decorate(**settings)(type("Paper", (), body(Paper)))
        made.append((paper, decorate(**settings)(type("Envelope", (paper,), body(Envelope)))))
    return made


def test_the_signature_is_known_before_the_first_instance() -> None:
    """Python 3.13 asks a class's ``__init__`` for that of the class, as if it were an instance."""
    for theirs, ours in zip(*both(), strict=True):
        asked = [
            str(inspect.signature(vars(c)["__init__"].__get__(c, type))) for c in (theirs, ours)
        ]
        assert asked[0] == asked[1]


@pytest.mark.parametrize("settings", FORMS)
def test_instances_fields_and_signatures_are_equal(settings: dict[str, Any]) -> None:
    for theirs, ours in zip(*both(**settings), strict=True):
        assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
        shown = [
            [(f.name, f.type, f.default, f.init, f.repr, f.kw_only) for f in dataclasses.fields(c)]
            for c in (theirs, ours)
        ]
        assert shown[0] == shown[1]
        assert ours.__match_args__ == theirs.__match_args__
        a, b = theirs(sheets=3, marks=[1]), ours(sheets=3, marks=[1])
        assert dataclasses.asdict(a) == dataclasses.asdict(b)
        if settings.get("repr", True):
            assert repr(a) == repr(b)
        same, other = dataclasses.replace(b, marks=[]), dataclasses.replace(b, colour="red")
        assert (same == b) is settings.get("eq", True)
        assert other != b
        assert copy.deepcopy(b).marks is not b.marks
        assert ours(sheets=1).marks is not ours(sheets=1).marks


def test_frozen_ones_cannot_be_changed_and_have_the_hash() -> None:
    for theirs, ours in zip(*both(frozen=True), strict=True):
        made = ours(sheets=3)
        assert hash(made) == hash(theirs(sheets=3)) == hash(ours(sheets=3))
        refused = pytest.raises(dataclasses.FrozenInstanceError, match="field 'sheets'")
        with refused:
            made.sheets = 4
        with refused:
            del made.sheets
    assert both()[1][0].__hash__ is None


def test_plain_subclasses_of_frozen_ones_have_attributes_of_their_own() -> None:
    for paper, _ in both(frozen=True):
        made = type("Plain", (paper,), {})(sheets=3)
        made.note = "torn"
        assert made.note == "torn"
        del made.note
        assert not hasattr(made, "note")
        with pytest.raises(dataclasses.FrozenInstanceError, match="field 'sheets'"):
            made.sheets = 4


def test_missing_and_unknown_arguments_are_refused() -> None:
    paper = both()[1][0]
    for given in ({}, {"sheets": 1, "size": 4}):
        with pytest.raises(TypeError):
            paper(**given)


GIVEN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((3,), {}),
    ((), {"sheets": 3, "colour": "red", "weight": 1.0}),
    ((3, "red", [1]), {}),
    ((3,), {"sheets": 4}),
    ((3,), {"area": 4}),
    ((), {"colour": "red"}),
    (tuple(range(9)), {}),
]


def outcome(cls: Any, args: tuple[Any, ...], given: dict[str, Any]) -> object:
    """The fields of a new instance, or what its error says of the arguments."""
    try:
        return dataclasses.asdict(cls(*args, **given))
    except TypeError as error:
        return str(error).partition("__init__")[2]


@pytest.mark.parametrize("settings", FORMS)
@pytest.mark.parametrize(("args", "given"), GIVEN)
def test_first_instances_are_as_later_ones(
    settings: dict[str, Any], args: tuple[Any, ...], given: dict[str, Any]
) -> None:
    for theirs, ours in zip(*both(**settings), strict=True):
        for _ in range(4):
            expected, found = outcome(theirs, args, given), outcome(ours, args, given)
            assert found == expected


def test_two_threads_that_make_the_last_instance_at_once_end_it() -> None:
    made = both(frozen=True)[1][1]
    vars(made)["__init__"].left = -1
    made(sheets=3)
    assert inspect.isfunction(vars(made)["__init__"])


def test_what_a_class_defines_stays() -> None:
    @records.dataclass(frozen=True)
    class Own:
        value: int = 0

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    assert (repr(Own(1)), hash(Own(1)), Own(1) == Own(2)) == ("own", 7, True)


@records.dataclass(frozen=True)
class Pickled:
    """Pickles know a class by its name."""

    value: int


@records.dataclass(frozen=True, slots=True)
class Narrow:
    """As pickled as the wide one."""

    value: int
    also: int = 2


def test_with_slots_there_is_nothing_else() -> None:
    narrow: Any = Narrow(3)
    assert not hasattr(narrow, "__dict__")
    assert pickle.loads(pickle.dumps(narrow)) == copy.deepcopy(narrow) == Narrow(3, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        narrow.value = 4


def test_nothing_is_made_before_it_is_used() -> None:
    made = both(frozen=True)[1][1]
    late = {"__init__", "__match_args__", "__dataclass_fields__"}
    assert {type(vars(made)[name]).__name__ for name in late} == {"_OnDemand", "_Init"}
    made(sheets=3)
    made(sheets=3)
    assert not inspect.isfunction(vars(made)["__init__"])
    made(sheets=3)
    assert inspect.isfunction(vars(made)["__init__"])
    assert isinstance(vars(made)["__dataclass_fields__"], dict)


def test_pickled_and_back() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)


def test_lines_are_frozen_or_not_whichever_decorator_made_them() -> None:
    decorators: list[Any] = [records.dataclass, dataclasses.dataclass]
    for first, second in [decorators, decorators[::-1]]:
        base: Any = first(frozen=True)(type("Base", (), body(Paper)))
        assert repr(second(frozen=True)(type("Sub", (base,), {}))(2)).startswith("Sub(sheets=2")
        with pytest.raises(TypeError):
            second(type("Sub", (base,), {}))
