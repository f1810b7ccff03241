"""Checks that a model's cache can take back what a request may have to take back."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.generate.context import Context
from aleator.generate.request_state import RequestState


def check_rollback(state: RequestState, context: Context) -> None:
    """Refuse speculation and banned strings if their tokens could not be taken back.

    Raises:
        ParameterError: a request with speculation, and a model whose states cannot be rewound; a banned string
            with more tokens than they can be rewound by.
    """
    if state.speculation is not None and context.rewindable(1) < 1:
        raise ParameterError(
            "n_rollback",
            f"speculation takes guesses back, which {context.decoder.config.architecture} cannot without "
            "states to go back to: load the model with n_rollback=8, or leave spec_type and drafter out",
        )
    if state.banned is not None and state.banned.longest > context.rewindable(1) + 1:
        raise ParameterError(
            "banned_strings",
            f"banned_strings: one has {state.banned.longest} bytes, and this model's states can be taken "
            f"back by {context.rewindable(1)} tokens: load the model with a larger n_rollback",
        )
