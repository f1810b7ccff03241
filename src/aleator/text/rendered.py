"""A conversation as text in which only the template's control tokens are control tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aleator.text.special_tokens import TokenAttribute
from aleator.text.tokenizer import Tokenizer, cut
from aleator.text.vocabulary import Vocabulary

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True)
class Rendered:
    """What a chat template wrote.

    Attributes:
        marked: the text, with a character of its own for every name of a control token that a message had.
        literal: the names that these characters stand for.
    """

    marked: str
    literal: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text as people read it."""
        return unmarked(self.marked, self.literal)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids, without BOS and EOS but those that the template wrote."""
        if not any(mark in self.marked for mark in self.literal):
            return tokenizer.encode(self.marked, add_special=False, parse_special=True)
        vocab, ids = tokenizer.vocab, []
        parsed = [(name, vocab.ids[name]) for name in control_names(vocab)]
        for part in cut(self.marked, parsed):
            if isinstance(part, str):
                ids += tokenizer.encode(unmarked(part, self.literal), add_special=False)
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
                return Rendered(self.marked[i:], self.literal) if at == n else None
            at += len(self.literal.get(character, character))
        return Rendered("", self.literal) if at == n else None


def unmarked(text: str, literal: Mapping[str, str]) -> str:
    """A text with names in place of the characters that stand for them."""
    return text.translate({ord(mark): name for mark, name in literal.items()}) if literal else text


def control_names(vocab: Vocabulary) -> list[str]:
    """Texts that are read as control tokens where special tokens are parsed, the longest first."""
    control = (TokenAttribute.CONTROL, TokenAttribute.UNKNOWN)
    names = [
        vocab.tokens[i]
        for i, attribute in enumerate(vocab.attributes.tolist())
        if attribute in control and vocab.tokens[i]
    ]
    return sorted(set(names), key=lambda name: -len(name.encode()))


def mark_messages(
    messages: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> tuple[list[Any], dict[str, str]]:
    """Messages with a private character for every name of a control token, and what these stand for.

    Args:
        messages: a conversation; texts at any depth are looked at.
        names: of control tokens, the longest first.
    """
    whole = "\0".join(_texts(messages))
    found = [name for name in names if name in whole]
    if not found:
        return list(messages), {}
    free = (chr(i) for block in _PRIVATE_USE for i in block if chr(i) not in whole)
    literal = dict(zip(free, found, strict=False))

    def mark(value: Any) -> Any:
        if isinstance(value, str):
            for character, name in literal.items():
                value = value.replace(name, character)
            return value
        if isinstance(value, Mapping):
            return {key: mark(each) for key, each in value.items()}
        return [mark(each) for each in value] if isinstance(value, list | tuple) else value

    return [mark(message) for message in messages], literal


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
