"""Errors of requests: what HTTP says of them, whichever dialect writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aleator.core import errors

log = logging.getLogger(__name__)

LONGEST_PARAM = 200
"""Letters of a field's name that an error tells: what is unknown may be megabytes long."""
RETRY_AFTER = 1
"""Seconds that a client waits before it asks a full queue again."""


class ApiError(errors.AleatorError):
    """A request that is answered with an error; each dialect writes it in its own form."""

    def __init__(
        self,
        status: int,  # of HTTP, 400 to 599
        message: str,  # what is wrong, and what to do about it
        param: str | None = None,  # the field that is wrong, as the client spelled it
        code: str | None = None,  # a word for programs, such as "model_not_found"
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})


@contextmanager
def readable() -> Iterator[None]:
    """Let values that no check knows be errors of the request: nothing else can be their cause here."""
    try:
        yield
    except errors.AleatorError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the request cannot be read: {type(error).__name__}: {error}"
        raise errors.ParameterError("", message) from error


def not_built(what: str, instead: str = "") -> ApiError:
    """What this server has no endpoint or field for, as a sentence; 501, as llama-server answers."""
    return ApiError(501, f"{what}{': ' if instead else ''}{instead}", code="not_supported")


def api_error(error: BaseException, spelled: Mapping[str, str] | None = None) -> ApiError:
    """What a client is told of an error.

    Returns:
        An error whose message says nothing of this machine but what the error itself names; what nobody
        foresaw is logged, and called an internal error.  Its cause is what was raised.
    """
    if isinstance(error, ApiError):
        return error
    made = _told(error, spelled or {})
    made.__cause__ = error
    return made


def _told(error: BaseException, spelled: Mapping[str, str]) -> ApiError:
    message = str(error)
    if isinstance(error, errors.QueueFull):
        headers = {"retry-after": str(RETRY_AFTER)}
        return ApiError(429, message, None, "queue_full", headers)
    if isinstance(error, errors.ContextFull):
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, errors.EngineClosed):
        return ApiError(503, "the server is shutting down", code="closed")
    if isinstance(error, errors.ParameterError):
        ours, word = error.parameter, spelled.get(error.parameter, error.parameter)
        if word != ours and message.startswith((f"{ours}=", f"{ours} ", f"{ours}:")):
            message = word + message[len(ours) :]
        return ApiError(400, message, word[:LONGEST_PARAM] or None)
    if isinstance(error, errors.TemplateError):
        return ApiError(400, message, "messages")
    if isinstance(error, errors.TokenizerError):
        return ApiError(400, message, "prompt")
    if isinstance(error, errors.ConstraintError | errors.LogitsError):
        # What a request allows leaves no token to draw, or its grammar has become too large on the way.
        return ApiError(400, message, code="no_token_left")
    log.error("a request failed", exc_info=error)
    if isinstance(error, errors.AleatorError):
        return ApiError(500, message)
    return ApiError(500, "internal error: the server's log says more", code="internal")
