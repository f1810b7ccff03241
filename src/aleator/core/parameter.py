"""Parameters and options, each declared once.

A declaration holds the name, type, range, default, other spellings, command-line flags and help of a
parameter, and how it is read from text or JSON.  ``SamplingParams``, the options of models, contexts and
generations (core/options.py), signatures, the command line, the documentation tables and the range tests are
all made from it.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NoReturn

import numpy as np

from aleator.core.errors import DialectWarning, ParameterError
from aleator.core.records import dataclass

_TRUE, _FALSE = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_JSON_TYPES: dict[type, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


_INFINITE = (math.inf, -math.inf)
_FAR = 1e6
"""From here on a bound keeps numbers sane, and says nothing to a reader."""

ENGINES = ("llama.cpp", "transformers", "vLLM", "SGLang", "mlx-lm")
"""Engines whose words for "off" are known; Ollama's are llama.cpp's."""


@dataclass(frozen=True)
class Off:
    """Numbers that other engines take for "off", and that are out of range here or mean something else.

    :func:`spoken` takes them.

    Attributes:
        where: "below" or "above" the range, or the only number.
        engines: which of :data:`ENGINES` take them so.
        value: the number in the range that does the same.
        effect: what it does, as a warning says it.
    """

    where: Literal["below", "above"] | float
    engines: tuple[str, ...]
    value: float
    effect: str


@dataclass(frozen=True)
class Parameter:
    r"""The declaration of one parameter.

    Attributes:
        name: the word that Python, JSON and documentation use.
        type: ``int``, ``float``, ``bool`` or ``str``; anything else is checked by ``checker``, or by its
            sampler.
        neutral: the default: of a sampling parameter the value that does nothing.
        help: one sentence for ``--help`` and the documentation.
        choices: for text: the words that are allowed.
        most: of a list: entries at most.
        low: lower bound of a number, inclusive unless ``open_low``; None: unbounded.
        high: upper bound of a number, inclusive unless ``open_high``; None: unbounded.
        open_low: the lower bound itself is not allowed.
        open_high: the upper bound itself is not allowed.
        beyond: one number outside these bounds that is allowed too: everywhere it means "off".
        off: what other engines take for "off" and is refused here, but where their dialect is spoken.
        aliases: other spellings that keyword arguments accept.
        flags: command-line flags, the first one shown in help.
        metadata: key under ``general.sampling.`` in a GGUF file, if it has one.
        optional: None is a value too.
        checker: turns a value that has the declared type into the one that is kept, or raises ParameterError.
        reader: turns a word of the command line into a value, or where ``type`` is ``tuple`` a list of words;
            None: by ``type``.
        escapes: on the command line ``\n``, ``\t`` and ``\r`` stand for a line break, a tab and a return.
        annotation: the types that are accepted, as signatures show them; "": made from ``type``.
        metavar: what stands for the value in ``--help``; "": made from ``type``.
        schema: JSON schema of the value; None: made from ``type``, ``choices`` and bounds.
    """

    name: str
    type: type
    neutral: Any
    help: str
    choices: tuple[str, ...] = ()
    most: int | None = None
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    beyond: float | None = None
    off: tuple[Off, ...] = ()
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metadata: str | None = None
    optional: bool = False
    checker: Callable[[Any], Any] | None = None
    reader: Callable[[Any], Any] | None = None
    escapes: bool = False
    annotation: str = ""
    metavar: str = ""
    schema: Mapping[str, Any] | None = None

    @property
    def interval(self) -> str:
        """The range in mathematical notation, such as ``[0, 1)``."""
        begin, end = "[("[self.open_low], "])"[self.open_high]
        low = "(-inf" if self.low is None else begin + self._shown(self.low)
        high = "inf)" if self.high is None else self._shown(self.high) + end
        return f"{low}, {high}{self._or_beyond}"

    @property
    def bounds(self) -> str:
        """The range as a reader expects it, such as ``>= 0``, without bounds that only keep numbers sane."""
        low = self.low if self.low is not None and self.low > -_FAR else None
        high = self.high if self.high is not None and self.high < _FAR else None
        positive = low is not None and 0 < low <= 1 / _FAR  # all but nothing
        opens = self.open_low or positive
        shown = "0" if positive or low is None else self._shown(low)
        if low is None:
            if high is None:
                return "any"
            return f"{'<' if self.open_high else '<='} {self._shown(high)}"
        if high is None:
            return f"{'>' if opens else '>='} {shown}{self._or_beyond}"
        end = ")" if self.open_high else "]"
        return f"{'(' if opens else '['}{shown}, {self._shown(high)}{end}{self._or_beyond}"

    def _shown(self, bound: float) -> str:
        """A bound, whole numbers with all digits."""
        return str(int(bound)) if self.type is int else f"{bound:g}".replace("e+0", "e")

    @property
    def _or_beyond(self) -> str:
        return "" if self.beyond is None else f" or {self._shown(self.beyond)}"

    @property
    def typing(self) -> str:
        """The types that are accepted, in the notation of annotations."""
        return self.annotation or self.type.__name__ + (" | None" if self.optional else "")

    @property
    def single(self) -> bool:
        """Whether a value is one number, word or switch, so that a list can only mean several values."""
        words = {word.strip() for word in self.typing.split("|")}
        return words <= {"int", "float", "bool", "str", "None"}

    def check(self, value: Any) -> Any:
        """The value as this parameter keeps it; ParameterError if it has another type or is out of range.

        Integers are accepted for floats and integral floats for integers; booleans for neither.
        """
        if value is None and self.optional:
            return None
        if self.choices and not (isinstance(value, str) and value in self.choices):
            raise ParameterError(
                self.name, f"{self.name}={value!r:.80} must be one of {', '.join(self.choices)}"
            )
        if self.type in (int, float):
            value = self._number(value)
        elif self.type is bool and not isinstance(value, bool | np.bool_):
            raise ParameterError(
                self.name, f"{self.name}={value!r:.80} is not a switch: give True or False"
            )
        elif self.type is str and not isinstance(value, str):
            raise ParameterError(self.name, f"{self.name}={value!r:.80} is not text")
        made = value if self.checker is None else self.checker(value)
        if self.most is not None and len(made) > self.most:
            raise ParameterError(
                self.name, f"{self.name} has {len(made)} entries: give at most {self.most}"
            )
        return made

    def outside(self, number: float) -> str:
        """Where a number is beyond the range: "below", "above", or "" within."""
        if number == self.beyond:
            return ""
        if self.low is not None and (number < self.low or (self.open_low and number == self.low)):
            return "below"
        if self.high is not None and (
            number > self.high or (self.open_high and number == self.high)
        ):
            return "above"
        return ""

    def parse(self, text: str | list[str]) -> Any:
        """Read a value from a word, or all words of a ``tuple``, of the command line, and check it."""
        return self.check(self.read(text))

    def read(self, text: str | list[str]) -> Any:
        """Read a value from the command line as :meth:`parse` does, without the check."""
        if self.reader is not None:
            return self.reader(text)
        if isinstance(text, list):
            return text
        if self.type is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ParameterError(self.name, f"{self.name}={text!r} must be on or off")
            return text.lower() in _TRUE
        if self.type in (int, float):
            return read_number(self.name, self.type, text)
        return text

    def as_json_schema(self) -> dict[str, Any]:
        """A JSON schema of the values, with the help and the default."""
        made: dict[str, Any] = dict(self.schema or {})
        if self.schema is None and self.type in _JSON_TYPES:
            kind = _JSON_TYPES[self.type]
            made["type"] = [kind, "null"] if self.optional else kind
            if self.choices:
                made["enum"] = [*self.choices, *([None] if self.optional else [])]
            within: dict[str, Any] = {}
            for bound, exclusive, key in (
                (self.low, self.open_low, "inimum"),
                (self.high, self.open_high, "aximum"),
            ):
                if bound is not None:
                    first = "m" if not exclusive else "exclusiveM"
                    within[first + key] = bound
            made |= within if self.beyond is None else {"anyOf": [within, {"const": self.beyond}]}
        if self.most is not None:
            made["maxItems"] = self.most
        made["description"] = self.help
        made["default"] = list(self.neutral) if isinstance(self.neutral, tuple) else self.neutral
        return made

    @property
    def _allowed(self) -> str:
        """What to give instead."""
        kind = "a whole number" if self.type is int else "a number"
        return f"give {kind} in {self.interval} (default: {self.neutral!r})"

    def _number(self, value: Any) -> Any:
        if not _is_number(value):
            self._refuse(value, f"is of type {type(value).__name__}, not a number")
        try:
            number = float(value)
        except OverflowError:  # its digits may be too many to show
            raise ParameterError(
                self.name, f"{self.name} has more than 308 digits, out of range: {self._allowed}"
            ) from None
        if math.isnan(number):
            self._refuse(value, "is not a number")
        if self.type is int and (math.isinf(number) or number != math.floor(number)):
            self._refuse(value, "is not a whole number")
        if self.outside(number) or math.isinf(number):
            self._refuse(value, "is out of range")
        return int(value) if self.type is int else number

    def _refuse(self, value: Any, reason: str) -> NoReturn:
        raise ParameterError(self.name, f"{self.name}={value!r:.80} {reason}: {self._allowed}")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real | np.generic) and not isinstance(value, bool | np.bool_)


def warn(message: str) -> None:
    """Warn a caller in Python."""
    warnings.warn(message, DialectWarning, stacklevel=3)


def spoken(
    parameter: Parameter,
    value: Any,
    engines: Iterable[str],
    tell: Callable[[str], None] = warn,
    word: str = "",
) -> Any:
    """A value as users of other engines write it, in the range of a parameter.

    What is off in none of the engines, or is no number, comes back as it is, for the check.  With several
    engines a number in the range keeps its meaning here.  ``tell`` gets one sentence for a number that becomes
    another; ``word`` is how the parameter was spelled.
    """
    if not _is_number(value) or value in _INFINITE:
        return value
    where, dialect = parameter.outside(value), set(engines)  # "" of NaN
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
        raise ParameterError(name, f"{name}={text!r} is not {wanted}") from None
    return number


def check_unicode(name: str, text: str) -> str:
    """Return a text, or raise ParameterError where it has half of a surrogate pair, which has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(
            name,
            f"{name}={text!a:.80}: {text[error.start]!a} is half of a surrogate pair: leave it out",
        ) from None
    return text


def single(value: float) -> float:
    """The float32 nearest to a value, which is what kernels make of most parameters."""
    return float(np.float32(value))


def declare(parameter: Parameter) -> Any:
    """Make a dataclass field whose default is the parameter's neutral value."""
    return dataclasses.field(default=parameter.neutral, metadata={"parameter": parameter})


def unique(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    """Index declarations by name; samplers share some, such as ``min_keep`` and ``seed``."""
    index: dict[str, Parameter] = {}
    for parameter in parameters:
        if index.setdefault(parameter.name, parameter) != parameter:
            raise ValueError(f"{parameter.name} is declared twice, differently")
    return index


def closest(word: str, known: Iterable[str], n: int) -> list[str]:
    """At most ``n`` of the known words that are much like one, the likest first."""
    from difflib import get_close_matches  # for messages of errors only

    return get_close_matches(word, list(known), n=n)


def nearest(word: str, known: Iterable[str]) -> str:
    """What to write in place of an unknown word: the closest known ones, or all of them."""
    words = list(known)
    close = closest(word, words, 3)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(words)}"


# Declarations that several samplers share.
MIN_KEEP = Parameter(
    "min_keep", int, 0, "let truncating samplers keep at least this many tokens",
    low=0, high=2**31 - 1, flags=("--min-keep",),
)  # fmt: skip


def check_seed(seed: int | None) -> int | None:
    """Return a seed in [0, 2^64), or ``None`` where one is to be drawn from the system."""
    if seed is None:
        return None
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ParameterError("seed", f"seed={seed!r} must be an integer, -1 or None")
    seed = int(seed)
    if seed == -1:
        return None
    if not 0 <= seed < 2**64:
        raise ParameterError(
            "seed", f"seed={seed} is out of range: give 0 to 18446744073709551615, or -1 for random"
        )
    return seed


SEED = Parameter(
    "seed", object, None,
    "seed of the random draws, 64 bits; -1 or none draws one from the system and reports it",
    flags=("-s", "--seed"), checker=check_seed, reader=partial(read_number, "seed", int),
    annotation="int | None",
    schema={"type": ["integer", "null"], "minimum": -1, "maximum": 2**64 - 1},
)  # fmt: skip
