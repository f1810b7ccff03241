"""Arguments of chains: tokens, rows of logits and seeds, checked before anything changes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core import integers
from aleator.core.errors import NoLogits, ParameterError
from aleator.core.integers import MAX_TOKEN, integer
from aleator.core.parameter import check_seed
from aleator.core.seeds import fresh_seed
from aleator.samplers.base import MAX_LLAMA_SEED, check_llama_seed


def number_of(name: str, value: Any, what: str) -> int:
    """Check that a value is an integer; bools are none.  ``what`` it counts or names goes into the message."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ParameterError(
            name, f"{name}={value!r:.60} is not a number of {what}: give an integer"
        ) from None


def token_id(token: Any) -> int:
    """Check the id of a token; ParameterError unless it lies in [0, :data:`MAX_TOKEN`]."""
    checked = number_of("token", token, "a token")
    if not 0 <= checked <= MAX_TOKEN:
        raise _no_token(checked)
    return checked


def token_ids(tokens: Any) -> NDArray[np.int32]:
    """Check a sequence, array [n] or other iterable of token ids; they come back as int32 [n]."""
    listed = isinstance(tokens, Sequence) or hasattr(tokens, "__array__")
    if isinstance(tokens, Iterable) and not listed:
        tokens = list(tokens)
    ids = integers.token_ids(tokens)
    if len(ids) and ids.max() > MAX_TOKEN:
        raise _no_token(int(ids.max()))
    return ids


def _no_token(token: int) -> ParameterError:
    return ParameterError(f"token {token} cannot be accepted: ids run from 0 to {MAX_TOKEN:,}")


def row_of(logits: Any, row: int) -> Any:
    """The logits themselves; of a context those of a token of its last batch (``Context.logits``)."""
    integer("row", row)
    of_token = getattr(logits, "logits", None)
    if not callable(of_token):
        if row != -1:
            raise ParameterError(
                f"row={row!r:.60} needs a context: logits are one row, so leave it out"
            )
        return logits
    try:
        return of_token(row)
    except NoLogits as error:
        raise NoLogits("row", row, error.wanted) from None


def effective_seed(seed: int | None, numerics: str) -> int:
    """The seed to draw with: 64 bits, or 32 with llama.cpp's numbers; None and -1 draw one from the system."""
    checked = check_seed(seed)
    if numerics == "portable":
        return fresh_seed(2**64) if checked is None else checked
    if checked is None or checked == MAX_LLAMA_SEED + 1:
        return fresh_seed(MAX_LLAMA_SEED + 1)
    return check_llama_seed(checked)
