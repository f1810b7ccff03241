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
    """What a chat template wrote."""

    # the text, with a character of its own for every name of a control token that a message had
    marked: str
    # the names that these characters stand for
    literal: Mapping[str, str] = field(default_factory=dict)
    # user-defined tokens that only the template may write, as it does control tokens
    guarded: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The text as people read it."""
        return unmarked(self.marked, self.literal)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids, without BOS and EOS but those that the template wrote."""
        if not any(mark in self.marked for mark in self.literal):
            return tokenizer.encode(self.marked, add_special=False, parse_special=True)
        vocab, ids = tokenizer.vocab, []
        names = longest_first([*control_names(vocab), *self.guarded])
        for part in cut(self.marked, [(name, vocab.ids[name]) for name in names]):
            if isinstance(part, str):
                text = unmarked(part, self.literal)
                ids += tokenizer.encode(text, add_special=False, unread=self.guarded)
            else:
                ids.append(part)
        return ids

    def as_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids that begin with BOS where the vocabulary wants it, whether the template wrote it or not."""
        vocab, ids = tokenizer.vocab, self.encode(tokenizer)
        if vocab.add_bos and vocab.bos is not None and ids[:1] != [vocab.bos]:
            ids.insert(0, vocab.bos)
        return ids

    def after(self, n: int) -> Rendered | None:
        """What follows the first ``n`` characters of ``text``; None if that cuts a name in two."""
        at = 0
        for i, character in enumerate(self.marked):
            if at >= n:
                return replace(self, marked=self.marked[i:]) if at == n else None
            at += len(self.literal.get(character, character))
        return replace(self, marked="") if at == n else None


def unmarked(text: str, literal: Mapping[str, str]) -> str:
    """A text with names in place of the characters that stand for them."""
    return text.translate({ord(mark): name for mark, name in literal.items()}) if literal else text


def control_names(vocab: Vocabulary) -> list[str]:
    """Texts that are read as control tokens where special tokens are parsed, the longest first."""
    return longest_first(
        filter(None, _texts_of(vocab, TokenAttribute.CONTROL, TokenAttribute.UNKNOWN))
    )


def _texts_of(vocab: Vocabulary, *kinds: TokenAttribute) -> Iterator[str]:
    """The texts of tokens that have one of the attributes."""
    return (vocab.tokens[i] for i in np.flatnonzero(np.isin(vocab.attributes, kinds)).tolist())


def guarded_names(vocab: Vocabulary, source: str) -> frozenset[str]:
    """User-defined tokens that divide a conversation: those that the template writes, and <|such|>.

    Others, such as runs of spaces and tags of HTML, are read in any text.
    """
    return frozenset(
        name
        for name in _texts_of(vocab, TokenAttribute.USER_DEFINED)
        if name.strip() and (name in source or (name.startswith("<|") and name.endswith("|>")))
    )


def longest_first(names: Iterable[str]) -> list[str]:
    """Names without repetitions, those with the most bytes first."""
    return sorted(set(names), key=lambda name: (-len(name.encode()), name))


class Marks:
    """Private characters that stand for names of tokens in what a template is given.

    Templates trim, change and quote texts, so the names could not be found again afterwards.

    ``values`` are all that the template is given, with texts at any depth; ``names`` those of tokens, the
    longest first.  ``literal`` has the name of every private character.
    """

    def __init__(self, values: Any, names: Sequence[str]) -> None:
        whole = "\0".join(_texts(values))
        found = [name for name in names if name in whole]
        free = (chr(i) for block in _PRIVATE_USE for i in block if chr(i) not in whole)
        self.literal = dict(zip(free, found, strict=False)) if found else {}

    def mark(self, value: Any, but: Collection[str] = ()) -> Any:
        """A text, or texts in lists and mappings, with private characters in place of names, but some."""
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
