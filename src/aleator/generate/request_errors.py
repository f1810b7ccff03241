"""Errors that one completion alone has: they end that one, and the others go on."""

from __future__ import annotations

from collections.abc import Callable

from aleator.generate.choices import Choices
from aleator.generate.request_state import RequestState

Failed = Callable[[RequestState, BaseException], None]
"""Told of an error that one completion alone has, once it is noted there."""


class RequestErrors:
    """Ends the completions that fail.

    An object of its own, for all that make steps together: those who hold it do not hold one another, so a
    context is freed as soon as nobody makes steps over it, without the garbage collector.

    Args:
        choices: Of tokens; those of a completion that fails are dropped.
        failed: Told of each error.  It must not hold what makes the steps.
    """

    def __init__(self, choices: Choices, failed: Failed | None) -> None:
        self._choices, self._failed = choices, failed

    def alone(self, state: RequestState, action: Callable[..., object], *given: object) -> None:
        """Do something for one request; an error is that request's alone, and ends its completion.

        So is a SystemExit of its callback; KeyboardInterrupt is nobody's own, and is raised.
        """
        try:
            action(*given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.fail(state, error)

    def fail(self, state: RequestState, error: BaseException) -> None:
        """An error ends a request's completion."""
        self._choices.drop(state)
        state.completion.fail(error)
        if self._failed is not None:
            self._failed(state, error)
