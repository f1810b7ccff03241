"""Reads the models of SentencePiece (tokenizer.model): pieces, and how texts are normalised.

They are protocol buffers; the numbers of the fields are those of sentencepiece_model.proto (sentencepiece 0.2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.files.mapping import map_file
from aleator.text.gguf_vocabulary import GGML, is_byte_token
from aleator.text.special_tokens import TokenAttribute

MAX_BYTES = 1 << 26  # of a file; one with 256,000 pieces has 4 MB
_UNIGRAM, _BPE = 1, 2


def read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a model.

    Returns:
        The fields of GGUF's metadata, and the ids of special tokens, by their names in SpecialTokens.

    Raises:
        ModelNotFound, FileFormatError: the file is missing or damaged.
        UnsupportedModel: it treats texts in a way that GGUF does not know.
    """
    data = map_file(path)
    if data.size > MAX_BYTES:
        raise FileFormatError(path, f"{data.size} bytes; at most {MAX_BYTES} are read")
    ids, scores, attributes = dict[str, int](), list[float](), list[int]()
    trainer = normaliser = dict[int, int | bytes]()
    for number, part in _Message(path, data.tobytes()).fields():
        if number == 1:
            text, score, kind = _piece(path, part, len(ids))
            if ids.setdefault(text, len(ids)) != len(scores):
                raise FileFormatError(
                    path, f"the piece {text!r:.60} is there twice", field="pieces"
                )
            scores.append(score)
            attributes.append(kind)
        elif number == 2:
            trainer = dict(_Message(path, part).fields())
        elif number == 3:
            normaliser = dict(_Message(path, part).fields())
    unknown = [i for i, kind in enumerate(attributes) if kind == TokenAttribute.UNKNOWN]
    if len(unknown) != 1:
        raise FileFormatError(
            path, f"has {len(unknown)} unknown tokens instead of one", field="pieces"
        )
    special = {"unk": unknown[0]}
    for name, key, usual in (("bos", 46, b"<s>"), ("eos", 47, b"</s>"), ("pad", 48, b"<pad>")):
        found = ids.get(_text(path, trainer.get(key, usual), f"the {name} token"), -1)
        if found >= 0 and attributes[found] == TokenAttribute.CONTROL:
            special[name] = found
    charsmap = normaliser.get(2, b"")
    if not isinstance(charsmap, bytes):
        raise FileFormatError(path, "is a number", field="precompiled_charsmap")
    model, suffix = trainer.get(3, _UNIGRAM), trainer.get(24, 0)
    prefix, one_space, escape = (bool(normaliser.get(key, 1)) for key in (3, 4, 5))
    for wrong, what in (
        (
            model not in (_UNIGRAM, _BPE),
            f"a model of the type {model!r:.20}, which is neither unigram nor BPE",
        ),
        (
            model == _UNIGRAM and trainer.get(35, 0),
            "a unigram model that spells unknown characters as bytes (byte_fallback)",
        ),
        (suffix, "spaces that belong to the word before them (treat_whitespace_as_suffix)"),
        (not escape, "spaces that stay as they are (escape_whitespaces)"),
        (one_space and not prefix, "extra spaces that are removed, and none in front of a text"),
        (
            model == _BPE and (charsmap or one_space),
            "a BPE model that changes a text before it cuts it",
        ),
    ):
        if wrong:
            raise UnsupportedModel(f"{path}: {what}: GGUF files cannot say that")
    made = {
        f"{GGML}model": "t5" if model == _UNIGRAM else "llama",
        f"{GGML}tokens": list(ids),
        f"{GGML}token_type": attributes,
        f"{GGML}scores": scores,
        f"{GGML}add_space_prefix": prefix,
        f"{GGML}remove_extra_whitespaces": one_space,
        f"{GGML}precompiled_charsmap": charsmap,
    }
    return made, special


def _piece(path: Path, data: int | bytes, i: int) -> tuple[str, float, int]:
    """The text, the score and the kind of piece ``i``; FileFormatError for one that no model has."""
    text, score, kind, wrong = "", 0.0, int(TokenAttribute.NORMAL), ""
    for key, value in _Message(path, data).fields():
        if key == 1:
            text = _text(path, value, f"piece {i}")
        elif key == 2 and isinstance(value, bytes) and len(value) == 4:
            score = struct.unpack("<f", value)[0]
        elif key == 3 and isinstance(value, int):
            kind = value
    if not text:
        wrong = "has no text"
    elif score != score:
        wrong = "has a score that is not a number"
    elif not TokenAttribute.NORMAL <= kind <= TokenAttribute.BYTE:
        wrong = f"has the type {kind}; types are 1 to 6"
    elif kind == TokenAttribute.BYTE and not is_byte_token(text):
        wrong = f"is a byte, but its text {text!r:.40} is not <0xXX>"
    if wrong:
        raise FileFormatError(path, f"piece {i} {wrong}", field="pieces")
    return text, score, kind


def _text(path: Path, value: int | bytes, what: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        raise FileFormatError(path, f"{what} is not UTF-8", field="pieces") from None


class _Message:
    """A message of a protocol buffer."""

    def __init__(self, path: Path, data: int | bytes) -> None:
        if not isinstance(data, bytes):
            raise FileFormatError(path, "has a number where a message belongs")
        self.path, self.data = path, data

    def fields(self) -> Iterator[tuple[int, int | bytes]]:
        """The numbers of fields, and their values: integers, or bytes (four or eight of a number)."""
        at, data = 0, self.data
        while at < len(data):
            key, at = self._integer(at)
            kind = key & 7
            if kind == 0:
                value, at = self._integer(at)
                yield key >> 3, value
                continue
            if kind not in (1, 2, 5):
                raise self._damaged(at)
            size, at = self._integer(at) if kind == 2 else (8 if kind == 1 else 4, at)
            if size > len(data) - at:
                raise self._damaged(at)
            yield key >> 3, data[at : at + size]
            at += size

    def _integer(self, at: int) -> tuple[int, int]:
        """An integer of at most 64 bits, seven to a byte, and where it ends."""
        value = 0
        for place, byte in enumerate(self.data[at : at + 10]):
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value, at + place + 1
        raise self._damaged(at)

    def _damaged(self, at: int) -> FileFormatError:
        return FileFormatError(
            self.path, f"is no model of SentencePiece: a message is damaged at its byte {at}"
        )
