"""Samplers written in Python, which may stand anywhere in a chain.

Any object with ``apply(candidates)`` is enough.  These members are used if it has them:

``name``                       shown in the chain's description; the class's name otherwise
``selects``                    True if it chooses the token (``candidates.selected = token``)
``accept(token)``              called for each accepted token, prompt tokens included
``reset()``                    return to the initial state
``clone()``                    return a copy with its own state; ``copy.deepcopy`` otherwise
``rollback(n)``                take back the last ``n`` tokens; without it the chain cannot roll back
``state_write()``              return the state as bytes; without it the chain's state cannot be written
``state_read(state)``          restore a state; raise if it is wrong, as its source may be untrusted

In ``apply`` the candidates are :class:`~aleator.samplers.candidates.Candidates`: read ``ids``, ``logits`` or
``probs``; assign ``logits`` (a pending temperature is applied first; NaN masks, see docs/numerics.md), call
``keep(ids)``, or assign ``selected``.  They are valid only during the call.  With ``numerics="llama.cpp"``
they are llama.cpp's array in its order, with masked tokens at -inf.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from aleator.core import host
from aleator.core.errors import AleatorError, ParameterError, StateError
from aleator.core.numerics import Row, Step
from aleator.samplers.base import Place, Sampler
from aleator.samplers.candidates import Candidates


class UserSampler(Sampler):
    """A user's sampler in a chain."""

    adapts = True

    def __init__(self, user: Any) -> None:
        if isinstance(user, type):
            raise ParameterError(
                "samplers", f"{user.__name__} is a class, not a sampler: give {user.__name__}(...)"
            )
        if not callable(getattr(user, "apply", None)):
            raise ParameterError(
                "samplers",
                f"{user!r} is not a sampler: it needs apply(candidates), see aleator.samplers.user",
            )
        self.user = user
        # The user's values, as instance attributes in place of the class's.
        self.name = str(getattr(user, "name", type(user).__name__))  # type: ignore[misc]
        self.selects = bool(getattr(user, "selects", False))  # type: ignore[misc]

    def __repr__(self) -> str:
        return repr(self.user)

    def describe(self) -> str:
        return self.name

    @property
    def can_roll_back(self) -> bool:
        """Whether the user's sampler has ``rollback``."""
        return callable(getattr(self.user, "rollback", None))

    def native(self, place: Place) -> host.Sampler:
        return host.UserSampler(Adapter(self.user))

    def native_llama(self, place: Place) -> host.LlamaSampler:
        return host.LlamaUserSampler(Adapter(self.user))

    def configured(self, place: Place, numerics: str) -> tuple[Any, ...]:
        """The name and class; only the user's sampler knows what else configures it."""
        return (self.name, type(self.user).__module__, type(self.user).__qualname__)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        raise ParameterError("samplers", f"{self.name} is written in Python and has no reference")


class Adapter:
    """The object that the native side calls; ``pending`` is the user's part of a state that was read."""

    def __init__(self, user: Any) -> None:
        self.user = user
        self.name = str(getattr(user, "name", type(user).__name__))
        self.pending: bytes | None = None

    def apply(self, native: Any, position: int = 0) -> None:
        self.user.apply(Candidates.of(native))

    def accept(self, token: int, generated: bool) -> None:
        if hasattr(self.user, "accept"):
            self.user.accept(token)

    def rollback(self) -> None:
        if hasattr(self.user, "rollback"):
            self.user.rollback(1)

    def set_ordinal(self, ordinal: int) -> None:
        """Do nothing: a user's sampler has no random stream from the chain."""

    def reset(self) -> None:
        if hasattr(self.user, "reset"):
            self.user.reset()

    def clone(self) -> Adapter:
        made = self.user.clone() if hasattr(self.user, "clone") else copy.deepcopy(self.user)
        return Adapter(made)

    def write_state(self, users: bool) -> bytes | None:
        """Return the user's state; None if it is not asked for."""
        return self.written() if users else None

    def read_state(self, state: bytes | None, tokens: list[int], generated: list[int]) -> None:
        """Hold what was read until the rest of the state has been checked."""
        self.pending = state

    def written(self) -> bytes:
        """The bytes that the user's ``state_write`` returns."""
        methods = (getattr(self.user, name, None) for name in ("state_write", "state_read"))
        if not all(map(callable, methods)):
            raise ParameterError(
                "samplers",
                f"{self.name} is written in Python and has no state_write() and state_read(state), so the "
                "state of its chain cannot be written or read: give it both, see aleator.samplers.user",
            )
        state = self.user.state_write()
        if not isinstance(state, bytes):
            raise ParameterError(
                "samplers",
                f"state_write() of {self.name} gave {type(state).__name__}: it must give bytes",
            )
        return state

    def restore(self, state: bytes) -> None:
        self.user.state_read(state)


def adapters_of(native: host.Chain | host.LlamaChain) -> list[Adapter]:
    """The adapters of a native chain's user samplers, in order."""
    kernels: list[Any] = list(native.samplers)
    adapters = (
        k.adapter for k in kernels if isinstance(k, host.UserSampler | host.LlamaUserSampler)
    )
    return [adapter for adapter in adapters if isinstance(adapter, Adapter)]


def restore_users(adapters: Iterable[Adapter]) -> None:
    """Pass users' samplers the states that were read; after an error all are unchanged."""
    done: list[tuple[Adapter, bytes]] = []
    try:
        for adapter in adapters:
            if adapter.pending is not None:
                done.append((adapter, adapter.written()))
                adapter.restore(adapter.pending)
    except BaseException as error:
        for changed, before in reversed(done):
            changed.restore(before)
        if isinstance(error, AleatorError) or not isinstance(error, Exception):
            raise
        raise StateError(f"{adapter.name} cannot read its state: {error}") from error
