"""Long work that may be given up between its parts, by who asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("given_up", default=None)


@contextmanager
def ended_by(check: Callable[[], None]) -> Iterator[None]:
    """Have the work in this block call ``check`` between its parts; what that raises ends it."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_given_up() -> None:
    """Raise if the work has been given up; to be called between its parts."""
    check = _check.get()
    if check is not None:
        check()
