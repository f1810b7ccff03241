"""Token healing: a prompt may end within what the model would generate as one token.

Where "://" is one token, the model has seldom seen "//" after a separate token ":".  Healing takes back the
prompt's last tokens, as many as a longer token begins with.  The first draws are then restricted to tokens
that agree with their bytes, until these are used up.  The idea is that of the library ``guidance`` and of
``token_healing`` in transformers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from aleator.core.arrays import Floats
from aleator.core.errors import ParameterError
from aleator.grammar.spelling import once_each, spelling
from aleator.samplers.phase_table import MAX_MARK_BYTES, Table, marks_of

TakenBack = tuple[int, tuple[int, ...]]
"""The index in a prompt at which tokens were taken back, and these tokens."""
NOTHING: TakenBack = (0, ())


class TokenPrefixes:
    """The tokens of a vocabulary by their bytes, without control tokens and tokens without bytes."""

    def __init__(self, vocabulary: Any) -> None:
        pieces = spelling(vocabulary).pieces
        self._ids = [i for i in sorted(range(len(pieces)), key=pieces.__getitem__) if pieces[i]]
        self._pieces = [pieces[i] for i in self._ids]
        self.bytes_of = pieces
        self.longest = max(map(len, self._pieces), default=0)

    def begins_longer(self, text: bytes) -> bool:
        """Whether a longer token begins with a text."""
        after = bisect_right(self._pieces, text)
        return after < len(self._pieces) and self._pieces[after].startswith(text)

    def agreeing(self, text: bytes) -> list[int]:
        """The tokens whose bytes begin with a text, or that are a prefix of it."""
        n = len(text)
        found = self._ids[
            bisect_left(self._pieces, text) : bisect_right(
                self._pieces, text, key=lambda piece: piece[:n]
            )
        ]
        for end in range(1, min(n, self.longest + 1)):
            part = text[:end]
            found += self._ids[bisect_left(self._pieces, part) : bisect_right(self._pieces, part)]
        return found


@once_each
def token_prefixes(tokenizer: Any) -> TokenPrefixes:
    """The token prefixes of a tokenizer, built once per tokenizer."""
    return TokenPrefixes(tokenizer)


def take_back(
    tokens: Sequence[int], tokenizer: Any, phases: Table = ()
) -> tuple[tuple[int, ...], TakenBack]:
    """Take back the last tokens of a prompt, as many as a longer token begins with.

    In a prompt for infilling they are the last tokens before the hole, wherever those are.
    Control tokens, marks of phases, and at least one token stay.

    Returns:
        The remaining tokens, and what was taken back.

    Raises:
        ParameterError: Tokens have no texts, or there is no tokenizer.
    """
    if tokenizer is None or not tokenizer.vocab.has_text:
        raise ParameterError(
            "heal=True looks at the bytes of tokens, and this model has none: leave it out"
        )
    known, (start, end) = token_prefixes(tokenizer), _healable(tokens, tokenizer.vocab.special)
    marks = [mark for _, *pair in marks_of(phases) for mark in pair if mark is not None]
    start = max(start, end - known.longest)  # each token has at least one byte
    for at in range(end - 1, start - 1, -1) if marks else ():
        part = tokens[max(0, at + 1 - MAX_MARK_BYTES) : at + 1]
        if _ends_in_mark(part, marks, tokenizer.vocab):
            start = at + 1
            break
    text, first = b"", end
    for at in range(end - 1, start - 1, -1):
        piece = known.bytes_of[tokens[at]]
        text = piece + text
        if not piece or len(text) >= known.longest:
            break
        if known.begins_longer(text):
            first = at
    return (*tokens[:first], *tokens[end:]), (first, tuple(tokens[first:end]))


def _ends_in_mark(tokens: Sequence[int], marks: Sequence[str | int], vocab: Any) -> bool:
    """Whether the last token is a mark or has a byte of one; white space around a mark does not count."""
    *before, last = map(vocab.token_bytes, tokens)
    since = len(b"".join(before))
    for mark in marks:
        if isinstance(mark, int):
            found = mark == tokens[-1]
        else:
            bare = (mark.strip() or mark).encode()
            at = b"".join((*before, last)).rfind(bare)
            found = at >= 0 and at + len(bare) > since
        if found:
            return True
    return False


def _healable(tokens: Sequence[int], special: Any) -> tuple[int, int]:
    """Range in which tokens may be taken back: all but the first, or what precedes a hole."""
    if special.fim_mid is None or tokens[-1] != special.fim_mid:
        return 1, len(tokens)
    marks = [0]
    marks += [i for i, token in enumerate(tokens) if token in (special.fim_pre, special.fim_suf)]
    if tokens[marks[-1]] == special.fim_suf:
        return marks[-2] + 1, marks[-1]
    return marks[-1] + 1, len(tokens) - 1


class Healing:
    """Restricts the first draws to tokens that agree with the bytes ``text`` that were taken back."""

    def __init__(self, known: TokenPrefixes, text: bytes) -> None:
        self._known, self._text = known, text

    def open(self, n_drawn: int) -> bool:
        """Whether bytes may be left after ``n_drawn`` tokens, each of which uses at least one."""
        return n_drawn < len(self._text)

    def masked(self, row: Floats, drawn: Sequence[int]) -> Floats:
        """The logits [V] to draw from after the tokens drawn so far: -inf for tokens that do not agree."""
        rest = self._text[sum(len(self._known.bytes_of[token]) for token in drawn) :]
        if not rest:
            return row
        left = np.full_like(row, -np.inf)
        allowed = [token for token in self._known.agreeing(rest) if token < len(row)]
        left[allowed] = row[allowed]
        return left
