"""A file of results, a JSON object a line: appended to, and found again when the work goes on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aleator.core.errors import FileFormatError, ParameterError


class RowFile:
    """Results of rows, whose keys are in the field ``key``; ``done`` has those that are there, as texts.

    A last line that was not written to its end is removed.  Nobody else can append meanwhile.

    Raises:
        FileFormatError: A line is something else than a result.
        ParameterError: Another process has opened the file.
    """

    def __init__(self, path: str | os.PathLike[str], key: str) -> None:
        self._key, self._path = key, Path(path)
        self._file = open(path, "a+b")  # noqa: SIM115  __exit__ closes it
        self.done: set[str] = set()
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, row: Mapping[str, Any]) -> bool:
        """Write the result of a row, unless it is there; returns whether it was not."""
        key = str(row[self._key])
        if key in self.done:
            return False
        text = json.dumps(dict(row), ensure_ascii=True)
        self._file.write(text.encode() + b"\n")
        self._file.flush()
        self.done.add(key)
        return True

    def _open(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ParameterError(
                "path",
                f"{self._path} is in use by another process: wait for its end, or choose another file",
            ) from None
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                self.done.add(str(json.loads(line)[self._key]))
            except (ValueError, KeyError, TypeError) as error:
                raise FileFormatError(
                    self._path,
                    f"line {number} is not a result with {self._key!r}: choose another file for results",
                ) from error
            end += len(line)
        self._file.truncate(end)
