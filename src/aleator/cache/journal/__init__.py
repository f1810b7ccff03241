"""One undo log for everything that a cache can change; see :class:`Journal`.

Signal handlers and trace functions run between Python's bytecodes.  So only native code opens and closes the
frames of the journal: :meth:`Journal.run`, :func:`atomic`, or a :class:`Transaction` under ``with``.  The
package itself does not use ``with`` for this, because an interrupt could come after the last line of its
block and before the frame is closed.
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
    """An object with a journal."""

    @property
    def journal(self) -> Journal:
        """The journal that records its changes."""


S = TypeVar("S", bound=Journalled)


def atomic(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method atomic: it completes, or it raises and changes nothing, wherever the exception occurs."""

    @wraps(method)
    def whole(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        done: R = self.journal.run(method, self, *args, **kwargs)
        return done

    return whole
