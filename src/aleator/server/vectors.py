"""Vectors of a request's texts, and other work with the model itself: one request at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aleator.core.cancellation import check_cancelled
from aleator.core.errors import ParameterError
from aleator.engine import prompts
from aleator.language_model import LanguageModel
from aleator.server.errors import ApiError
from aleator.server.fields import known_ids

Vectors = npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]
"""Vectors of texts, [n, width]; or without pooling those of the tokens of each."""
MOST_STATES = 2**25
"""Bytes of hidden states that a response may have, before they are written as text."""


class TimedWork:
    """Work of a request; :meth:`check` ends it where the client has left, or its time is over."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._cancelled = seconds, False
        self._end = None if seconds is None else time.monotonic() + seconds

    def cancel(self) -> None:
        """Have it end: the client has left, or the server ends."""
        self._cancelled = True

    def check(self) -> None:
        """Raise ApiError if it is to end."""
        if self._cancelled:
            raise ApiError(
                503, "the request was given up: the client left, or the server ends", code="closed"
            )
        if self._end is not None and time.monotonic() > self._end:
            message = (
                f"the request was not done within {self._seconds:g} s: send fewer or shorter texts"
            )
            raise ApiError(503, message, code="timeout")


def vectors_of(
    model: LanguageModel,
    name: str,
    texts: Sequence[str | Sequence[int]],
    pooling: str | None,
    normalize: bool,
    truncate: bool = False,
    dimensions: int | None = None,
) -> tuple[Vectors, int]:
    """Vectors of texts, and how many tokens these have together; errors name the text by its place."""
    several = len(texts) > 1
    tokens = [
        _tokens(model, f"{name}[{i}]" if several else name, each, truncate)
        for i, each in enumerate(texts)
    ]
    n_tokens = sum(min(len(text), model.n_ctx) for text in tokens)
    if (pooling or model.pooling) != "none":
        found = model.embed(tokens, pooling, normalize, truncate=truncate, dimensions=dimensions)
        return found, n_tokens
    size = 4 * n_tokens * model.projection.width
    if size > MOST_STATES:
        message = f"hidden states of {n_tokens} tokens take {size} bytes, and a response has {MOST_STATES}"
        raise ParameterError(f"pooling='none': {message} at most: send fewer or shorter texts")
    return model.embed_tokens(tokens, truncate=truncate), n_tokens


def _tokens(
    model: LanguageModel, name: str, text: str | Sequence[int], truncate: bool
) -> tuple[int, ...]:
    check_cancelled()
    if not isinstance(text, str):
        known_ids(name, text, len(model.vocab))
    try:
        tokens = model.request_maker.tokens(prompts.checked_prompt(text), whole=True)
    except ParameterError:  # of ids that are known, there are none
        raise ApiError(400, f"{name} is empty, and has no vector: leave it out", name) from None
    if len(tokens) > model.n_ctx and not truncate:
        message = f"{name} has {len(tokens)} tokens and the context {model.n_ctx} positions"
        raise ApiError(
            400,
            f"{message}, which are all that the model has: shorten it, or give truncate"
            if model.longest
            else f"{message}: shorten it, give truncate, or start the server with a larger --ctx-size",
            name,
            "context_length_exceeded",
        )
    return tokens
