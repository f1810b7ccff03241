"""The parts of a vocabulary in GGUF metadata, each checked.

Texts stay in the file; Python objects are made only for those that are used.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

import aleator._native as _native
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile, Metadata
from aleator.text.special_tokens import PARSED, Pair, SpecialTokens, TokenAttribute

GGML = "tokenizer.ggml."
"""How GGUF's names of the fields of a tokenizer begin."""


class StoredTexts(Sequence[str]):
    """Strings of a GGUF file, by index; ``stored`` is their native form."""

    __slots__ = ("stored",)

    def __init__(self, stored: _native.StringArray) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.stored[i] for i in range(len(self))[index]]
        return self.stored[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
        return list, (list(self),)  # another process may not have the file


def native_texts(texts: Sequence[str]) -> _native.StringArray:
    """Texts for native code, from their file or a copy, up to the first with a lone surrogate."""
    if isinstance(texts, StoredTexts):
        return texts.stored
    data = bytearray()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        data += len(raw).to_bytes(8, "little") + raw
    return _native.StringArray(np.frombuffer(data, np.uint8), 0, len(texts))


class TextNumbers(Mapping[str, int]):
    """A mapping from distinct strings to their indices."""

    __slots__ = ("_texts",)

    def __init__(self, texts: StoredTexts) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __contains__(self, text: object) -> bool:
        return self._find(text) >= 0

    def __getitem__(self, text: str) -> int:
        found = self._find(text)
        if found < 0:
            raise KeyError(text)
        return found

    def _find(self, text: object) -> int:
        return self._texts.stored.find(text) if isinstance(text, str) else -1

    def __reduce__(self) -> tuple[type[dict[str, int]], tuple[dict[str, int]]]:
        return dict, ({text: i for i, text in enumerate(self)},)


# GGUF's names of special ids, as in tokenizer.ggml.<name>_token_id.
GGUF_SPECIALS = {
    "unknown": "unk",
    "seperator": "sep",
    "padding": "pad",
    "prefix": "fim_pre",
    "suffix": "fim_suf",
    "middle": "fim_mid",
    **{field: field for field in ("bos", "eos", "eot", "eom", "mask")},
    **{field: field for field in SpecialTokens.__annotations__ if field.startswith("fim_")},
}


def is_byte_token(text: str) -> bool:
    """Whether ``text`` is ``<0xXX>`` with two hexadecimal digits."""
    digits = "0123456789abcdefABCDEF"
    return len(text) == 6 and text[:3] == "<0x" and text[5] == ">" and set(text[3:5]) <= set(digits)


def n_ids(file: GGUFFile) -> int:
    """The number of token ids of a model without a vocabulary."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    return file.fields.integer(f"{file.get('general.architecture', '')}.vocab_size", 1, 2**31 - 1)


def index_tokens(tokens: Sequence[str], fields: Fields) -> Mapping[str, int]:
    """Map texts to ids; FileFormatError if a text occurs twice."""
    twice: tuple[int, int] | None = None
    ids: Mapping[str, int]
    if isinstance(tokens, StoredTexts):
        ids, twice = TextNumbers(tokens), tokens.stored.first_twice()
    else:
        ids = {text: i for i, text in enumerate(tokens)}
        if len(ids) < len(tokens):
            twice = next((i, ids[text]) for i, text in enumerate(tokens) if ids[text] != i)
    if twice is not None:
        key = "tokenizer.ggml.tokens"
        raise fields.error(key, f"tokens {twice[0]} and {twice[1]} are both {tokens[twice[0]]!r}")
    return ids


def strings(fields: Fields, key: str) -> Sequence[str]:
    """Return an array of strings; FileFormatError if it is missing or something else."""
    found = fields.values  # strings of an open file stay in the file
    if isinstance(found, Metadata) and (stored := found.strings(key)) is not None:
        return StoredTexts(stored)
    values: list[Any] = fields.require(key, list)
    if not set(map(type, values)) <= {str}:
        raise fields.error(key, f"{key} must be an array of strings")
    return values


def numbers(fields: Fields, key: str, n_tokens: int) -> NDArray[Any]:
    """Return an array of one number per token; FileFormatError if it is missing or something else."""
    found = fields.values
    stored = found.numbers(key) if isinstance(found, Metadata) else None
    values: Any = fields.require(key, list) if stored is None else stored
    if stored is None and not set(map(type, values)) <= {int, float}:
        raise fields.error(key, f"{key} must be an array of numbers")
    if len(values) != n_tokens:
        raise fields.error(key, f"{key} has {len(values)} values for {n_tokens} tokens")
    return np.array(values)


def scores_of(fields: Fields, n_tokens: int) -> NDArray[np.float32]:
    """Return the scores of tokens, float32 [n_tokens]; FileFormatError for a NaN."""
    scores = numbers(fields, "tokenizer.ggml.scores", n_tokens).astype(np.float32)
    if np.isnan(scores).any():
        where = int(np.flatnonzero(np.isnan(scores))[0])
        raise fields.error("tokenizer.ggml.scores", f"the score of token {where} is not a number")
    return scores


def attributes_of(fields: Fields, n_tokens: int) -> NDArray[np.uint8]:
    """Return the kind of each token, uint8 [n_tokens]; FileFormatError for unknown numbers."""
    key = "tokenizer.ggml.token_type"
    if key not in fields:
        return np.full(n_tokens, TokenAttribute.NORMAL, np.uint8)
    types = numbers(fields, key, n_tokens)
    known = np.isin(types, list(TokenAttribute))
    if not known.all():
        where = int(np.flatnonzero(~known)[0])
        raise fields.error(
            key, f"the type of token {where} is {types[where]}; it must be between 0 and 6"
        )
    return types.astype(np.uint8)


def check_byte_tokens(fields: Fields, tokens: Sequence[str], attributes: NDArray[np.uint8]) -> None:
    """Raise FileFormatError if the text of a byte token is not ``<0xXX>``."""
    for token in np.flatnonzero(attributes == TokenAttribute.BYTE).tolist():
        if not is_byte_token(tokens[token]):
            raise fields.error(
                "tokenizer.ggml.tokens",
                f"token {token} is a byte, but its text {tokens[token]!r} is not <0xXX>",
            )


_DEFAULTS = {
    "llama": {"unk": 0, "bos": 1, "eos": 2},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "plamo2": {"unk": 0, "bos": 1, "eos": 2, "pad": 3},
}
"""Ids of special tokens that the file does not name, by ``tokenizer.ggml.model``."""


_STRIPPING_MASKS = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_STRIPPING_MODELS = ("phi-3", "phi3")
_NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of these models that do not take the white space after them."""


def special_ids(fields: Fields, model: str, n_tokens: int) -> dict[str, int]:
    """The ids of special tokens, by their names in :class:`~aleator.text.special_tokens.SpecialTokens`."""
    defaults = _DEFAULTS.get(model, {})
    named = dict(defaults) if max(defaults.values(), default=0) < n_tokens else {}
    for gguf_name, name in GGUF_SPECIALS.items():
        key = f"tokenizer.ggml.{gguf_name}_token_id"
        if key in fields:
            named[name] = fields.integer(key, 0, n_tokens - 1)
    return named


def strips_of(
    fields: Fields, ids: Mapping[str, int], attributes: NDArray[np.uint8]
) -> tuple[frozenset[int], frozenset[int]]:
    """The tokens that take the white space before them, and those that take it after them.

    Files do not say so; llama.cpp goes by the names of models and pre-tokenizers.
    """
    name = fields.get("general.name", "").lower()
    pre = fields.get("tokenizer.ggml.pre", "")
    architecture = fields.get("general.architecture", "")
    if any(each in pre for each in _STRIPPING_MASKS) or architecture == "jina-bert-v3":
        mask = ids.get("<mask>")
    elif any(each in name for each in _STRIPPING_MODELS):
        found = np.flatnonzero(np.isin(attributes, PARSED)).tolist()
        return frozenset(), frozenset(found) - {ids.get(text) for text in _NOT_STRIPPING}
    else:
        mask = ids.get("[MASK]") if "modern-bert" in name else None
    return frozenset(() if mask is None else (mask,)), frozenset()


def pair_of(fields: Fields, model: str, special: SpecialTokens, add_bos: bool) -> Pair:
    """What llama-server puts around a query and a document."""
    pre = fields.get("tokenizer.ggml.pre", "")
    wants_sep = model == "bert" or pre in ("jina-v1-en", "jina-v2-code", "roberta-bpe")
    add_sep = fields.get("tokenizer.ggml.add_sep_token", wants_sep)
    add_eos = fields.get("tokenizer.ggml.add_eos_token", model == "t5")
    end = special.sep if special.eos is None else special.eos
    ends, sep, begin = ([end] if add_eos else []), [special.sep] if add_sep else [], special.bos
    found = [[begin] if add_bos else [], [*ends, *sep], ends]
    before, between, after = (tuple(i for i in part if i is not None) for part in found)
    return Pair(before, between, after)


def normalisation_of(fields: Fields) -> dict[str, Any]:
    """How a text is normalised before it is cut into words or pieces."""
    key = "tokenizer.ggml.precompiled_charsmap"
    found = fields.values
    stored = found.numbers(key) if isinstance(found, Metadata) else None
    if stored is None and isinstance(found.get(key), bytes):  # of a directory
        stored = np.frombuffer(found[key], np.uint8)
    values: Any = fields.get(key, []) if stored is None else stored
    try:
        charsmap = np.array(values, np.int64).astype(np.uint8).tobytes()
    except (ValueError, TypeError, OverflowError):
        raise fields.error(key, f"{key} must be an array of bytes") from None
    size = 4 + int.from_bytes(charsmap[:4], "little")  # of a table of 32-bit numbers; texts follow
    if charsmap and (size % 4 or size > len(charsmap)):
        why = f"{key} has {len(charsmap)} bytes, and a table that ends at byte {size}"
        raise fields.error(key, why)
    part = "tokenizer.ggml.normalizer."
    return {
        "charsmap": charsmap,
        "one_space": fields.get("tokenizer.ggml.remove_extra_whitespaces", False),
        "lowercase": fields.get(f"{part}lowercase", True),
        "strip_accents": fields.get(f"{part}strip_accents", True),
    }
