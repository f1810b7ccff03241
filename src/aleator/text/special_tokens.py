"""Special tokens: the ids that a vocabulary names, known texts, and what ends a generation.

The texts, and the rule for the end-of-generation set, are facts about llama.cpp 0.5 (observed by loading
vocabularies made for the purpose); models name their end of turn in no other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from aleator.core.records import dataclass

SPACE = "▁"  # U+2581 stands for a space in SentencePiece's tokens


def _byte_alphabet() -> dict[int, str]:
    """Map bytes to their characters in a byte-level vocabulary (GPT-2's encoder.py).

    Printable Latin-1 stands for itself; the others are numbered from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update((byte, chr(0x100 + i)) for i, byte in enumerate(others))
    return alphabet


BYTE_CHARACTERS = _byte_alphabet()


class TokenAttribute(IntEnum):
    """The kind of a token, with the numbers of GGUF's ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


PARSED = (TokenAttribute.CONTROL, TokenAttribute.UNKNOWN, TokenAttribute.USER_DEFINED)
"""Tokens that are cut out of a text by their names."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; None for those that the vocabulary does not have."""

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None  # end of turn
    eom: int | None = None  # end of message: the turn goes on, with a tool's answer
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None


@dataclass(frozen=True)
class Pair:
    """What stands around a query and a document that are read together."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    second: bool = False  # the document, and what is after it, are a second segment


# Found by their text if the file does not name them; the first one present counts.
_KNOWN_TEXTS: dict[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>", "_<EOT>", "[EOT]",
        "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|endoftext|>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
# These end a generation in every vocabulary that has them.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[",
    "<eos>", "<turn|>", "<|tool_response>", "<|end_of_text|>", "<end_of_utterance>",
)  # fmt: skip
_END_SPECIALS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# gpt-oss separates the parts of a message with these; they are shown as text, not control tokens.
_MESSAGE_PARTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def resolve(
    named: Mapping[str, int], ids: Mapping[str, int], also_ends: Iterable[int] = ()
) -> tuple[SpecialTokens, frozenset[int], dict[int, TokenAttribute]]:
    """Return special tokens as llama.cpp finds them, the ids that end a generation, and attributes by text.

    ``named`` are ids that the model's files name, by field of :class:`SpecialTokens`; ``ids`` maps every
    token's text to its id; ``also_ends`` are further ends that the files list.
    """
    found = dict(named)
    attributes: dict[int, TokenAttribute] = {}
    for name, texts in _KNOWN_TEXTS.items():
        known = next((ids[text] for text in texts if text in ids), None)
        if name not in named and known is not None:
            found[name] = known
            attributes[known] = TokenAttribute.CONTROL
    ends = {ids[text] for text in _END_TEXTS if text in ids}
    attributes.update(dict.fromkeys(ends, TokenAttribute.CONTROL))
    for text in _MESSAGE_PARTS:
        if text in ids:
            attributes[ids[text]] = TokenAttribute.USER_DEFINED
    ends.update(found[name] for name in _END_SPECIALS if name in found)
    # gpt-oss: <|end|> closes a part of the message; <|return|> and <|call|> end it.
    if "<|return|>" in ids and ("<|call|>" in ids or "<|calls|>" in ids) and "<|end|>" in ids:
        ends.discard(ids["<|end|>"])
        attributes[ids["<|end|>"]] = TokenAttribute.USER_DEFINED
    # In Gemma 4 </s> is an HTML tag.
    if "<|tool_response>" in ids and "</s>" in ids:
        ends.discard(ids["</s>"])
        attributes[ids["</s>"]] = TokenAttribute.NORMAL
    return SpecialTokens(**found), frozenset(ends.union(also_ends)), attributes
