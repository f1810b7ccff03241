"""Samplers written in Python, which may stand anywhere in a chain.

Any object with ``apply(candidates)`` will do.  What else it has is used:

``name``                       shown in the chain's description; the class's name otherwise
``selects``                    True if it chooses the token (``candidates.selected = token``)
``accept(token)``              after a token was accepted, prompt tokens too
``reset()``                    back to the start
``clone()``                    a copy with its own state; ``copy.deepcopy`` otherwise
``rollback(n)``                take back the last ``n`` tokens; without it the chain cannot roll back

In ``apply`` the candidates are :class:`~aleator.samplers.chain.Candidates`: read ``ids``, ``logits`` or
``probs``; assign ``logits`` (a pending temperature is applied first; NaN masks, see docs/numerics.md), call
``keep(ids)``, or assign ``selected``.  They are valid during the call only.  With ``numerics="llama.cpp"``
they are llama.cpp's array: in its order, masked tokens at -inf in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.samplers.base import Place, Sampler


class UserSampler(Sampler):
    """A user's sampler in a chain."""

    def __init__(self, user: Any, candidates_of: Callable[[Any], Any]) -> None:
        if not callable(getattr(user, "apply", None)):
            raise ParameterError(
                "samplers",
                f"{user!r} is not a sampler: it needs apply(candidates), see aleator.samplers.user",
            )
        self.user = user
        self._candidates_of = candidates_of
        # Instance attributes in place of the class's: they are the user's.
        self.name = str(getattr(user, "name", type(user).__name__))  # type: ignore[misc]
        self.selects = bool(getattr(user, "selects", False))  # type: ignore[misc]

    def __repr__(self) -> str:
        return repr(self.user)

    def describe(self) -> str:
        """The name: parameters are the user's."""
        return self.name

    @property
    def can_roll_back(self) -> bool:
        """Whether the user's sampler has ``rollback``."""
        return callable(getattr(self.user, "rollback", None))

    def native(self, place: Place) -> host.Sampler:
        """Host kernel: native/samplers/user.cpp, which calls back."""
        return host.UserSampler(_Adapter(self.user, self._candidates_of))

    def native_llama(self, place: Place) -> host.LlamaSampler:
        """Host kernel: native/llama/user.cpp, which calls back."""
        return host.LlamaUserSampler(_Adapter(self.user, self._candidates_of))

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """Not available: the user's code is the definition."""
        raise ParameterError("samplers", f"{self.name} is written in Python and has no reference")


class _Adapter:
    """What the native side calls."""

    def __init__(self, user: Any, candidates_of: Callable[[Any], Any]) -> None:
        self.user, self._candidates_of = user, candidates_of

    def apply(self, native: Any, position: int = 0) -> None:
        self.user.apply(self._candidates_of(native))

    def accept(self, token: int, generated: bool) -> None:
        if hasattr(self.user, "accept"):
            self.user.accept(token)

    def rollback(self) -> None:
        if hasattr(self.user, "rollback"):
            self.user.rollback(1)

    def set_ordinal(self, ordinal: int) -> None:
        """A user's sampler has no random stream of the chain's."""

    def reset(self) -> None:
        if hasattr(self.user, "reset"):
            self.user.reset()

    def clone(self) -> _Adapter:
        made = self.user.clone() if hasattr(self.user, "clone") else copy.deepcopy(self.user)
        return _Adapter(made, self._candidates_of)
