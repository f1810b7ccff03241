"""Bodies of requests, checked strictly: every field is honoured or refused by name.

An endpoint's fields are a table, :class:`Fields`: its own fields, and the options of a generation from their
declarations.  An unknown name is an error that suggests the nearest known one; so is a value out of range.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import Any, TypeVar

from aleator.chat.message import shown as shown
from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.json_text import MOST_LEVELS, NestingError
from aleator.core.options import affects_text
from aleator.core.parameter import Parameter, closest, nearest, translated
from aleator.engine.prompts import GENERATION, SAMPLING
from aleator.samplers.params import CONSTRAINTS
from aleator.server.accepted import ACCEPTED, Accepted
from aleator.server.errors import ApiError, api_error

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_FIELDS = 512
"""Most fields of a body, more than exist."""
MOST_TOP = 1000
"""Most top log-probabilities at each place of a chat."""
MOST_PROMPTS = 2048
"""Most prompts or texts of one request, as at OpenAI."""
MOST_COMPLETIONS = 128
"""Most completions of one prompt, as at OpenAI."""
LONGEST_NAME = 64
"""Longest name, in letters, for which near ones are searched."""
_ID = re.compile(r"-?[0-9]{1,40}")

Check = Callable[[str, Any], Any]
"""``(name, value)`` to the checked value; ParameterError for a wrong one."""

OPTIONS: Mapping[str, Parameter] = {
    name: each for name, each in {**GENERATION, **SAMPLING}.items() if affects_text(each)
}
"""Options of a generation that a request may set: all that affect the text."""

SPELLINGS: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",  # OpenAI
    "n_predict": "max_tokens",  # llama.cpp
    "seq": "sampler_seq",
    "guided_json": "json_schema",  # vLLM
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "thinking_token_budget": "reasoning_budget",
    "thinking_budget_tokens": "reasoning_budget",  # llama.cpp
    "reasoning_budget_tokens": "reasoning_budget",
    "reasoning_budget_grace_tokens": "reasoning_budget_grace",  # llama.cpp's pull request 27578
}
"""Spellings of other servers, besides the aliases in the declarations."""


@dataclass(frozen=True)
class Field:
    """A field of an endpoint."""

    name: str  # Name in the body
    check: Check  # Checks a value; never called with null, which counts as absent
    default: Any = None  # Value if absent
    required: bool = False  # Whether it must be given
    aliases: tuple[str, ...] = ()  # Other spellings
    option: bool = False  # Whether it is an option of a generation, in a form that ``check`` reads


@dataclass
class Body:
    """The contents of a body."""

    # The endpoint's own fields by name except options; absent ones with their defaults
    own: dict[str, Any]
    # Options of the generation by their names here, unchecked: they are checked where the request is made
    options: dict[str, Any] = field(default_factory=dict)
    # The client's spelling of what it gave, by our names
    spelled: dict[str, str] = field(default_factory=dict)
    lenient: bool = False  # Whether unknown fields within its objects are logged instead of refused

    def force(self, name: str, made: Mapping[str, Any]) -> None:
        """Add options that one of the endpoint's own fields implies."""
        for each in made:
            if each in self.options:
                raise ParameterError(
                    name, f"{name} and {self.spelled[each]} are both given: give one"
                )
            self.spelled[each] = name
        self.options |= made

    @property
    def names(self) -> dict[str, str]:
        """The client's spelling of every parameter that an error may name."""
        forced = [self.spelled[name] for name in ("json_schema", "regex") if name in self.spelled]
        return {**({"grammar": forced[0]} if forced else {}), **self.spelled}

    def spelling(self, **more: str) -> Spelling:
        """Let errors name fields as the client spelled them; ``more`` adds spellings by our names."""
        return Spelling(self, more)


class Spelling:
    """A context; no generator, whose frames an error would hold that they hold, from Python 3.12 on."""

    def __init__(self, body: Body, more: Mapping[str, str]) -> None:
        self._body, self._more = body, more

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ParameterError):
            raise api_error(error, {**self._more, **self._body.names}) from error


class Fields:
    """The fields of an endpoint."""

    def __init__(
        self,
        *own: Field,  # The endpoint's own; one with the name of an option replaces the option
        options: Mapping[str, Parameter] = OPTIONS,  # Options of the generation, by name
        without: Iterable[str] = (),  # Options that this endpoint lacks
        accepted: Mapping[str, Accepted] = ACCEPTED,  # Fields that are ignored
        spellings: Mapping[str, str] = SPELLINGS,  # Other names of options
        # Engines whose extra fields it takes: their values for "off" are accepted and logged
        engines: Iterable[str] = ("llama.cpp", "vLLM"),
        # Options that belong to the dialect, with their declared ranges
        strict: Iterable[str] = ("temperature", "top_p"),
    ) -> None:
        self._engines, self._strict = tuple(engines), frozenset(strict)
        self.own = {each.name: each for each in own}
        left_out = {*without, *self.own}
        self.options = {name: each for name, each in options.items() if name not in left_out}
        self._names = {name: name for name in (*self.own, *self.options)}
        if options:
            self._names["preset"] = "preset"
        for each in self.options.values():
            self._names |= dict.fromkeys(each.aliases, each.name)
        for spelling, name in spellings.items():
            if name in self._names:
                self._names.setdefault(spelling, name)
        for mine in own:
            self._names |= dict.fromkeys(mine.aliases, mine.name)
        self.accepted = {n: each for n, each in accepted.items() if n not in self._names}

    def read(self, body: object, lenient: bool = False) -> Body:
        """Read a body; ``lenient``: log what is unknown or unsupported, and ignore it.

        Raises:
            ApiError: The body is not an object.
            ParameterError: Names the field that is unknown, wrong, given twice, or missing.
        """
        if not isinstance(body, Mapping):
            raise ApiError(400, "the body is not a JSON object")
        if len(body) > MOST_FIELDS:
            raise ApiError(400, f"the body has {len(body)} fields: give at most {MOST_FIELDS}")
        check_depth(body)
        defaults = {name: each.default for name, each in self.own.items() if not each.option}
        made = Body(defaults, lenient=lenient)
        for word, value in body.items():
            why = self._take(made, word, value)
            if why and not lenient:
                raise ParameterError(word, why)
            if why:
                log.warning("ignored: %s", why)
        for name, each in self.own.items():
            if each.required and name not in made.spelled:
                raise ParameterError(name, f"{name} is missing")
        return made

    def _take(self, made: Body, word: str, value: Any) -> str:
        """Take in a field; return why it is unknown or unsupported, or ""."""
        name = self._names.get(word)
        if name is None:
            return self._why_not(word, value)
        if value is None:
            return ""
        if name in made.spelled:
            raise ParameterError(
                word, f"{name} is given twice, as {made.spelled[name]} and as {word}"
            )
        made.spelled[name] = word
        mine = self.own.get(name)
        if mine is None:
            made.options[name] = self._as_given(name, word, value)
        else:
            (made.options if mine.option else made.own)[name] = mine.check(word, value)
        return ""

    def _as_given(self, name: str, word: str, value: Any) -> Any:
        """Convert an option's value from its JSON form to Python's."""
        if name == "logit_bias" and isinstance(value, Mapping):
            return {token_id(key): bias for key, bias in value.items()}
        if name == "preset":
            return text(name, value)
        if name in self._strict:
            return value
        return translated(self.options[name], value, self._engines, log.warning, word)

    def _why_not(self, word: str, value: Any) -> str:
        known = self.accepted.get(word)
        if known is None:
            known_names = [*self._names, *self.accepted] if len(word) <= LONGEST_NAME else []
            close = closest(word, known_names, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else "docs/server.md lists them"
            return f"there is no field {word!r:.80}: {hint}"
        if known.takes(value):
            return ""
        allowed = " or ".join(map(json.dumps, known.values or ()))
        only = f"only {allowed} is supported: " if allowed else "not supported: "
        return f"{word}={shown(value)}: {only}{known.why}"


own_fields = partial(Fields, options={}, accepted={})
"""The fields of an endpoint that generates nothing."""


def constrained(options: Mapping[str, Any]) -> bool:
    """Whether options contain a grammar, a schema or a regular expression."""
    return any(options.get(name) is not None for name in CONSTRAINTS)


def known_ids(name: str, ids: Iterable[int], size: int) -> None:
    """Check that token ids are in a vocabulary."""
    stranger = next((each for each in ids if not 0 <= each < size), None)
    if stranger is not None:
        raise ParameterError(
            name, f"{name} has token id {stranger}: give ids of the vocabulary, 0 to {size - 1}"
        )


def only_one(own: Mapping[str, Any], *names: str) -> str:
    """The one of some fields that is given; ParameterError if none is, or several."""
    given = [name for name in names if own[name] is not None]
    if len(given) != 1:
        what = " and ".join(given) or "nothing"
        remedy = f"{what} given: give one of {', '.join(names)}"
        raise ParameterError(given[1] if given else names[0], remedy)
    return given[0]


def token_id(key: str) -> int | str:
    """A token as a key of an object: a number is an id, other keys are texts."""
    return int(key) if _ID.fullmatch(key) else key


def check_depth(body: Mapping[str, Any]) -> None:
    """Check that fields are not nested too deeply, and that texts can be encoded as UTF-8."""
    for name, value in body.items():
        level = [value, name]
        for _ in range(MOST_LEVELS):
            within: list[object] = []
            for each in level:
                if isinstance(each, str):
                    if not each.isascii():
                        _check_unicode(name, each)
                elif isinstance(each, dict):
                    within += [*each.keys(), *each.values()]
                elif isinstance(each, list):
                    within += [x for x in each if isinstance(x, str | list | dict)]
            level = within
            if not level:
                break
        else:
            raise ParameterError(name, str(NestingError(name)))


def _check_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(
            name, f"{name!a:.80}: {value[error.start]!a} is half of a surrogate pair: leave it out"
        ) from None


def wrong(where: str, value: object, remedy: str) -> ParameterError:
    """The error of a field, with its path such as ``input[2].role`` and what to give instead."""
    return ParameterError(where, f"{where}={shown(value)}: {remedy}")


def is_whole(value: object) -> bool:
    """Whether a value is an integer, such as a token id; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


# Checks of values.


def of_type(kind: type[T] | UnionType, remedy: str) -> Callable[[str, Any], T]:
    """Make a check for a type, or one of several."""

    def check(name: str, value: Any) -> T:
        if not isinstance(value, kind):
            raise wrong(name, value, remedy)
        return value

    return check


text = of_type(str, "give a text")
switch = of_type(bool, "give true or false")
mapping: Callable[[str, Any], dict[str, Any]] = of_type(dict, "give an object")
listing: Callable[[str, Any], list[Any]] = of_type(list, "give a list")


def whole(low: int, high: int) -> Check:
    """Make a check for an integer from ``low`` to ``high``."""

    def check(name: str, value: Any) -> int:
        number = None if isinstance(value, float) else exact(value)
        if number is None or not low <= number <= high:
            raise wrong(name, value, f"give an integer, {low} to {high}")
        return number

    return check


def number(low: float, high: float) -> Check:
    """Make a check for a number from ``low`` to ``high``."""

    def check(name: str, value: Any) -> float:
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if not known or math.isnan(value) or not low <= value <= high:
            raise wrong(name, value, f"give a number, {low:g} to {high:g}")
        return float(value)

    return check


def one_of(*choices: str) -> Check:
    """Make a check for one of some words."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise wrong(name, value, f"give {' or '.join(map(repr, choices))}")
        return value

    return check


def list_of(check: Check) -> Callable[[str, Any], list[Any]]:
    """Make a check for a list whose entries pass a check; errors name the entry."""

    def each(name: str, value: Any) -> list[Any]:
        return [check(f"{name}[{i}]", entry) for i, entry in enumerate(listing(name, value))]

    return each


def anything(name: str, value: Any) -> Any:
    """Accept any value, which is checked where it is used."""
    return value


def known_keys(where: str, value: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Refuse an unknown name in an object within a body."""
    allowed = list(keys)
    for name in value:
        if name not in allowed:
            hint = nearest(name, allowed)
            raise ParameterError(where, f"{where} has no field {name!r:.80}: {hint}")
