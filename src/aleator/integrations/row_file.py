"""A file of results, a JSON object a line: appended to, and found again when the work goes on."""

from __future__ import annotations

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from aleator.core.errors import FileFormatError, ParameterError


class LineFile(ABC):
    """A file of JSON lines, to which lines are appended while nobody else can.

    A last line that was not written to its end is removed.

    Raises:
        FileFormatError: A line is something else than a result.
        ParameterError: Another process has opened the file; ``parameter`` names the path.
    """

    def __init__(self, path: str | os.PathLike[str], parameter: str) -> None:
        self._path = Path(path)
        self._file = open(path, "a+b")  # noqa: SIM115  __exit__ closes it
        try:
            self._lock(parameter)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, value: Mapping[str, Any], allow_nan: bool) -> None:
        # ASCII, because a text may hold half a surrogate pair, which has no UTF-8.
        text = json.dumps(value, ensure_ascii=True, allow_nan=allow_nan)
        self._file.write(text.encode() + b"\n")
        self._file.flush()

    def _lock(self, parameter: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ParameterError(
                parameter,
                f"{self._path} is in use by another process: wait for its end, or choose another file",
            ) from None

    def _read(self) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if self._torn(line):
                break
            self._take(number, line)
            end += len(line)
        self._file.truncate(end)

    def _torn(self, line: bytes) -> bool:
        return not line.endswith(b"\n")

    @abstractmethod
    def _take(self, number: int, line: bytes) -> None:
        """Note the result that a line of the file holds; FileFormatError: it holds none."""


class RowFile(LineFile):
    """Results of rows, whose keys are in the field ``key``; ``done`` has those that are there, as texts."""

    def __init__(self, path: str | os.PathLike[str], key: str) -> None:
        self._key = key
        self.done: set[str] = set()
        super().__init__(path, "path")

    def append(self, row: Mapping[str, Any]) -> bool:
        """Write the result of a row, unless it is there; returns whether it was not."""
        key = str(row[self._key])
        if key in self.done:
            return False
        self._write(dict(row), allow_nan=True)
        self.done.add(key)
        return True

    def _take(self, number: int, line: bytes) -> None:
        try:
            self.done.add(str(json.loads(line)[self._key]))
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(
                self._path,
                f"line {number} is not a result with {self._key!r}: choose another file for results",
            ) from error
