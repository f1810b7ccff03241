"""``dataclass`` with less to compile, for the hundred and more of them that a process makes when it starts.

The standard library's decorator compiles six functions for a frozen class, each on its own; that was a third of
the time of ``import aleator``.  This one compiles ``__init__``; the other methods are closures.  The fields are
those of the standard library, so that ``dataclasses.field``, ``fields``, ``replace`` and ``asdict`` work, and
classes may inherit from one another whichever decorator made them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, FrozenInstanceError
from inspect import get_annotations
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False):
        """Make a dataclass; for ``slots``, ``order`` and ``InitVar`` take the standard library's decorator.

        Args:
            cls: the class; None: return a decorator.
            frozen: attributes cannot be set.
            eq: make ``__eq__``, and for a frozen class ``__hash__``.
            repr: make ``__repr__``.
            kw_only: fields are given by name.
        """

        def decorate(cls: type) -> type:
            return _made(cls, frozen, eq, repr, kw_only)

        return decorate if cls is None else decorate(cls)


_Field = dataclasses.Field[Any]
_Values = Callable[[Any], tuple[Any, ...]]


def _made(cls: type, frozen: bool, eq: bool, repr: bool, kw_only: bool) -> type:
    fields: dict[str, _Field] = {}
    bases = [vars(base) for base in cls.__mro__[:0:-1] if "__dataclass_fields__" in vars(base)]
    for base in bases:
        fields |= base["__dataclass_fields__"]
    if bases and any(base["__dataclass_params__"].frozen for base in bases) is not frozen:
        raise TypeError(f"{cls.__qualname__}: all or none of the classes in a line are frozen")
    own = _own_fields(cls, kw_only)
    settings: Any = cls
    settings.__dataclass_fields__ = fields | own
    settings.__dataclass_params__ = _PARAMETERS[frozen]
    all_fields = dataclasses.fields(settings)  # but for class variables
    compared = [each for each in all_fields if each.compare]
    methods: dict[str, Any] = {"__init__": _init(cls, all_fields, frozen)}
    if repr:
        methods["__repr__"] = _repr([each.name for each in all_fields if each.repr])
    if eq:
        methods["__eq__"] = _eq(_values(each.name for each in compared))
        hashed = _values(f.name for f in all_fields if (f.compare if f.hash is None else f.hash))
        if vars(cls).get("__hash__") is None:  # which is so too where there is an __eq__
            settings.__hash__ = _hash(hashed) if frozen else None
    if frozen:
        names = frozenset(each.name for each in all_fields)
        methods["__setattr__"] = _refusal(cls, names, "__setattr__", "assign to")
        methods["__delattr__"] = _refusal(cls, names, "__delattr__", "delete")
    methods["__match_args__"] = tuple(f.name for f in all_fields if f.init and not f.kw_only)
    for name, method in methods.items():
        if name not in vars(cls):
            setattr(cls, name, method)
    return cls


def _own_fields(cls: type, kw_only: bool) -> dict[str, _Field]:
    """The fields that a class adds; their defaults become its attributes, as far as they have any."""
    types = {
        name: each
        for name, each in get_annotations(cls).items()
        if not str(each).removeprefix("typing.").startswith("ClassVar")
    }
    defaults = {name: vars(cls)[name] for name in types if name in vars(cls)}
    # Without a docstring the decorator would write one, from a signature that it reads for that; types in
    # words it would search with regular expressions.
    bare: Any = type(
        cls.__name__,
        (),
        {
            "__module__": cls.__module__,
            "__doc__": "-",
            "__annotations__": dict.fromkeys(types, object),
            **defaults,
        },
    )
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, match_args=False)(bare)
    for name, default in defaults.items():
        if isinstance(default, dataclasses.Field):
            if default.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default.default)
    made: dict[str, _Field] = bare.__dataclass_fields__
    for name, field in made.items():
        field.type = types[name]
    return made


class _Made:
    """A default that is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_bare: Any = dataclasses.dataclass(init=False, repr=False, eq=False)
_frozen: Any = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=True)
_PARAMETERS: dict[bool, Any] = {
    False: _bare(type("Empty", (), {"__doc__": "-"})).__dataclass_params__,
    True: _frozen(type("Empty", (), {"__doc__": "-"})).__dataclass_params__,
}
"""What tells a class whether it may inherit from another."""


def _init(cls: type, fields: Iterable[_Field], frozen: bool) -> Callable[..., None]:
    given: dict[bool, list[str]] = {False: [], True: []}  # by whether it is by name only
    lines, types = [], {}
    names: dict[str, Any] = {"_set": object.__setattr__, "_made": _Made()}
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _made else {name}"
            default = "=_made"
            if not field.init:
                value = f"_make_{name}()"
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        else:
            default = ""
        if field.init:
            given[bool(field.kw_only)].append(f"{name}{default}")
            types[name] = field.type
        elif field.default_factory is MISSING:
            continue
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    by_name = ["*", *given[True]] if given[True] else []
    head = f"def __init__({', '.join(['self', *given[False], *by_name])}):\n"
    exec(head + ("\n".join(lines) or " pass"), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {**types, "return": None}
    return init


def _values(names: Iterable[str]) -> _Values:
    chosen = tuple(names)
    return lambda self: tuple([getattr(self, name) for name in chosen])


def _repr(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _eq(values: _Values) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(values: _Values) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _refusal(cls: type, names: frozenset[str], method: str, verb: str) -> Callable[..., None]:
    def refuse(self: Any, name: str, *value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot {verb} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    refuse.__name__ = method
    return refuse
