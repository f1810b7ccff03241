"""Errors as llama-server writes them."""

from __future__ import annotations

from typing import Any

from aleator.server.errors import ApiError

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""llama-server's kinds by status; 429 is ours, since it has no limit of requests."""


class TooLong(ApiError):
    """A prompt that does not fit, with llama-server's two counts.

    Args:
        message: What is wrong.
        n_prompt_tokens: Tokens of the prompt.
        n_ctx: Positions that it may have.
    """

    def __init__(self, message: str, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(400, message, "prompt", "context_length_exceeded")
        self.n_prompt_tokens, self.n_ctx = n_prompt_tokens, n_ctx


def not_built(what: str, instead: str = "") -> ApiError:
    """What this server has no endpoint or field for; 501, as llama-server answers.

    Args:
        what: A sentence without its full stop.
        instead: What to do.
    """
    return ApiError(501, f"{what}{': ' if instead else ''}{instead}", code="not_supported")


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error: llama-server's fields, and the field that is wrong."""
    kind = KINDS.get(
        error.status, "invalid_request_error" if error.status < 500 else "server_error"
    )
    made: dict[str, Any] = {"code": error.status, "message": error.message, "type": kind}
    if error.code == "context_length_exceeded":
        made["type"] = "exceed_context_size_error"
    if isinstance(error, TooLong):
        made |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    if error.param is not None:
        made["param"] = error.param
    return {"error": made}
