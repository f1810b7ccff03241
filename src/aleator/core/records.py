"""A ``dataclass`` that compiles nothing until a class is used, as a process defines over a hundred of them.

The standard library's decorator compiles six functions for a frozen class, each separately; that took a third
of the time of ``import aleator``.  This one compiles only ``__init__``, when the third instance is made.  Most
classes have one or two instances in a process, whose attributes are set one by one.  The other methods are
closures.  Fields are computed when first needed.  They are the standard library's, so that
``dataclasses.field``, ``fields``, ``replace`` and ``asdict`` work, and classes of both decorators can inherit
from one another.  What the standard library refuses when a class is defined, such as a list as a default, is
refused when its first instance is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, FrozenInstanceError
from functools import cache, partial
from inspect import get_annotations
from reprlib import recursive_repr
from threading import RLock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False, slots=False):
        """Make a dataclass; for ``order`` and ``InitVar`` use the standard library's decorator."""

        def decorate(cls: type) -> type:
            return _made(cls, frozen, eq, repr, kw_only, slots)

        return decorate if cls is None else decorate(cls)


_Field = dataclasses.Field[Any]
_Choice = Callable[[_Field], bool]
_Names = Callable[[], tuple[str, ...]]
_MAKING = RLock()
"""Held by the thread that makes a class's fields or ``__init__`` on first use."""


def _made(cls: type, frozen: bool, eq: bool, repr: bool, kw_only: bool, slots: bool) -> type:
    bases = [vars(base) for base in cls.__mro__[:0:-1] if "__dataclass_params__" in vars(base)]
    if bases and any(base["__dataclass_params__"].frozen for base in bases) is not frozen:
        raise TypeError(f"{cls.__qualname__}: all or none of the classes in a line are frozen")
    types = get_annotations(cls)
    defaults = {name: vars(cls)[name] for name in types if name in vars(cls)}
    if slots:
        cls = _with_slots(cls, tuple(_own(types)))
    else:
        _set_defaults(cls, defaults)
    settings: Any = cls
    settings.__dataclass_params__ = _PARAMETERS[frozen]
    methods: dict[str, Any] = {
        "__init__": _Init(cls, "__init__", lambda: _init(cls, _fields(cls), frozen))
    }
    if repr:
        methods["__repr__"] = _repr(_names(cls, lambda each: each.repr))
    if eq:
        methods["__eq__"] = _eq(_names(cls, lambda each: each.compare))
        if vars(cls).get("__hash__") is None:  # also the case if the class has an __eq__
            hashed = _names(cls, lambda each: each.compare if each.hash is None else each.hash)
            settings.__hash__ = _hash(hashed) if frozen else None
    if frozen:
        all_names = _names(cls, lambda each: True)
        methods["__setattr__"] = _refusal(cls, all_names, "__setattr__", "assign to")
        methods["__delattr__"] = _refusal(cls, all_names, "__delattr__", "delete")
        if slots:
            methods["__getstate__"], methods["__setstate__"] = _state(all_names)
    methods["__match_args__"] = _OnDemand(
        cls,
        "__match_args__",
        lambda: tuple(each.name for each in _fields(cls) if each.init and not each.kw_only),
    )
    for name, method in methods.items():
        if name not in vars(cls):
            setattr(cls, name, method)
    settings.__dataclass_fields__ = _OnDemand(
        cls, "__dataclass_fields__", lambda: _all_fields(cls, types, defaults, kw_only)
    )
    return cls


def _set_defaults(cls: type, defaults: dict[str, Any]) -> None:
    """Make the fields' defaults attributes of the class."""
    for name, default in defaults.items():
        if isinstance(default, dataclasses.Field):
            if default.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default.default)


class _OnDemand:
    """A class attribute that makes its replacement when first read."""

    def __init__(self, cls: Any, name: str, make: Callable[[], Any]) -> None:
        self._cls, self._name, self._make = cls, name, make

    def __get__(self, instance: object, owner: type) -> Any:
        with _MAKING:
            if vars(self._cls)[self._name] is self:
                setattr(self._cls, self._name, self._make())
        made = vars(self._cls)[self._name]
        return made.__get__(instance, owner) if callable(made) else made


class _Init(_OnDemand):
    """An ``__init__`` that is compiled only after the first instances."""

    left = 2

    def __get__(self, instance: object, owner: type) -> Any:
        # Below 0 if two threads made the last one.  A class: inspect.signature asks so from Python 3.13 on.
        if instance is None or self.left <= 0 or isinstance(instance, type):
            return super().__get__(instance, owner)
        self.left -= 1
        return partial(self._set, instance)

    def _set(self, instance: Any, /, *args: Any, **given: Any) -> None:
        fields = _fields(self._cls)
        taken = [each.name for each in fields if each.init and not each.kw_only]
        bound = dict(zip(taken, args, strict=False))
        known = {each.name: each for each in fields if each.init}
        # Both are MISSING
        needed = {name for name, each in known.items() if each.default is each.default_factory}
        whole = needed <= bound.keys() | given.keys() <= known.keys()
        if len(args) > len(taken) or bound.keys() & given.keys() or not whole:
            super().__get__(instance, self._cls)(*args, **given)  # raises the right error
        bound |= given
        put = object.__setattr__ if self._cls.__dataclass_params__.frozen else setattr
        for each in fields:
            if each.name in bound:
                put(instance, each.name, bound[each.name])
            elif each.default_factory is not MISSING:
                put(instance, each.name, each.default_factory())
            elif each.init:
                put(instance, each.name, each.default)
        if hasattr(instance, "__post_init__"):
            instance.__post_init__()


def _fields(cls: Any) -> tuple[_Field, ...]:
    """The fields of a class and of its bases, without class variables."""
    return dataclasses.fields(cls)


def _all_fields(
    cls: type, types: dict[str, Any], defaults: dict[str, Any], kw_only: bool
) -> dict[str, _Field]:
    fields: dict[str, _Field] = {}
    above: tuple[Any, ...] = cls.__mro__[:0:-1]
    for base in above:
        if "__dataclass_params__" in vars(base):
            fields |= base.__dataclass_fields__
    return fields | _own_fields(cls, types, defaults, kw_only)


def _own(types: dict[str, Any]) -> dict[str, Any]:
    return {
        name: each
        for name, each in types.items()
        if not str(each).removeprefix("typing.").startswith("ClassVar")
    }


def _with_slots(cls: type, names: tuple[str, ...]) -> type:
    """Remake the class with slots for the names that no base class has."""
    body = {
        name: value
        for name, value in vars(cls).items()
        if name not in (*names, "__dict__", "__weakref__")
    }
    above = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    body["__slots__"] = tuple(name for name in names if name not in above)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _own_fields(
    cls: type, types: dict[str, Any], defaults: dict[str, Any], kw_only: bool
) -> dict[str, _Field]:
    """The fields that a class adds."""
    own = _own(types)
    # Without a docstring the decorator would make one from the signature; it would search types given as
    # strings with regular expressions.
    bare: Any = type(
        cls.__name__,
        (),
        {
            "__module__": cls.__module__,
            "__doc__": "-",
            "__annotations__": dict.fromkeys(own, object),
            **{name: defaults[name] for name in own if name in defaults},
        },
    )
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, match_args=False)(bare)
    made: dict[str, _Field] = bare.__dataclass_fields__
    for name, field in made.items():
        field.type = own[name]
    return made


class _Made:
    """A default that is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_ORDINARY = {"init": True, "repr": True, "eq": True, "order": False, "unsafe_hash": False}
_PARAMETERS = {frozen: SimpleNamespace(**_ORDINARY, frozen=frozen) for frozen in (False, True)}
"""The parameters by which the standard library checks inheritance."""


def _init(cls: type, fields: Iterable[_Field], frozen: bool) -> Callable[..., None]:
    given: dict[bool, list[str]] = {False: [], True: []}  # by whether it is keyword-only
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


def _names(cls: type, chosen: _Choice) -> _Names:
    """A function that returns the names of fields, looked up once."""
    return cache(lambda: tuple(each.name for each in _fields(cls) if chosen(each)))


def _values(self: object, names: _Names) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in names()])


def _repr(names: _Names) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names())
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _eq(names: _Names) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self, names) == _values(other, names)

    return __eq__


def _hash(names: _Names) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(_values(self, names))

    return __hash__


def _state(names: _Names) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The ``__getstate__`` and ``__setstate__`` of a frozen class with slots."""

    def __getstate__(self: object) -> tuple[Any, ...]:
        return _values(self, names)

    def __setstate__(self: object, state: tuple[Any, ...]) -> None:
        for name, value in zip(names(), state, strict=True):
            object.__setattr__(self, name, value)

    return __getstate__, __setstate__


def _refusal(cls: type, names: _Names, method: str, verb: str) -> Callable[..., None]:
    def refuse(self: Any, name: str, *value: object) -> None:
        if type(self) is cls or name in names():
            raise FrozenInstanceError(f"cannot {verb} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    refuse.__name__ = method
    return refuse
