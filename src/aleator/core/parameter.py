"""Parameters and options, each declared once.

A declaration holds a parameter's name, type, range, default, other spellings, command-line flags and help, and
says how to read it from text or JSON.  ``SamplingParams``, the options of models, contexts and generations
(core/options.py), signatures, the command line, the documentation tables and the range tests are made from it.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from aleator.core.errors import DialectWarning, ParameterError
from aleator.core.integers import exact
from aleator.core.records import dataclass

_TRUE, _FALSE = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_JSON_TYPES: dict[type, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


_INFINITE = (math.inf, -math.inf)

NUMERICS = ("portable", "llama.cpp")

ENGINES = ("llama.cpp", "transformers", "vLLM", "SGLang", "mlx-lm")
"""Engines whose values for "off" are known; Ollama's are llama.cpp's."""


@dataclass(frozen=True)
class Off:
    """Numbers that mean "off" in other engines, but are out of range or mean something else here.

    :func:`translated` accepts them.
    """

    where: Literal["below", "above"] | float  # "below" or "above" the range, or the only number
    engines: tuple[str, ...]  # the ENGINES in which they mean "off"
    value: float  # the number in the range with the same effect
    effect: str  # the effect, as a warning describes it


@dataclass(frozen=True)
class Parameter:
    """The declaration of one parameter."""

    name: str  # the name in Python, JSON and documentation
    # ``int``, ``float``, ``bool`` or ``str``; anything else is checked by ``checker``, or by its sampler
    type: type
    neutral: Any  # the default; for a sampling parameter the value that does nothing
    help: str  # one sentence for ``--help`` and the documentation
    choices: tuple[str, ...] = ()  # for text: the allowed words
    # For a list whose entries each cost something in every step: their maximum number
    most: int | None = None
    # Lower bound of a number, inclusive unless ``open_low``; None: unbounded
    low: float | None = None
    high: float | None = None  # upper bound of a number, inclusive; None: unbounded
    open_low: bool = False  # the lower bound itself is not allowed
    # One number outside these bounds that is also allowed and always means "off"
    beyond: float | None = None
    # What other engines take for "off"; refused here unless their dialect is in use
    off: tuple[Off, ...] = ()
    aliases: tuple[str, ...] = ()  # other spellings that keyword arguments accept
    flags: tuple[str, ...] = ()  # command-line flags, the first one shown in help
    metadata: str | None = None  # key under ``general.sampling.`` in a GGUF file, if any
    optional: bool = False  # None is also a value
    # Turns a value of the declared type into the stored one, or raises ParameterError
    checker: Callable[[Any], Any] | None = None
    # Turns a word of the command line into a value, or a list of words if ``type`` is ``tuple``; None: by
    # ``type``
    reader: Callable[[Any], Any] | None = None
    # On the command line ``\n``, ``\t`` and ``\r`` stand for a line break, a tab and a return
    escapes: bool = False
    # The accepted types, as signatures show them; "": made from ``type``
    annotation: str = ""
    metavar: str = ""  # placeholder of the value in ``--help``; "": made from ``type``
    # JSON schema of the value; None: made from ``type``, ``choices`` and bounds
    schema: Mapping[str, Any] | None = None

    @property
    def interval(self) -> str:
        """The range in mathematical notation, such as ``[0, 1)``."""
        low = "(-inf" if self.low is None else "[("[self.open_low] + self.as_text(self.low)
        high = "inf)" if self.high is None else self.as_text(self.high) + "]"
        return f"{low}, {high}" + (
            "" if self.beyond is None else f" or {self.as_text(self.beyond)}"
        )

    def as_text(self, bound: float) -> str:
        """A bound as text; integers with all digits."""
        return str(int(bound)) if self.type is int else f"{bound:g}".replace("e+0", "e")

    @property
    def typing(self) -> str:
        """The accepted types, in the notation of annotations."""
        return self.annotation or self.type.__name__ + (" | None" if self.optional else "")

    @property
    def single(self) -> bool:
        """Whether a value is a single number, word or switch, so that a list must mean several values."""
        words = {word.strip() for word in self.typing.split("|")}
        return words <= {"int", "float", "bool", "str", "None"}

    def check(self, value: Any) -> Any:
        """Return the value as this parameter stores it; ParameterError if its type or range is wrong.

        Integers are accepted for floats and integral floats for integers; booleans for neither.
        """
        if value is None and self.optional:
            return None
        if self.choices and not (isinstance(value, str) and value in self.choices):
            raise ParameterError(
                f"{self.name}={value!r:.80} must be one of {', '.join(self.choices)}"
            )
        if self.type in (int, float):
            value = self._number(value)
        elif self.type is bool and not isinstance(value, bool | np.bool_):
            raise ParameterError(f"{self.name}={value!r:.80} is not a switch: give True or False")
        elif self.type is str and not isinstance(value, str):
            raise ParameterError(f"{self.name}={value!r:.80} is not text")
        made = value if self.checker is None else self.checker(value)
        if self.most is not None and len(made) > self.most:
            raise ParameterError(f"{self.name} has {len(made)} entries: give at most {self.most}")
        return made

    def outside(self, number: float) -> str:
        """Where a number lies: "below" or "above" the range, or "" within it."""
        if number == self.beyond:
            return ""
        if self.low is not None and (number < self.low or (self.open_low and number == self.low)):
            return "below"
        if self.high is not None and number > self.high:
            return "above"
        return ""

    def parse(self, text: str | list[str]) -> Any:
        """Read and check a value from a word of the command line, or from all words of a ``tuple``."""
        return self.check(self.read(text))

    def read(self, text: str | list[str]) -> Any:
        """Read a value from the command line as :meth:`parse` does, without the check."""
        if self.reader is not None:
            return self.reader(text)
        if isinstance(text, list):
            return text
        if self.type is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ParameterError(f"{self.name}={text!r} must be on or off")
            return text.lower() in _TRUE
        if self.type in (int, float):
            return read_number(self.name, self.type, text)
        return text

    def as_json_schema(self) -> dict[str, Any]:
        """A JSON schema of the values, with help and default."""
        made: dict[str, Any] = dict(self.schema or {})
        if self.schema is None and self.type in _JSON_TYPES:
            kind = _JSON_TYPES[self.type]
            made["type"] = [kind, "null"] if self.optional else kind
            if self.choices:
                made["enum"] = [*self.choices, *([None] if self.optional else [])]
            within: dict[str, Any] = {}
            if self.low is not None:
                within["exclusiveMinimum" if self.open_low else "minimum"] = self.low
            if self.high is not None:
                within["maximum"] = self.high
            made |= within if self.beyond is None else {"anyOf": [within, {"const": self.beyond}]}
        if self.most is not None:
            made["maxItems"] = self.most
        made["description"] = self.help
        made["default"] = list(self.neutral) if isinstance(self.neutral, tuple) else self.neutral
        return made

    @property
    def _allowed(self) -> str:
        """The allowed values, in words."""
        kind = "a whole number" if self.type is int else "a number"
        return f"give {kind} in {self.interval} (default: {self.neutral!r})"

    def _number(self, value: Any) -> Any:
        if not _is_number(value):
            self._refuse(value, f"is of type {type(value).__name__}, not a number")
        try:
            number = float(value)
        except OverflowError:  # its digits may be too many to show
            raise ParameterError(
                f"{self.name} has more than 308 digits, out of range: {self._allowed}"
            ) from None
        if math.isnan(number):
            self._refuse(value, "is not a number")
        if self.type is int and (math.isinf(number) or number != math.floor(number)):
            self._refuse(value, "is not a whole number")
        if self.outside(number) or math.isinf(number):
            self._refuse(value, "is out of range")
        return int(value) if self.type is int else number

    def _refuse(self, value: Any, reason: str) -> NoReturn:
        raise ParameterError(f"{self.name}={value!r:.80} {reason}: {self._allowed}")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real | np.generic) and not isinstance(value, bool | np.bool_)


def warn(message: str) -> None:
    """Warn a caller in Python."""
    warnings.warn(message, DialectWarning, stacklevel=3)


def translated(
    parameter: Parameter,
    value: Any,
    engines: Iterable[str],
    tell: Callable[[str], None] = warn,
    word: str = "",
) -> Any:
    """Translate a value as users of other engines write it into the range of a parameter.

    A value that means "off" in none of the engines, or is not a number, is returned unchanged, for the check.
    With several engines a number in the range keeps its meaning here.  ``tell`` gets a sentence for each number
    that is replaced; ``word`` is the spelling of the parameter.
    """
    if not _is_number(value) or value in _INFINITE:
        return value
    where, dialect = parameter.outside(value), set(engines)  # "" for NaN
    for off in parameter.off:
        takes = [engine for engine in off.engines if engine in dialect]
        if takes and off.where in (where, value) and (where or dialect <= set(takes)):
            reason = f"; here the range is {parameter.interval}" if where else ""
            tell(
                f"{word or parameter.name}={value!r} is off in {takes[0]}{reason}, so it becomes "
                f"{off.value!r}, which {off.effect}"
            )
            return off.value
    return value


def read_number(name: str, kind: type, text: str) -> float:
    """Read an ``int`` or ``float`` from text; the error names the parameter."""
    try:
        number: float = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ParameterError(f"{name}={text!r} is not {wanted}") from None
    return number


def check_callable(name: str, value: object) -> None:
    """Refuse what is neither a function nor None."""
    if value is not None and not callable(value):
        raise ParameterError(f"{name}={value!r:.60} cannot be called: give a function, or None")


def check_replaceable(name: str, path: Path) -> None:
    """Refuse to replace what is there and no file, such as a device, which would be lost."""
    if path.exists() and not path.is_file():
        raise ParameterError(
            f"{name}={path} is no file, and is not replaced: give the name of a file"
        )


def check_numerics(numerics: str) -> str:
    """Return ``numerics``; ParameterError unless it is "portable" or "llama.cpp"."""
    if numerics not in NUMERICS:
        raise ParameterError(
            f"numerics={numerics!r} is not known: choose 'portable' or 'llama.cpp'"
        )
    return numerics


def check_unicode(name: str, text: str) -> str:
    """Return a text; ParameterError if it has half of a surrogate pair, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(
            name,
            f"{name}={text!a:.80}: {text[error.start]!a} is half of a surrogate pair: leave it out",
        ) from None
    return text


def single(value: float) -> float:
    """The float32 nearest to a value, as kernels use most parameters."""
    return float(np.float32(value))


def declare(parameter: Parameter) -> Any:
    """Make a dataclass field whose default is the parameter's neutral value."""
    return dataclasses.field(default=parameter.neutral, metadata={"parameter": parameter})


def unique(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    """Index declarations by name; samplers share some, such as ``min_keep`` and ``seed``."""
    index: dict[str, Parameter] = {}
    for parameter in parameters:
        known = index.setdefault(parameter.name, parameter)
        if known is not parameter and known != parameter:
            raise ValueError(f"{parameter.name} is declared twice, differently")
    return index


def closest(word: str, known: Iterable[str], n: int) -> list[str]:
    """At most ``n`` of the known words that are similar to ``word``, the most similar first."""
    from difflib import get_close_matches  # only for error messages

    return get_close_matches(word, list(known), n=n)


def nearest(word: str, known: Iterable[str]) -> str:
    """The suggestion for an unknown word: the closest known ones, or all of them."""
    words = list(known)
    close = closest(word, words, 3)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(words)}"


# Declarations that several samplers share.
MIN_KEEP = Parameter(
    "min_keep", int, 0, "let truncating samplers keep at least this many tokens",
    low=0, high=2**31 - 1, flags=("--min-keep",),
)  # fmt: skip


def check_seed(seed: int | None) -> int | None:
    """Return a seed in [0, 2^64), or ``None``, for which the system gives one."""
    if seed is None:
        return None
    number = exact(seed)
    if number is None:
        raise ParameterError(f"seed={seed!r} must be an integer, -1 or None")
    if not -1 <= number < 2**64:
        raise ParameterError(
            f"seed={number} is out of range: give 0 to 18446744073709551615, or -1 for random"
        )
    return None if number == -1 else number


SEED = Parameter(
    "seed", object, None,
    "seed of the random draws, 64 bits; -1 or none draws one from the system and reports it",
    flags=("-s", "--seed"), checker=check_seed, reader=partial(read_number, "seed", int),
    annotation="int | None",
    schema={"type": ["integer", "null"], "minimum": -1, "maximum": 2**64 - 1},
)  # fmt: skip
