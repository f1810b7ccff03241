"""Parameters that name tokens by text: what a tokenizer must have for them, and their check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from aleator.core.errors import ParameterError
from aleator.core.integers import MAX_TOKEN


class Tokenizer(Protocol):
    """What turns a text into tokens."""

    def encode(self, text: str, add_special: bool = ..., parse_special: bool = ...) -> list[int]:
        """Token ids of a text."""
        ...


def require_tokenizer(parameter: str, tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, or an error that says what to do without one."""
    if tokenizer is None:
        raise ParameterError(
            parameter,
            f"{parameter} given as text needs a tokenizer: give tokenizer=model.tokenizer, or token ids; "
            "model.generate knows its own",
        )
    return tokenizer


def check_ids(parameter: str, value: Any) -> tuple[int, ...]:
    """Return token ids, each once, ascending.

    Raises:
        ParameterError: It is no sequence or set of token ids.
    """
    try:
        given = [*value]
        ids = {int(t) for t in given}
        whole = not isinstance(value, str | bytes) and all(int(t) == t for t in given)
    except (TypeError, ValueError):
        ids, whole = set(), False
    if not whole:
        raise ParameterError(
            parameter, f"{parameter}={value!r:.80} must be a sequence of token ids, as in [13, 198]"
        )
    for token in ids:
        if not 0 <= token <= MAX_TOKEN:
            raise ParameterError(
                parameter, f"{parameter} names token {token}: ids run from 0 to {MAX_TOKEN:,}"
            )
    return tuple(sorted(ids))


def check_sequences(parameter: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return texts and sequences of token ids.

    Raises:
        ParameterError: It holds something else, or an empty text or sequence.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ParameterError(
            parameter,
            f"{parameter}={value!r:.80} must be a sequence of texts or of token sequences",
        )
    checked: list[str | tuple[int, ...]] = []
    for item in value:
        if isinstance(item, str) and item.strip():
            checked.append(item)
            continue
        try:
            tokens = () if isinstance(item, str) else tuple(int(t) for t in item)
        except (TypeError, ValueError):
            tokens = ()
        if not tokens or min(tokens) < 0 or max(tokens) > MAX_TOKEN:
            what = (
                "is empty"
                if item in ("", (), [])
                else "is neither text nor a sequence of token ids"
            )
            raise ParameterError(parameter, f"{parameter}: {item!r:.80} {what}")
        checked.append(tokens)
    return tuple(checked)
