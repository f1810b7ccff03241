"""A model's vocabulary: its tokens as bytes, their kinds, and the rules of its tokenizer."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np

from aleator.core.arrays import Bytes, Floats
from aleator.core.errors import TokenizerError, UnsupportedModel
from aleator.core.forwarded import forwarded
from aleator.core.records import dataclass
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.text import gguf_vocabulary as gguf
from aleator.text.gguf_vocabulary import StoredTexts
from aleator.text.pretokenizers import ADDS_BOS, CHARACTERS
from aleator.text.special_tokens import (
    BYTE_CHARACTERS,
    SPACE,
    Pair,
    SpecialTokens,
    TokenAttribute,
    resolve,
)

_CHARACTER_BYTES = {character: bytes([byte]) for byte, character in BYTE_CHARACTERS.items()}
# The inverse for ``str.translate``: to the byte's Latin-1 character, or to U+FFFF if there is none.
_ONE_BYTE = str.maketrans(
    {chr(code): "\uffff" for code in range(0x80, 0x100)}
    | {character: byte.decode("latin-1") for character, byte in _CHARACTER_BYTES.items()}
)
_MODELS: dict[str, Literal["spm", "bpe"]] = {
    "llama": "spm", "gpt2": "bpe", "gemma4": "spm", "bert": "spm", "t5": "spm", "plamo2": "spm",
}  # fmt: skip
_PIECES: dict[str, Literal["wordpiece", "unigram", "unigram-bytes"]] = {
    "bert": "wordpiece", "t5": "unigram", "plamo2": "unigram-bytes",
}  # fmt: skip
_NO_VOCABULARY = ("no_vocab", "none")  # tokenizer.ggml.model of files that leave text to others
# Looked up by number, because making a TokenAttribute per token would take longer than all else.
_SPECIAL = {TokenAttribute.CONTROL, TokenAttribute.UNKNOWN}
_SHOWN_AS_STORED = {*_SPECIAL, TokenAttribute.USER_DEFINED}
_NOT_SHOWN = {TokenAttribute.UNUSED, TokenAttribute.UNDEFINED}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Vocabulary:
    """Tokens and rules; made by :meth:`from_gguf`, :meth:`from_directory`, :meth:`from_metadata`.

    Attributes:
        kind: "spm" (SentencePiece: ``▁`` is a space, bytes are ``<0xXX>``; with ``merges`` instead of
            ``scores`` it is Gemma 4's), "bpe" (byte-level: a character stands for each byte), or "none": the
            model has only token ids, and methods that need text raise TokenizerError.
        tokens: texts of tokens by id, as the file stores them.
        ids: the id of each text.
        attributes: uint8 [V], values of :class:`TokenAttribute`.
        special: ids of special tokens.
        eog: ids that end a generation, as llama.cpp finds them.
        add_bos: whether :meth:`Tokenizer.encode` puts BOS before a text.
        add_eos: whether it puts EOS after a text.
        add_space_prefix: whether encoding adds a space before the text.
        strip_before: ids of tokens that take the white space before them when a text is encoded.
        strip_after: ids of those that take it after them.
        pre: GGUF's name of the pre-tokenizer.
        scores: float32 [V], of a SentencePiece vocabulary.
        merges: of BPE: two tokens with a space between, best first.
        pieces: how words become tokens of a kind "spm" in other ways: "wordpiece": the longest tokens;
            "unigram": those with the best sum of scores; "unigram-bytes": so too, where ``▁`` is no space,
            and an unknown character is its bytes.
        normalisation: of a text before that, see :func:`~aleator.text.gguf_vocabulary.normalisation_of`.
        pair: what stands around a query and a document.
        rerank_template: text with ``{query}`` and ``{document}`` for models that answer "yes" or "no".
        chat_template: the model's own.
        chat_stop: strings that end a turn of a chat.
        source: the file or directory it was read from.
        tokenizer_json: used to encode instead of scores and merges.
    """

    kind: Literal["spm", "bpe", "none"]
    tokens: Sequence[str]
    ids: Mapping[str, int]
    attributes: Bytes
    special: SpecialTokens
    eog: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    strip_before: frozenset[int] = frozenset()
    strip_after: frozenset[int] = frozenset()
    pre: str = ""
    scores: Floats | None = None
    merges: Sequence[str] = ()
    pieces: Literal["", "wordpiece", "unigram", "unigram-bytes"] = ""
    normalisation: Mapping[str, Any] = field(default_factory=dict)
    pair: Pair = field(default_factory=Pair)
    rerank_template: str | None = None
    chat_template: str | None = None
    chat_stop: tuple[str, ...] = ()
    source: Path | None = field(default=None)
    tokenizer_json: Path | None = field(default=None)

    @classmethod
    def from_gguf(cls, file: str | os.PathLike[str] | GGUFFile) -> Vocabulary:
        """Read the vocabulary of a GGUF file, by its path or open.

        Raises:
            FileFormatError: it is unsound; names the field.
            UnsupportedModel: the tokenizer is neither SentencePiece's nor byte-level BPE.
        """
        if not isinstance(file, GGUFFile):
            file = GGUFFile(file)
        if file.get("tokenizer.ggml.model", "") in _NO_VOCABULARY:
            return cls.without_text(gguf.n_ids(file), file.path)
        return cls._read(file.fields)

    @classmethod
    def without_text(cls, size: int, path: str | os.PathLike[str]) -> Vocabulary:
        """The vocabulary of a model that has only ``size`` token ids; ``path`` is for messages."""
        return cls(
            kind="none",
            tokens=("",) * size,
            ids={},
            attributes=np.full(size, TokenAttribute.NORMAL, np.uint8),
            special=SpecialTokens(),
            eog=frozenset(),
            add_bos=False,
            add_eos=False,
            add_space_prefix=False,
            source=Path(path),
        )

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str]) -> Vocabulary:
        """Read the vocabulary of a Hugging Face directory.

        It has a tokenizer.json, or a tokenizer.model of SentencePiece, a vocab.txt of WordPiece, Moonshot's
        tiktoken.model, Qwen's qwen.tiktoken, or PLaMo's tokenizer.jsonl.

        Raises:
            FileFormatError: a file is missing or unsound; names file and field.
            UnsupportedModel: the tokenizer is of another kind.
        """
        # GGUF files need none of these.
        from aleator.text import huggingface, older_files

        path = Path(directory)
        if (path / "tokenizer.json").is_file() or (found := older_files.metadata(path)) is None:
            return cls(**huggingface.read_fields(path))
        made = cls.from_metadata(found[0], path)
        pair = replace(made.pair, second=made.pieces == "wordpiece")
        return replace(made, eog=made.eog | frozenset(found[1]), pair=pair)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], path: str | os.PathLike[str] = "metadata"
    ) -> Vocabulary:
        """Read a vocabulary from GGUF metadata by key; ``path`` is for messages.

        Errors are those of :meth:`from_gguf`.
        """
        return cls._read(Fields(path, metadata))

    @classmethod
    def _read(cls, fields: Fields) -> Vocabulary:
        path = fields.path
        model = fields.require("tokenizer.ggml.model", str)
        if model not in _MODELS:
            raise UnsupportedModel(
                f"{path}: tokenizer.ggml.model is {model!r}; supported are "
                f"{', '.join(map(repr, _MODELS))}"
            )
        pre = fields.get("tokenizer.ggml.pre", "default") if model != "gemma4" else model
        merged = model not in ("llama", *_PIECES)
        characters = merged and pre in CHARACTERS
        kind = "spm" if characters else _MODELS[model]
        tokens = gguf.strings(fields, "tokenizer.ggml.tokens")
        if not tokens:
            raise fields.error("tokenizer.ggml.tokens", "the vocabulary has no tokens")
        if not isinstance(tokens, StoredTexts) or tokens.stored.has_empty:
            tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
        ids = gguf.index_tokens(tokens, fields)
        attributes = gguf.attributes_of(fields, len(tokens))
        if kind == "spm":
            gguf.check_byte_tokens(fields, tokens, attributes)
        named = gguf.special_ids(fields, model, len(tokens))
        if model == "bert":
            named |= {"eos": named["sep"]} if "eos" not in named and "sep" in named else {}
        special, eog, changed = resolve(named, ids)
        attributes[list(changed)] = list(changed.values())
        add_bos = fields.get("tokenizer.ggml.add_bos_token", None, bool)
        add_eos = fields.get("tokenizer.ggml.add_eos_token", model == "t5")
        pair_bos = add_bos
        if model == "bert":
            add_bos = add_eos = True  # whatever the file says, as in llama.cpp
        for wanted, name in ((add_bos, "bos"), (add_eos, "eos")):
            if wanted and getattr(special, name) is None:
                raise fields.error(
                    f"tokenizer.ggml.{name}_token_id",
                    f"tokenizer.ggml.add_{name}_token is set, but no token is named",
                )
        if model == "plamo2":
            add_bos = add_eos = False  # whatever the file says, as in llama.cpp
        elif characters:
            add_bos = special.bos is not None  # likewise
        elif add_bos is None:
            wants_bos = (kind == "spm" and model != "t5") or pre in ADDS_BOS
            add_bos = wants_bos and special.bos is not None
        strip_before, strip_after = gguf.strips_of(fields, ids, attributes)
        pair = gguf.pair_of(fields, model, special, add_bos if pair_bos is None else pair_bos)
        chat_stop = (
            gguf.strings(fields, "aleator.chat.stop") if "aleator.chat.stop" in fields else []
        )
        return cls(
            kind=kind,
            tokens=tokens,
            ids=ids,
            attributes=attributes,
            special=special,
            eog=eog,
            add_bos=add_bos,
            add_eos=add_eos,
            add_space_prefix=not merged
            and fields.get("tokenizer.ggml.add_space_prefix", model != "plamo2"),
            strip_before=strip_before,
            strip_after=strip_after,
            pre=pre,
            scores=None if merged or model == "bert" else gguf.scores_of(fields, len(tokens)),
            merges=gguf.strings(fields, "tokenizer.ggml.merges") if merged else (),
            pieces=_PIECES.get(model, ""),
            normalisation=gguf.normalisation_of(fields) if model in _PIECES else {},
            pair=pair,
            rerank_template=fields.get("tokenizer.chat_template.rerank", None, str),
            chat_template=fields.get("tokenizer.chat_template", None, str),
            chat_stop=tuple(text for text in chat_stop if text),
            source=Path(str(path)),
        )

    def __len__(self) -> int:
        return len(self.attributes)

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind}, {len(self)} tokens, pre={self.pre!r})"

    bos: ClassVar[int | None] = forwarded("special.bos", "The token that begins a text.")
    eos: ClassVar[int | None] = forwarded("special.eos", "The token that ends a text.")
    eot: ClassVar[int | None] = forwarded("special.eot", "The token that ends a turn of a chat.")
    unk: ClassVar[int | None] = forwarded("special.unk", "The token for unknown text.")
    pad: ClassVar[int | None] = forwarded("special.pad", "The token that pads a batch.")

    @property
    def has_text(self) -> bool:
        """Whether tokens have texts; if not, the model has only ids."""
        return self.kind != "none"

    def require_text(self, what: str) -> None:
        """Raise TokenizerError if tokens have no texts, which ``what`` needs."""
        if not self.has_text:
            raise TokenizerError(
                f"{what} needs text, and {self.source} has no vocabulary (tokenizer.ggml.model): give token "
                "ids, and take the ids that come"
            )

    def check_id(self, token: SupportsIndex) -> int:
        """Return ``token`` as an int.

        Raises:
            TokenizerError: it is not an id of this vocabulary.
        """
        try:
            index = operator.index(token)
        except TypeError:
            raise TokenizerError(f"a token id must be an integer, not {token!r}") from None
        if not 0 <= index < len(self):
            raise TokenizerError(
                f"token id {index} is outside the vocabulary of {len(self)} tokens"
            )
        return index

    def text(self, token: SupportsIndex) -> str:
        """The token's text as the file stores it.

        Raises:
            TokenizerError: it is not an id of this vocabulary, or tokens have no texts.
        """
        self.require_text("the text of a token")
        return self.tokens[self.check_id(token)]

    def attribute(self, token: SupportsIndex) -> TokenAttribute:
        """The kind of the token."""
        return TokenAttribute(int(self.attributes[self.check_id(token)]))

    def is_special(self, token: SupportsIndex) -> bool:
        """Whether the token is a control token or the unknown token, which are not shown."""
        return int(self.attributes[self.check_id(token)]) in _SPECIAL

    def token_bytes(self, token: SupportsIndex) -> bytes:
        """The bytes that the token stands for; empty for an unused one.

        Raises:
            TokenizerError: it is not an id of this vocabulary, or tokens have no texts.
        """
        self.require_text("the text of a token")
        index = self.check_id(token)
        text, attribute = self.tokens[index], int(self.attributes[index])
        if self.pieces == "unigram-bytes" and attribute != TokenAttribute.BYTE:
            return text.encode()
        if attribute in _SHOWN_AS_STORED:
            # A GGUF file has spaces in a user-defined token's text, a tokenizer.json the marks for them.
            defined = attribute == TokenAttribute.USER_DEFINED and self.kind == "spm"
            marks = defined and self.tokenizer_json is not None
            return (text.replace(SPACE, " ") if marks else text).encode()
        if attribute in _NOT_SHOWN:
            return b""
        if self.kind == "bpe":
            try:
                return text.translate(_ONE_BYTE).encode("latin-1")
            except UnicodeEncodeError:
                return b"".join([_CHARACTER_BYTES.get(c) or c.encode() for c in text])
        if attribute == TokenAttribute.BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE, " ").encode()
