"""The results of a batch: lines that are appended, and found again when the batch goes on."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from aleator.core.errors import FileFormatError, ParameterError

FAILED = 500
"""The status of an error that was not the request's."""

HEAD = b'{"id": "batch-'
"""How every result begins in the file."""


class ResultFile:
    """A file of JSON lines with a ``custom_id`` each, to which results are appended.

    A last line that was not written to its end is removed, if it begins as a result does.  So are results of
    errors that were not the request's (status 500): such a request is made again, while one that was wrong
    stays wrong.  Nobody else can append meanwhile.

    Attributes:
        done: Names of the results that are there.
        errors: Names of those among them that are errors.
        again: Names of results that are there no more, since the error may be gone.

    Raises:
        FileFormatError: It holds something else than results.
        ParameterError: Another process has opened it.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115  __exit__ closes it
        try:
            self._lock(path)
            self.done: set[str] = set()
            self.errors: set[str] = set()
            self.again: set[str] = set()
            self._read(Path(path))
            if self.again:
                self._leave_out(path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, result: dict[str, Any]) -> None:
        """Write a result, whole or, if the process is killed, in part: that is removed the next time."""
        # ASCII, because a text may hold half a surrogate pair, which has no UTF-8.
        text = json.dumps(result, ensure_ascii=True, allow_nan=False)
        self._file.write(text.encode() + b"\n")
        self._file.flush()
        self._add(result["custom_id"], result["response"]["status_code"])

    def _add(self, name: str, status: int) -> None:
        self.done.add(name)
        if status != 200:
            self.errors.add(name)

    def _lock(self, path: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ParameterError(
                "output",
                f"{path} is in use by another process: wait for its end, or choose another file",
            ) from None

    def _read(self, path: Path) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            torn = not line.endswith(b"\n")
            if torn and line.startswith(HEAD[: len(line)]):
                break
            found = None if torn else _result(line)
            if found is None:
                raise FileFormatError(
                    path,
                    f"line {number} is not a result of a batch: choose another file for results",
                )
            end += len(line)
            if found[1] == FAILED:
                self.again.add(found[0])
            else:
                self._add(*found)
        self._file.truncate(end)

    def _leave_out(self, path: str) -> None:
        """Replace the file by one without the results that are made again; if interrupted, not at all."""
        part = f"{path}.part"
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
            os.replace(part, path)
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
