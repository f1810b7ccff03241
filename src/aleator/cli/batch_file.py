"""The results of a batch: lines that are appended, and found again when the batch goes on."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from aleator.core.errors import FileFormatError, ParameterError

HEAD = b'{"id": "batch-'
"""How every result begins in the file."""


class ResultFile:
    """A file of JSON lines with a ``custom_id`` each, to which results are appended.

    A last line that was not written to its end is removed, if it begins as a result does.  Nobody else can
    append meanwhile.

    Args:
        path: The file, which need not exist.

    Attributes:
        done: Names of the results that are there.

    Raises:
        FileFormatError: It holds something else than results.
        ParameterError: Another process has opened it.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115
        try:
            self._lock(path)
            self.done = self._read(Path(path))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, result: dict[str, Any]) -> None:
        """Write a result, whole or, if the process is killed, in part: that is removed the next time."""
        # ASCII, because a text may hold half a surrogate pair, which has no UTF-8.
        text = json.dumps(result, ensure_ascii=True, allow_nan=False)
        self._file.write(text.encode() + b"\n")
        self._file.flush()
        self.done.add(result["custom_id"])

    def _lock(self, path: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ParameterError(
                "output",
                f"{path} is in use by another process: wait for its end, or choose another file",
            ) from None

    def _read(self, path: Path) -> set[str]:
        self._file.seek(0)
        done: set[str] = set()
        end = 0
        for number, line in enumerate(self._file, 1):
            torn = not line.endswith(b"\n")
            if torn and line.startswith(HEAD[: len(line)]):
                break
            name = None if torn else _name(line)
            if name is None:
                raise FileFormatError(
                    path,
                    f"line {number} is not a result of a batch: choose another file for results",
                )
            end += len(line)
            done.add(name)
        self._file.truncate(end)
        return done


def _name(line: bytes) -> str | None:
    """The name of a result that a line holds; None if it holds something else."""
    try:
        result = json.loads(line)
        name, status = result["custom_id"], result["response"]["status_code"]
        ours = result["id"] == f"batch-{name}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return name if ours and isinstance(name, str) and isinstance(status, int) else None
