"""Errors of requests with their HTTP status, whichever dialect writes them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aleator.core import errors

log = logging.getLogger(__name__)

LONGEST_PARAM = 200
"""Most letters of a field's name in an error: an unknown name may be megabytes long."""
RETRY_AFTER = 1
"""Seconds that a client should wait before it retries after a full queue or a lack of memory."""
LACKS = {
    errno.ENOMEM: "too little memory",
    errno.EAGAIN: "no process or thread left",
    errno.EMFILE: "no open file left",
    errno.ENFILE: "no open file left",
}
"""What the system lacks, by the number of its error."""


class ApiError(errors.AleatorError):
    """A request's error response; each dialect writes it in its own form."""

    def __init__(
        self,
        status: int,  # HTTP status, 400 to 599
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
    """Treat errors raised by unchecked values as errors of the request: here they can have no other cause."""
    try:
        yield
    except errors.AleatorError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the request cannot be read: {type(error).__name__}: {error}"
        raise errors.ParameterError("", message) from error


def no_model(message: str) -> ApiError:
    """The error of a request for a model that is not here."""
    return ApiError(404, message, "model", "model_not_found")


def not_built(what: str, instead: str = "") -> ApiError:
    """The 501 error of llama-server for an endpoint or field this server lacks; ``what`` is a sentence."""
    return ApiError(501, f"{what}{': ' if instead else ''}{instead}", code="not_supported")


def api_error(error: BaseException, spelled: Mapping[str, str] | None = None) -> ApiError:
    """The error that a client gets for an exception, which is its cause.

    Its message reveals no more about this machine than the exception's own.  Unexpected exceptions are logged
    and reported as internal errors.
    """
    if isinstance(error, ApiError):
        return error
    made = _converted(error, spelled or {})
    made.__cause__ = error
    return made


def _converted(error: BaseException, spelled: Mapping[str, str]) -> ApiError:
    message = str(error)
    if isinstance(error, errors.QueueFull):
        headers = {"retry-after": str(RETRY_AFTER)}
        return ApiError(429, message, None, "queue_full", headers)
    if isinstance(error, errors.ContextFull):
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, errors.EngineClosed):
        return ApiError(503, "the server is shutting down", code="closed")
    if isinstance(error, errors.ParameterError):
        own, word = error.parameter, spelled.get(error.parameter, error.parameter)
        if word != own and message.startswith((f"{own}=", f"{own} ", f"{own}:")):
            message = word + message[len(own) :]
        return ApiError(400, message, word[:LONGEST_PARAM] or None)
    if isinstance(error, errors.UnsupportedModel):
        return ApiError(501, message, code="not_supported")
    if isinstance(error, errors.TemplateError):
        return ApiError(400, message, "messages")
    if isinstance(error, errors.TokenizerError):
        return ApiError(400, message, "prompt")
    if isinstance(error, errors.ConstraintError | errors.LogitsError):
        # The request's limits leave no token to draw, or its grammar has grown too large meanwhile.
        return ApiError(400, message, code="no_token_left")
    log.error("a request failed", exc_info=error)
    number = _number(error)
    if number in LACKS:
        if not isinstance(error, errors.AleatorError):
            message = f"there is {LACKS[number]} for this request now: ask again, or for less"
        return ApiError(503, message, None, "out_of_memory", {"retry-after": str(RETRY_AFTER)})
    if isinstance(error, errors.AleatorError):
        return ApiError(500, message)
    return ApiError(500, "internal error: the server's log says more", code="internal")


def _number(error: BaseException) -> int | None:
    """The system's number of an error; Python gives none to lacks of memory and threads."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return errno.EAGAIN
    return getattr(error, "errno", None)
