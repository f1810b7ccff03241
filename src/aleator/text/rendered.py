"""A conversation as text in which only the template's control tokens are control tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from aleator.core.records import dataclass
from aleator.text.special_tokens import TokenAttribute
from aleator.text.tokenizer import Tokenizer, cut
from aleator.text.vocabulary import Vocabulary

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True)
class Rendered:
    """The output of a chat template."""

    # the text, with a private character in place of each name of a control token in a message
    marked: str
    # the names that these characters stand for
    literal: Mapping[str, str] = field(default_factory=dict)
    # user-defined tokens that, like control tokens, only the template may write
    guarded: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The readable text."""
        return unmarked(self.marked, self.literal)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids, with BOS and EOS only where the template wrote them."""
        if not any(mark in self.marked for mark in self.literal):
            return tokenizer.encode(self.marked, add_special=False, parse_special=True)
        vocab, ids = tokenizer.vocab, []
        names = longest_first([*control_names(vocab), *self.guarded])
        for part in cut(self.marked, [(name, vocab.ids[name]) for name in names], vocab):
            if isinstance(part, str):
                text = unmarked(part, self.literal)
                ids += tokenizer.encode(text, add_special=False, unread=self.guarded)
            else:
                ids.append(part)
        return ids

    def as_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids that begin with BOS if the vocabulary wants it, whether or not the template wrote it."""
        vocab, ids = tokenizer.vocab, self.encode(tokenizer)
        if vocab.add_bos and vocab.bos is not None and ids[:1] != [vocab.bos]:
            ids.insert(0, vocab.bos)
        return ids

    def after(self, n: int) -> Rendered | None:
        """The part after the first ``n`` characters of ``text``; None if that splits a name."""
        at = 0
        for i, character in enumerate(self.marked):
            if at >= n:
                return replace(self, marked=self.marked[i:]) if at == n else None
            at += len(self.literal.get(character, character))
        return replace(self, marked="") if at == n else None


def unmarked(text: str, literal: Mapping[str, str]) -> str:
    """A text with the private characters replaced by the names they stand for."""
    return text.translate({ord(mark): name for mark, name in literal.items()}) if literal else text


def control_names(vocab: Vocabulary) -> list[str]:
    """Texts that are read as control tokens if special tokens are parsed, the longest first."""
    return longest_first(
        filter(None, _texts_of(vocab, TokenAttribute.CONTROL, TokenAttribute.UNKNOWN))
    )


def _texts_of(vocab: Vocabulary, *kinds: TokenAttribute) -> Iterator[str]:
    """The texts of tokens that have one of the attributes."""
    return (vocab.tokens[i] for i in np.flatnonzero(np.isin(vocab.attributes, kinds)).tolist())


def guarded_names(vocab: Vocabulary, source: str) -> frozenset[str]:
    """User-defined tokens that structure a conversation: those that the template writes, and <|such|> ones.

    Others, such as runs of spaces and HTML tags, are read in any text.
    """
    return frozenset(
        name
        for name in _texts_of(vocab, TokenAttribute.USER_DEFINED)
        if name.strip() and (name in source or (name.startswith("<|") and name.endswith("|>")))
    )


def longest_first(names: Iterable[str]) -> list[str]:
    """Names without duplicates, those with the most bytes first."""
    return sorted(set(names), key=lambda name: (-len(name.encode()), name))


class Marks:
    """Private characters that replace names of tokens in a template's input.

    Templates trim, change and quote texts, so the names could not be found in the output.

    ``values`` are all inputs of the template, with texts at any depth; ``names`` are those of tokens, the
    longest first.  ``literal`` has the name of each private character.
    """

    def __init__(self, values: Any, names: Sequence[str]) -> None:
        whole = "\0".join(_texts(values))
        found = [name for name in names if name in whole]
        free = (chr(i) for block in _PRIVATE_USE for i in block if chr(i) not in whole)
        self.literal = dict(zip(free, found, strict=False)) if found else {}

    def mark(self, value: Any, but: Collection[str] = ()) -> Any:
        """Replace names, except those in ``but``, in a text or in texts of lists and mappings."""
        if isinstance(value, str):
            for character, name in self.literal.items():
                if name not in but:
                    value = value.replace(name, character)
            return value
        if isinstance(value, Mapping):
            return {self.mark(key, but): self.mark(each, but) for key, each in value.items()}
        return (
            [self.mark(each, but) for each in value] if isinstance(value, list | tuple) else value
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
