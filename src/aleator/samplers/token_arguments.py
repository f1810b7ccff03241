"""Arguments of samplers and chains, checked before anything changes: tokens, rows of logits and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from aleator.core import integers
from aleator.core.arrays import Int32s
from aleator.core.errors import NoLogits, ParameterError
from aleator.core.integers import MAX_TOKEN, exact, integer
from aleator.core.parameter import check_unicode


class Tokenizer(Protocol):
    """An object that encodes texts as tokens."""

    def encode(self, text: str, add_special: bool = ..., parse_special: bool = ...) -> list[int]:
        """Token ids of a text."""


def require_tokenizer(parameter: str, tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer; without one, raise an error that says what to give instead."""
    if tokenizer is None:
        raise ParameterError(
            f"{parameter} given as text needs a tokenizer: give tokenizer=model.tokenizer, or token ids; "
            "model.generate knows its own"
        )
    return tokenizer


def check_ids(parameter: str, value: Any) -> tuple[int, ...]:
    """Return token ids, each once, ascending."""
    ids = ids_of(value)
    if ids is None:
        raise ParameterError(
            f"{parameter}={value!r:.80} must be a sequence of token ids, as in [13, 198]"
        )
    for token in ids:
        if not 0 <= token <= MAX_TOKEN:
            raise ParameterError(
                f"{parameter} names token {token}: ids run from 0 to {MAX_TOKEN:,}"
            )
    return tuple(sorted(set(ids)))


def ids_of(value: Any) -> tuple[int, ...] | None:
    """Return integers of any kind as ``int``; None if the value holds anything else."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    try:
        ids = [exact(t) for t in value]
    except TypeError:  # an array without dimensions
        return None
    return None if None in ids else tuple(t for t in ids if t is not None)


def check_sequences(
    parameter: str, value: Any, *, blank: bool = False
) -> tuple[str | tuple[int, ...], ...]:
    """Return texts, blank only if allowed, and sequences of token ids, none of them empty."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ParameterError(
            f"{parameter}={value!r:.80} must be a sequence of texts or of token sequences"
        )
    checked: list[str | tuple[int, ...]] = []
    for item in value:
        if isinstance(item, str) and (blank or item.strip()):
            checked.append(check_unicode(parameter, item))
            continue
        tokens = ids_of(item)
        if not tokens or min(tokens) < 0 or max(tokens) > MAX_TOKEN:
            empty = tokens == () or item == ""
            what = "is empty" if empty else "is neither text nor a sequence of token ids"
            raise ParameterError(f"{parameter}: {item!r:.80} {what}")
        checked.append(tokens)
    return tuple(checked)


def number_of(name: str, value: Any, what: str) -> int:
    """Check that a value is an integer, not a bool; the message says ``what`` it counts or names."""
    number = exact(value)
    if number is None:
        raise ParameterError(f"{name}={value!r:.60} is not a number of {what}: give an integer")
    return number


def token_id(token: Any) -> int:
    """Check the id of a token; ParameterError unless it lies in [0, :data:`MAX_TOKEN`]."""
    checked = number_of("token", token, "a token")
    if not 0 <= checked <= MAX_TOKEN:
        raise _no_token(checked)
    return checked


def token_ids(tokens: Any) -> Int32s:
    """Check a sequence, array [n] or other iterable of token ids; return them as int32 [n]."""
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
    """Return logits unchanged; for a context, those of a token of its last batch (``Context.logits``)."""
    of_token = getattr(logits, "logits", None)
    if type(row) is not int:  # integer() takes as long as a short chain's Python
        row = integer("row", row)
    if not callable(of_token):
        if row != -1:
            raise ParameterError(
                f"row={row!r:.60} needs a context: logits are one row, so leave it out"
            )
        return logits
    try:
        return of_token(row)
    except NoLogits as error:
        raise NoLogits("row", row, error.outputs) from None
