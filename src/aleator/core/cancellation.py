"""Cancellation of long work, between its parts, by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("cancelled", default=None)


@contextmanager
def cancelled_by(check: Callable[[], None]) -> Iterator[None]:
    """Have the work in this block call ``check`` between its parts; what that raises ends it."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_cancelled() -> None:
    """Raise if the work has been cancelled; to be called between its parts."""
    check = _check.get()
    if check is not None:
        check()
