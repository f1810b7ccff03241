"""Text as bytes to the tokens with which a model would usually spell it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Made = TypeVar("Made")


class Spelling:
    """Cuts bytes into tokens whose bytes join to exactly these.

    A tokenizer cuts as in the model's training; with a vocabulary the longest token is taken each time.
    """

    def __init__(self, vocabulary: Any) -> None:
        # Weak, because this object lives as long as the tokenizer and must not keep it alive.
        encodes = hasattr(vocabulary, "encode")
        self._tokenizer = weakref.ref(vocabulary) if encodes else lambda: None
        vocab = getattr(vocabulary, "vocab", vocabulary)
        special = getattr(vocab, "is_special", vocab.eog.__contains__)
        self.ends = sorted(vocab.eog)
        self.pieces = [
            b"" if i in vocab.eog or special(i) else vocab.token_bytes(i) for i in range(len(vocab))
        ]
        """The bytes of every token; empty for special tokens."""
        self._ids = {piece: i for i, piece in reversed(list(enumerate(self.pieces))) if piece}
        self._longest = max(map(len, self.pieces), default=0)

    def tokens(self, text: bytes) -> list[int]:
        """Return the tokens; trailing bytes that no token spells are left out."""
        tokenizer = self._tokenizer()
        if tokenizer is not None:
            try:
                tokens = list(tokenizer.encode(text.decode(), add_special=False))
            except ValueError:  # not UTF-8, or a character without a token
                tokens = []
            if tokens and self.pieces[tokens[0]] == b" " and not text.startswith(b" "):
                del tokens[0]  # SentencePiece begins a text with it
            if b"".join([self.pieces[token] for token in tokens]) == text:
                return tokens
        return self._longest_first(text)

    def _longest_first(self, text: bytes) -> list[int]:
        tokens, at = [], 0
        while at < len(text):
            ends = range(min(at + self._longest, len(text)), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), None)
            if end is None:
                break
            tokens.append(self._ids[text[at:end]])
            at = end
        return tokens


def once_each(make: Callable[[Any], Made]) -> Callable[[Any], Made]:
    """Let a function of a vocabulary keep what it makes, as long as the vocabulary lives."""
    kept: weakref.WeakKeyDictionary[Any, Made] = weakref.WeakKeyDictionary()

    @wraps(make)
    def made(vocabulary: Any) -> Made:
        try:
            found = kept.get(vocabulary)
            if found is None:
                found = kept[vocabulary] = make(vocabulary)
        except TypeError:  # no weak references
            found = make(vocabulary)
        return found

    return made


@once_each
def spelling(vocabulary: Any) -> Spelling:
    """The spelling of a tokenizer or a vocabulary, made once per object."""
    return Spelling(vocabulary)
