"""A file of results, one JSON object per line: results are appended, and read again when the work resumes."""

from __future__ import annotations

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from aleator.core.errors import FileFormatError, ParameterError
from aleator.core.json_text import loads


class LineFile(ABC):
    """A file of JSON lines, locked for this process, to which lines are appended.

    An incomplete last line is removed.

    Raises:
        FileFormatError: A line is not a result.
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
        # ASCII, because a text may hold half a surrogate pair, which UTF-8 cannot encode.
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
        """Record the result in a line of the file; FileFormatError if there is none."""


class RowFile(LineFile):
    """Results of rows, with their keys in the field ``key``; ``done`` holds the existing keys as texts."""

    def __init__(self, path: str | os.PathLike[str], key: str) -> None:
        self._key = key
        self.done: set[str] = set()
        super().__init__(path, "path")

    def append(self, row: Mapping[str, Any]) -> bool:
        """Write the result of a row unless it exists; return whether it was written."""
        key = str(row[self._key])
        if key in self.done:
            return False
        self._write(dict(row), allow_nan=True)
        self.done.add(key)
        return True

    def _take(self, number: int, line: bytes) -> None:
        try:
            self.done.add(str(loads(line)[self._key]))
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(
                self._path,
                f"line {number} is not a result with {self._key!r}: choose another file for results",
            ) from error


FAILED = 500
"""The status of an error that is not the request's fault."""

HEAD = b'{"id": "batch-'
"""The first bytes of every result in the file."""


class ResultFile(LineFile):
    """A file of JSON lines with a ``custom_id`` each, to which results are appended.

    An incomplete last line is removed if it begins like a result.  Errors that are not the request's fault
    (status 500) are removed, too: these requests are repeated, while wrong requests are not.
    """

    def __init__(self, path: str) -> None:
        self.done: set[str] = set()  # names of the existing results
        self.errors: set[str] = set()  # those of them that are errors
        self.again: set[str] = set()  # those removed, because the error may not occur again
        super().__init__(path, "output")

    def append(self, result: dict[str, Any]) -> None:
        """Write a result; if the process is killed meanwhile, the partial line is removed the next time."""
        self._write(result, allow_nan=False)
        self._add(result["custom_id"], result["response"]["status_code"])

    def _add(self, name: str, status: int) -> None:
        self.done.add(name)
        if status != 200:
            self.errors.add(name)

    def _read(self) -> None:
        super()._read()
        if self.again:
            self._leave_out()

    def _torn(self, line: bytes) -> bool:
        return super()._torn(line) and line.startswith(HEAD[: len(line)])

    def _take(self, number: int, line: bytes) -> None:
        found = _result(line) if line.endswith(b"\n") else None
        if found is None:
            raise FileFormatError(
                self._path,
                f"line {number} is not a result of a batch: choose another file for results",
            )
        if found[1] == FAILED:
            self.again.add(found[0])
        else:
            self._add(*found)

    def _leave_out(self) -> None:
        """Replace the file, atomically, by one without the results to repeat."""
        part = f"{self._path}.part"
        new = open(part, "w+b")  # noqa: SIM115  __exit__ closes it
        try:
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            for line in self._file:
                found = _result(line)
                if found is not None and found[0] not in self.again:
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
            os.replace(part, self._path)
        except BaseException:
            new.close()
            raise
        self._file.close()
        self._file = new


def _result(line: bytes) -> tuple[str, int] | None:
    """The name and status of the result in a line; None if it holds something else."""
    try:
        result = loads(line)
        name, status = result["custom_id"], result["response"]["status_code"]
        is_row = result["id"] == f"batch-{name}"
    except (ValueError, KeyError, TypeError):
        return None
    return (name, status) if is_row and isinstance(name, str) and isinstance(status, int) else None
