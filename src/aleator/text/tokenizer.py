"""Text to token ids and back.

Native code merges for GGUF vocabularies.  The package `tokenizers` cuts the text of byte-level ones into words,
and encodes with a tokenizer.json.
"""

from __future__ import annotations

import codecs
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

import aleator._native as _native
from aleator.core.errors import FileFormatError, TokenizerError
from aleator.text.gguf_vocabulary import native_texts
from aleator.text.pretokenizers import WHOLE_WORDS, ascii_cuts, ascii_words, expressions
from aleator.text.special_tokens import BYTE_CHARACTERS, PARSED, SPACE, TokenAttribute
from aleator.text.vocabulary import Vocabulary
from aleator.text.word_pieces import Plamo, Unigram, WordPieces, refusals

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import pre_tokenizers


class StreamDecoder:
    """Turns ids into text one at a time; a character is returned when its last byte arrives.

    The pieces join to the text of all ids: bytes that are not UTF-8 become U+FFFD where
    ``bytes.decode(errors="replace")`` would put it.  For a vocabulary without texts all pieces are empty.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        skip_special: bool = True,
        at_start: bool = True,
        shown: Collection[int] = (),
        skip: int = 0,
    ) -> None:
        """Start to decode.

        Args:
            vocab: the vocabulary of the ids.
            skip_special: leave out control tokens and the unknown token.
            at_start: whether a text begins here; False keeps the space that a SentencePiece vocabulary puts
                before the first word.
            shown: control tokens that are not left out.
            skip: number of leading bytes to leave out, which belong to the text before.
        """
        self.vocab, self.skip_special, self._shown = vocab, skip_special, frozenset(shown)
        self._skip = skip
        self._strip_space = at_start and vocab.add_space_prefix and not skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: SupportsIndex) -> str:
        """Return the text that ``token`` completes, which may be empty.

        Raises:
            TokenizerError: the id is outside the vocabulary; nothing has changed.
        """
        if not self.vocab.has_text:
            self.vocab.check_id(token)
            return ""
        piece = self.vocab.token_bytes(token)
        if not piece or (
            self.skip_special and self.vocab.is_special(token) and int(token) not in self._shown
        ):
            return ""
        if self._strip_space:
            self._strip_space = False
            piece = piece.removeprefix(b" ")
        if self._skip:
            n, piece = len(piece), piece[self._skip :]
            self._skip = max(0, self._skip - n)
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End the text; return U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)


# From this many characters on, encoding without offsets is twice as fast; it costs threads and a warning after
# a fork.
_LONG = 4096
WHITE = " \t\n\v\f\r"
"""The white space that special tokens of some models take."""
_LINES = re.compile(r"[^\n]+|\n+")
_PIECES: dict[str, type[WordPieces | Unigram | Plamo]] = {
    "wordpiece": WordPieces,
    "unigram": Unigram,
    "unigram-bytes": Plamo,
}
_BYTE_TOKENS = {byte: f"<0x{byte:02X}>" for byte in range(256)}


class Tokenizer:
    """Encodes and decodes with ``vocab``, with llama.cpp's ids for a GGUF vocabulary.

    Several threads can use it at once.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        """Build the tokenizer.

        Args:
            vocab: tokens and rules.

        Raises:
            UnsupportedModel: the pre-tokenizer is not supported.
            FileFormatError: a merge is not two tokens that make a third one.
        """
        self.vocab = vocab
        if vocab.has_text:
            encoder = _MetadataEncoder if vocab.tokenizer_json is None else _FileEncoder
            self._encode_body = encoder(vocab).encode

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        return Tokenizer, (self.vocab,)  # another process makes its own tables

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        unread: Collection[str] = (),
    ) -> list[int]:
        """Encode a text as token ids.

        Args:
            text: the text.
            add_special: add BOS and EOS if the vocabulary wants them.
            parse_special: read the texts of control tokens as these tokens (never do that with untrusted text);
                user-defined tokens are always read, except those in ``unread``.
            unread: texts of user-defined tokens to treat as ordinary text.

        Raises:
            TokenizerError: the text is not Unicode (lone surrogates), has characters without a token, or
                the model has no vocabulary.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text has a lone surrogate, {text[error.start]!r}, at index {error.start}; "
                "decode the input with errors='replace'"
            ) from None
        vocab, ids = self.vocab, list[int]()
        if text:
            vocab.require_text("encoding")
            ids = self._encode_body(text, parse_special, frozenset(unread))
        if add_special and vocab.add_bos and vocab.bos is not None:
            ids.insert(0, vocab.bos)
        if add_special and vocab.add_eos and vocab.eos is not None:
            ids.append(vocab.eos)
        return ids

    def encode_pair(
        self,
        query: str | Sequence[int],
        document: str | Sequence[int],
        most: int | None = None,
    ) -> tuple[list[int], int | None]:
        """Encode a query and a document that are read together.

        Args:
            query: the query, or its tokens.
            document: the document, or its tokens.
            most: tokens of both; the end of a document is cut off where it would be more.  None: any number.

        Returns:
            Token ids, and where the second segment begins; None: there is only one.

        Raises:
            TokenizerError: as for :meth:`encode`.
        """
        pair = self.vocab.pair
        first, second = (
            self.encode(each, add_special=False) if isinstance(each, str) else [*each]
            for each in (query, document)
        )
        ids = [*pair.before, *first, *pair.between]
        if most is not None:
            del second[max(0, most - len(ids) - len(pair.after)) :]
        return [*ids, *second, *pair.after], len(ids) if pair.second else None

    def decode(
        self, ids: Iterable[SupportsIndex], skip_special: bool = False, at_start: bool = True
    ) -> str:
        """Decode token ids to text; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: the tokens.
            skip_special: leave out control tokens and the unknown token.
            at_start: False keeps the space that a SentencePiece vocabulary puts before the first word, for text
                that continues other text.

        Raises:
            TokenizerError: an id is outside the vocabulary, or the model has no vocabulary.
        """
        self.vocab.require_text("decoding")
        stream = self.stream(skip_special, at_start)
        return "".join([stream.push(token) for token in ids]) + stream.flush()

    def stream(
        self,
        skip_special: bool = True,
        at_start: bool = True,
        shown: Collection[int] = (),
        skip: int = 0,
    ) -> StreamDecoder:
        """Make a decoder that takes one id at a time; its pieces join to the result of :meth:`decode`.

        The arguments are those of :class:`StreamDecoder`.
        """
        return StreamDecoder(self.vocab, skip_special, at_start, shown, skip)


class _MetadataEncoder:
    """Encodes with the merges or scores of GGUF metadata."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        attributes = vocab.attributes
        special = np.isin(attributes, [TokenAttribute.CONTROL, TokenAttribute.UNKNOWN])
        parsed = np.flatnonzero(np.isin(attributes, PARSED))
        # The longest text is cut out first, wherever it stands.
        order = sorted(parsed.tolist(), key=lambda i: -len(vocab.tokens[i].encode()))
        self.parsed = [(vocab.tokens[i], i) for i in order]
        self.always_parsed = [(text, i) for text, i in self.parsed if not special[i]]
        self.pieces: Callable[[str], list[int]]
        names = _BYTE_TOKENS
        if vocab.pieces:
            self.pieces = _PIECES[vocab.pieces](vocab).encode
            names = {}
        elif vocab.kind == "bpe":
            self.pieces = _ByteLevel(vocab).encode
            names = BYTE_CHARACTERS
        elif vocab.merges:  # on characters, between newlines
            merger = _merging(vocab, list(_BYTE_TOKENS.values()), characters=True)
            self.pieces = lambda text: merger.encode(_LINES.findall(text))
        else:
            self.pieces = _sentencepiece(vocab).encode
        self.missing_bytes = {byte for byte, text in names.items() if text not in vocab.ids}

    def encode(self, text: str, parse_special: bool, unread: frozenset[str]) -> list[int]:
        ids: list[int] = []
        after_special = True
        parsed = self.parsed if parse_special else self.always_parsed
        if unread:
            parsed = [each for each in parsed if each[0] not in unread]
        for part in cut(text, parsed, self.vocab):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            if self.vocab.kind == "spm" and not self.vocab.pieces:
                prefix = SPACE if self.vocab.add_space_prefix and after_special else ""
                part = prefix + part.replace(" ", SPACE)
            if self.missing_bytes:
                self._check_bytes(part)
            ids += self.pieces(part)
            after_special = False
        return ids

    def _check_bytes(self, text: str) -> None:
        """Refuse characters that the backend would drop."""
        vocab = self.vocab
        if vocab.kind == "spm" and vocab.unk is not None and not vocab.merges:
            return
        for character in sorted(set(text)):
            known = vocab.kind == "spm" and character in vocab.ids
            if not known and not self.missing_bytes.isdisjoint(character.encode()):
                raise TokenizerError(
                    f"the vocabulary has no tokens for the character {character!r}"
                )


class _FileEncoder:
    """Encodes with a tokenizer.json."""

    def __init__(self, vocab: Vocabulary) -> None:
        import tokenizers

        path = str(vocab.tokenizer_json)
        with refusals(lambda why: FileFormatError(path, f"cannot be read by tokenizers: {why}")):
            self.backend = tokenizers.Tokenizer.from_file(path)
        for token_id, token in self.backend.get_added_tokens_decoder().items():
            if vocab.ids.get(token.content) != token_id:
                raise FileFormatError(
                    path,
                    f"the token {token.content!r} has the id {vocab.ids.get(token.content)} where "
                    f"{token_id} comes next",
                    field="added_tokens",
                )
        self.backends = {frozenset[str](): self.backend}
        self.backend.no_truncation()
        self.backend.no_padding()
        self.lock = threading.Lock()

    def encode(self, text: str, parse_special: bool, unread: frozenset[str]) -> list[int]:
        with self.lock:
            backend = self.backends.get(unread) or self._without(unread)
            backend.encode_special_tokens = not parse_special
            with refusals():
                if len(text) < _LONG:
                    return list(backend.encode(text, add_special_tokens=False).ids)
                return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _without(self, unread: frozenset[str]) -> tokenizers.Tokenizer:
        """A backend that treats some user-defined tokens as special, and reads them only as such."""
        import tokenizers

        description = json.loads(self.backend.to_str())
        for token in description["added_tokens"]:
            token["special"] |= token["content"] in unread
        made = self.backends[unread] = tokenizers.Tokenizer.from_str(json.dumps(description))
        return made


def cut(
    text: str, parsed: Sequence[tuple[str, int]], vocab: Vocabulary | None = None
) -> Iterator[str | int]:
    """Cut the tokens ``parsed`` out of ``text``, in their order; yield text and ids in turn.

    White space that these tokens of ``vocab`` take is left out.
    """
    before, after = (vocab.strip_before, vocab.strip_after) if vocab else ((), ())
    parts: list[str | int] = [text]
    for token_text, token in parsed:
        if token_text not in text:
            continue
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            pieces = part.split(token_text)
            if token in before:
                pieces[:-1] = [piece.rstrip(WHITE) for piece in pieces[:-1]]
            if token in after:
                pieces[1:] = [piece.lstrip(WHITE) for piece in pieces[1:]]
            cut.append(pieces[0])
            for piece in pieces[1:]:
                cut += (token, piece)
        parts = cut
    return (part for part in parts if part != "")


class _ByteLevel:
    """Byte-level BPE: cuts a text into words; native code merges each word's bytes."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.cuts = expressions(vocab.pre)
        self.native = _merging(vocab, [BYTE_CHARACTERS[byte] for byte in range(256)])

    @cached_property
    def words(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer; made at the first text, since importing `tokenizers` takes time."""
        return splits(self.cuts)

    @cached_property
    def ascii_cuts(self) -> list[re.Pattern[str]]:
        """The expressions that cut ASCII text; [] if :attr:`words` must do it."""
        return ascii_cuts(self.cuts)

    def encode(self, text: str) -> list[int]:
        if len(text) < _LONG and text.isascii() and self.ascii_cuts:
            return self.native.encode(ascii_words(self.ascii_cuts, text))
        with refusals():
            words = self.words.pre_tokenize_str(text)
        return self.native.encode([word for word, _ in words])


def splits(cuts: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of expressions, each of which cuts the parts that the previous one made."""
    import tokenizers
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(cut), "isolated") for cut in cuts]
    )


def _merging(
    vocab: Vocabulary, byte_texts: Sequence[str], characters: bool = False
) -> _native.BytePairEncoder:
    """Make the native merger from the vocabulary's merges; check each."""
    merges = native_texts(vocab.merges)
    made = _native.BytePairEncoder(
        _tokens(vocab), merges, byte_texts, vocab.pre in WHOLE_WORDS, characters
    )
    bad = made.bad_merge
    _check_merges(vocab, len(merges) if bad < 0 and len(merges) < len(vocab.merges) else bad)
    return made


def _tokens(vocab: Vocabulary) -> _native.StringArray:
    tokens = native_texts(vocab.tokens)
    if len(tokens) < len(vocab.tokens):
        raise FileFormatError(
            vocab.source,
            f"token {len(tokens)}, {vocab.tokens[len(tokens)]!r}, has a lone surrogate",
            field="tokenizer.ggml.tokens",
        )
    return tokens


def _check_merges(vocab: Vocabulary, bad: int) -> None:
    """Refuse a merge that is not two tokens that make a third one."""
    if bad < 0:
        return
    merge = vocab.merges[bad]
    left, space, right = merge.partition(" ")
    if space:
        unknown = next(text for text in (left, right, left + right) if text not in vocab.ids)
        message = f"merge {bad}, {merge!r}, needs the token {unknown!r}, which is missing"
    else:
        message = f"merge {bad}, {merge!r}, is not two tokens with a space between"
    raise FileFormatError(vocab.source, message, field="tokenizer.ggml.merges")


def _sentencepiece(vocab: Vocabulary) -> _native.SentencePieceEncoder:
    if vocab.scores is None:
        raise TokenizerError("a SentencePiece vocabulary needs scores")
    bytes_ = list(_BYTE_TOKENS.values())
    return _native.SentencePieceEncoder(_tokens(vocab), vocab.scores, bytes_, vocab.unk, SPACE)
