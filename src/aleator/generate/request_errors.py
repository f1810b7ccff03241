"""Errors of one request: they end its completion, and the other requests go on."""

from __future__ import annotations

from collections.abc import Callable

from aleator.generate.pending_tokens import PendingTokens
from aleator.generate.request_state import RequestState

Failed = Callable[[RequestState, BaseException], None]
"""Called with a request and its error, after the error has ended its completion."""


class RequestErrors:
    """Ends the completions that fail.

    It is an object of its own, shared by all that make steps together.  They hold it and not one another, so a
    context is freed without the garbage collector as soon as nobody makes steps over it.

    Args:
        pending: Drops the token of a request that fails.
        failed: Called for each error.  It must not hold what makes the steps.
    """

    def __init__(self, pending: PendingTokens, failed: Failed | None) -> None:
        self._pending, self._failed = pending, failed

    def alone(self, state: RequestState, action: Callable[..., object], *given: object) -> None:
        """Do something for one request; an error ends the completion of this request only.

        So does a SystemExit that its callback raises.  KeyboardInterrupt belongs to no request, and is raised.
        """
        try:
            action(*given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.fail(state, error)

    def fail(self, state: RequestState, error: BaseException) -> None:
        """End a request's completion with an error."""
        self._pending.drop(state)
        state.completion.fail(error)
        if self._failed is not None:
            self._failed(state, error)
