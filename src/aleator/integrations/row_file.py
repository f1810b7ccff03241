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


FAILED = 500
"""The status of an error that was not the request's."""

HEAD = b'{"id": "batch-'
"""How every result begins in the file."""


class ResultFile(LineFile):
    """A file of JSON lines with a ``custom_id`` each, to which results are appended.

    A last line that was not written to its end is removed, if it begins as a result does.  So are results of
    errors that were not the request's (status 500): such a request is made again, while one that was wrong
    stays wrong.
    """

    def __init__(self, path: str) -> None:
        self.done: set[str] = set()  # names of the results that are there
        self.errors: set[str] = set()  # of those among them that are errors
        self.again: set[str] = set()  # of those that are there no more: the error may be gone
        super().__init__(path, "output")

    def append(self, result: dict[str, Any]) -> None:
        """Write a result, whole or, if the process is killed, in part: that is removed the next time."""
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
        """Replace the file by one without the results that are made again; if interrupted, not at all."""
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
    """The name and the status of a result that a line holds; None if it holds something else."""
    try:
        result = json.loads(line)
        name, status = result["custom_id"], result["response"]["status_code"]
        ours = result["id"] == f"batch-{name}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (name, status) if ours and isinstance(name, str) and isinstance(status, int) else None
