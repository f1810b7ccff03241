"""One undo log for everything that a cache can change; see :class:`Journal`.

Signal handlers and trace functions run between Python's bytecodes.  So the frames of the journal are
opened and closed in native code only: by :meth:`Journal.run`, by :func:`atomic`, or by a
:class:`Transaction` under ``with``.  Within the package ``with`` is not used for this: after the last
line of its block and before the frame is closed there is a line on which an interrupt may fall.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from aleator._native import Journal, Transaction

__all__ = ["Journal", "Journalled", "Transaction", "atomic"]

P = ParamSpec("P")
R = TypeVar("R")


class Journalled(Protocol):
    """What has a journal."""

    @property
    def journal(self) -> Journal:
        """What its changes are recorded in."""


S = TypeVar("S", bound=Journalled)


def atomic(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method do all that it does, or raise and change nothing, whatever is raised where."""

    @wraps(method)
    def whole(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        done: R = self.journal.run(method, self, *args, **kwargs)
        return done

    return whole
