"""Options of models, contexts and generations: frozen dataclasses of values, each field declared once.

A field declares everything about its option::

    @dataclass(frozen=True, kw_only=True)
    class PaperOptions(Options):
        sheets: int = option("how many sheets", 3, low=1, flags=("-s", "--sheets"))

From this come the check of a value, the keyword arguments of the functions that take it (:func:`takes`),
their types for editors and mypy (``keywords.pyi``, by tools/stubs.py), command-line flags with their help,
the tables of docs/options.md and a JSON schema.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.parameter import Parameter, nearest
from aleator.core.records import dataclass

_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}

UNSPOKEN = 1e9
"""Bounds from here on are left out of a range's description."""

Made = TypeVar("Made", bound="Options")
Taker = TypeVar("Taker", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option(Parameter):
    """The declaration of an option; :class:`Parameter` says what its fields mean."""

    shown: str = ""  # the default as help shows it, if the value itself says little
    off_flags: tuple[str, ...] = ()  # command-line flags that turn a switch off
    off_help: str = ""  # help of these
    valued: bool = False  # on the command line the switch is followed by on or off
    # Whether it concerns a generation, not this process or machine, so that a request over a network may set it
    portable: bool = True

    @property
    def default(self) -> str:
        """The default in words."""
        if self.shown:
            return self.shown
        if isinstance(self.neutral, bool):
            return "on" if self.neutral else "off"
        return "none" if self.neutral in (None, (), "") else str(self.neutral)

    def check(self, value: Any) -> Any:
        """Check a value as :meth:`Parameter.check` does; a count must not be given as 1.0."""
        if self.type is int and isinstance(value, (float, np.floating)):
            self._refuse(value, "is not an integer")
        if self.high is not None and isinstance(value, int) and value > self.high >= UNSPOKEN:
            self._refuse(value, f"is out of range, whose end is {self.high:.10g}")
        return super().check(value)

    @property
    def _allowed(self) -> str:
        if not (within := in_words(self)):
            return f"the default is {self.default}"
        return f"give {within} (default: {self.default})"


def in_words(parameter: Parameter) -> str:
    """The choices, the range or the number of a parameter in words, without bounds that are never reached."""
    if parameter.choices:
        return " or ".join(parameter.choices)
    if parameter.most is not None:
        return f"at most {parameter.most}"
    low, high = (
        None if bound is None or abs(bound) >= UNSPOKEN else f"{bound:.10g}"
        for bound in (parameter.low, parameter.high)
    )
    if low is None:
        return "" if high is None else f"up to {high}"
    within = f"{low} or more" if high is None else f"{low} to {high}"
    return within if parameter.beyond is None else f"{within}, or {parameter.beyond:.10g}"


def option(help: str, default: Any, **declared: Any) -> Any:
    """Declare a field of :class:`Options`; ``declared`` are other fields of :class:`Option`."""
    return dataclasses.field(
        default=default, metadata={"option": {"help": help, "neutral": default, **declared}}
    )


host_option = partial(option, portable=False)
"""Declare an option of this process or machine, which no request over a network may set."""


class Options:
    """Base of options: frozen dataclasses that hold only checked values."""

    def __post_init__(self) -> None:
        """Check every value that is not the default, and store it as its declared type."""
        for name, declared in declarations(type(self)).items():
            value = getattr(self, name)
            if value is not declared.neutral:
                object.__setattr__(self, name, declared.check(value))

    @classmethod
    def of(cls: type[Made], given: Mapping[str, Any]) -> Made:
        """Make the options from keyword arguments; ParameterError for a wrong name or value."""
        return cls(**resolved(given, declarations(cls)))

    def replace(self: Made, **changes: Any) -> Made:
        """Return a copy with other values; errors are those of :meth:`of`."""
        return type(self)(**{**self.values(), **resolved(changes, declarations(type(self)))})

    def values(self) -> dict[str, Any]:
        """All values by name."""
        return {name: getattr(self, name) for name in declarations(type(self))}


_declarations: dict[int, Mapping[str, Option]] = {}


def declarations(cls: type[Options]) -> Mapping[str, Option]:
    """The declarations of a class's options by name, in order."""
    if id(cls) not in _declarations:
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls)  # type: ignore[arg-type]
        _declarations[id(cls)] = {
            field.name: _declared(field) for field in fields if "option" in field.metadata
        }
    return _declarations[id(cls)]


def _declared(field: dataclasses.Field[Any]) -> Option:
    words = [word.strip() for word in str(field.type).split("|")]
    kinds = [word for word in words if word != "None"]
    kind = _KINDS.get(kinds[0], object) if len(kinds) == 1 else object
    if kinds[0].startswith("tuple["):
        kind = tuple
    return Option(
        **{
            "name": field.name,
            "type": kind,
            "optional": "None" in words,
            "annotation": str(field.type),
            **field.metadata["option"],
        }
    )


def resolved(
    given: Mapping[str, Any], known: Mapping[str, Parameter], also: Iterable[str] = ()
) -> dict[str, Any]:
    """Return keyword arguments under the names of their declarations, or of ``also``; values are unchanged.

    Raises:
        ParameterError: a name is unknown (the error says the nearest), or an option is given twice.
    """
    also = set(also)
    aliases = {alias: name for name, each in known.items() for alias in each.aliases}
    made: dict[str, Any] = {}
    for word, value in given.items():
        name = aliases.get(word, word)
        if name not in known and name not in also:
            raise ParameterError(
                word,
                f"there is no option {word!r}: {nearest(word, [*known, *aliases, *sorted(also)])}",
            )
        if name in made:
            raise ParameterError(f"{name} is given twice, once as {word}")
        made[name] = value
    return made


def takes(*declared: Iterable[Parameter]) -> Callable[[Taker], Taker]:
    """Give a function with ``**options`` its full signature and documentation.

    ``inspect.signature`` and ``help`` then show every option with its type and default.  In the docstring
    the line ``options: ...`` of the section Args becomes a list of them.  A class whose ``__init__`` has
    ``**options`` can be decorated, too.
    """
    parameters = {each.name: each for group in declared for each in group}
    options = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.neutral, annotation=each.typing
        )
        for each in parameters.values()
    ]

    @cache  # for the functions that share a decorator
    def list_of(start: str) -> str:
        more = start + " " * 4
        texts = [f"{each.name}: {described(each)}." for each in parameters.values()]
        return "\n".join(filled(text, start, more) for text in texts)

    def decorate(taker: Taker) -> Taker:
        function: Any = vars(taker)["__init__"] if isinstance(taker, type) else taker
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *options])
        if taker.__doc__:
            pattern = r"^( +)options: .*(\n\1 +.*)*"
            text = inspect.cleandoc(taker.__doc__)  # as Python 3.13 and later give it
            taker.__doc__ = re.sub(
                pattern, lambda found: list_of(found[1]), text, flags=re.MULTILINE
            )
        return taker

    return decorate


@cache  # most lists of options appear in several docstrings
def filled(text: str, first: str, more: str, width: int = 110) -> str:
    """Fill a text into lines; the first begins with ``first``, the others with ``more``.

    An import fills hundreds of texts, for which the module ``textwrap`` takes ten times as long.
    """
    lines, line, start = [], first + " ".join(text.split()), len(first)
    while len(line) > width:
        end = line.rfind(" ", start, width + 1)
        end = line.find(" ", width) if end < 0 else end  # a word that is longer than a line
        if end < 0:
            break
        lines.append(line[:end])
        line, start = more + line[end + 1 :], len(more)
    return "\n".join([*lines, line])


def described(parameter: Parameter, default: Any = ...) -> str:
    """Help, range and default in one sentence; ``default`` replaces the parameter's own."""
    if isinstance(parameter, Option):
        shown = parameter.default
    else:
        shown = str(parameter.neutral if default is ... else default)
    plain = parameter.type in (int, float) or parameter.choices
    if not isinstance(parameter, Option) and not plain:
        return parameter.help
    bounds = in_words(parameter)
    return f"{parameter.help} ({bounds}{'; ' if bounds else ''}default: {shown})"


def affects_text(parameter: Parameter) -> bool:
    """Whether a parameter is none of this process or machine alone."""
    return not isinstance(parameter, Option) or parameter.portable


def json_schema(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """A JSON schema of an object with these parameters, without those of this process or machine."""
    return {
        "type": "object",
        "properties": {
            each.name: each.as_json_schema() for each in parameters if affects_text(each)
        },
        "additionalProperties": False,
    }
