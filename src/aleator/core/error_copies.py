"""Copies of errors: a raised error holds the frames that it passed, and all that these hold."""

from __future__ import annotations

from types import FunctionType
from typing import Any


def without_frames(error: BaseException) -> BaseException:
    """A copy of an error and its causes, without traceback and context; itself where it cannot be copied."""
    kind = type(error)
    if any("__slots__" in vars(each) for each in kind.__mro__):  # they are not in what is copied
        return error
    try:
        parts: tuple[Any, ...] = error.__reduce__()  # type: ignore[assignment]
        _, given, state = (*parts, None)[:3]
        made: BaseException = kind.__new__(kind, *given)
        if not isinstance(kind.__init__, FunctionType):  # one in Python may expect other arguments
            made.__init__(*given)  # type: ignore[misc]
        made.args = error.args
        made.__setstate__({**error.__dict__, **(state or {})})
        if hasattr(error, "__notes__"):
            made.__notes__ = list(error.__notes__)
        if error.__cause__ is not None and error.__cause__ is not error:
            made.__cause__ = without_frames(error.__cause__)
        made.__suppress_context__ = error.__suppress_context__
    except Exception:  # a class of a user may do anything here
        return error
    return made


def copies(error: BaseException, n: int) -> list[BaseException]:
    """An error for each of ``n`` readers, the error itself first: what is raised holds its reader's frames."""
    trace = error.__traceback__
    made = [without_frames(error) for _ in range(1, n)]
    return [error, *(each.with_traceback(trace) for each in made)]
