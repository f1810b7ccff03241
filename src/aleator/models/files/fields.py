"""Typed access to the fields of a file: GGUF metadata and JSON objects alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from aleator.core.errors import FileFormatError
from aleator.core.json_text import loads
from aleator.models.files.mapping import map_file

# Limits against hostile files; no known model comes near them.
MAX_LAYERS = 4096
MAX_WIDTH = 1 << 24
MAX_LENGTH = (1 << 31) - 1
_MAX_JSON = 1 << 26  # bytes; the index of a model with 10,000 tensors has one million


def read_json(path: Path) -> Fields:
    """The members of the JSON object in a file; ModelNotFound or FileFormatError if there is none."""
    data = map_file(path)
    if data.size > _MAX_JSON:
        raise FileFormatError(path, f"{data.size} bytes; at most {_MAX_JSON} are read as JSON")
    try:
        values = loads(bytes(data).decode())
    except ValueError as error:
        raise FileFormatError(path, f"is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise FileFormatError(path, f"holds a JSON {type(values).__name__} instead of an object")
    return Fields(path, values)


def read_json_if_any(path: Path) -> Fields:
    """The members of the JSON object in a file; none if the file is missing."""
    return read_json(path) if path.is_file() else Fields(path, {})


Value = (
    bool
    | int
    | float
    | str
    | bytes
    | Sequence[bool]
    | Sequence[int]
    | Sequence[float]
    | Sequence[str]
)
"""A value of GGUF's metadata."""
T = TypeVar("T")
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """The fields ``values`` of the file ``path``, checked for presence, type and range on access.

    An integer passes where a float is asked for; a bool passes for neither.  Every failure is a
    :class:`FileFormatError` that names the field.
    """

    def __init__(self, path: object, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values

    def error(self, key: str, message: str) -> FileFormatError:
        """The error to raise about the field ``key``."""
        return FileFormatError(self.path, message, field=key)

    def over(self, defaults: Mapping[str, Any]) -> Fields:
        """These fields, and ``defaults`` where they are absent or null."""
        given = {key: value for key, value in self.values.items() if value is not None}
        return Fields(self.path, {**defaults, **given})

    def changed(self, **values: Any) -> Fields:
        """A copy of these fields with some changed."""
        return Fields(self.path, {**self.values, **values})

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def require(self, key: str, kind: type[T]) -> T:
        """The field ``key``, of type ``kind`` (int, float, bool, str, list, dict)."""
        if key not in self.values:
            raise self.error(key, f"the field {key!r} is missing")
        return self._checked(key, self.values[key], kind)

    @overload
    def get(self, key: str, default: T) -> T: ...
    @overload
    def get(self, key: str, default: None = None, kind: type[T] = ...) -> T | None: ...
    def get(self, key: str, default: Any = None, kind: Any = None) -> Any:
        """The field ``key``, or ``default`` if it is absent or null.

        Its type must be ``kind``, or that of the default; with neither, any type passes.
        """
        value = self.values.get(key)
        if value is None:
            return default
        kind = type(default) if kind is None and default is not None else kind
        return value if kind is None else self._checked(key, value, kind)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer field in ``[low, high]``; required if there is no default."""
        value = self.require(key, int) if default is None else self.get(key, default)
        if not low <= value <= high:
            raise self.error(key, f"{key} is {value}; it must be between {low} and {high}")
        return value

    def layers(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A number of layers, or the index of one."""
        return self.integer(key, low, MAX_LAYERS, default)

    def width(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A number of channels, heads, or other things side by side."""
        return self.integer(key, low, MAX_WIDTH, default)

    def length(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A number of tokens or positions."""
        return self.integer(key, low, MAX_LENGTH, default)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in ``[low, high]``; required if there is no default."""
        value = self.require(key, float) if default is None else self.get(key, default)
        if not low <= value <= high:  # false for NaN too
            raise self.error(key, f"{key} is {value}; it must be between {low:g} and {high:g}")
        return value

    def _checked(self, key: str, value: Any, kind: type[T]) -> T:
        allowed: Any = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            wanted = _NAMES.get(kind, f"a {kind.__name__}")
            raise self.error(key, f"{key} must be {wanted}, not {_shown(value)}")
        try:
            return kind(value) if kind is float else value  # type: ignore[call-arg]
        except OverflowError:
            raise self.error(key, f"{key} is out of a number's range") from None
