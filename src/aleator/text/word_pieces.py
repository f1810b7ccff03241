"""Words to tokens without merges: the longest tokens (WordPiece), or the best scores (unigram, PLaMo).

The package `tokenizers` normalises texts for WordPiece, and finds the best scores of unigram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from aleator.core.errors import AleatorError, FileFormatError, TokenizerError
from aleator.text.character_map import CharacterMap
from aleator.text.special_tokens import SPACE, TokenAttribute
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import models, normalizers, pre_tokenizers

WORDS = 1 << 14
"""Words whose tokens are remembered."""
PART = 1 << 14
"""Characters after which a text is cut at a space: `tokenizers` lets no other thread run meanwhile."""
REMEMBERED = 64
"""Most characters of such a word."""


def _not_encoded(why: str) -> TokenizerError:
    return TokenizerError(f"the text cannot be encoded: {why}")


@contextmanager
def refusals(make_error: Callable[[str], AleatorError] = _not_encoded) -> Iterator[None]:
    """Raise TokenizerError, or what ``make_error`` makes, instead of an error of `tokenizers`."""
    try:
        yield
    except BaseException as error:
        # A panic of the Rust code is not an Exception; text of many millions of spaces causes one.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise make_error(str(error)) from None


class WordPieces:
    """WordPiece (Devlin et al. 2018, arXiv:1810.04805): a word is cut into the longest tokens, from its start.

    A word that cannot be cut is unknown.  A word of any length is cut, as in llama.cpp.
    Unlike there, where accents are stripped, Hangul syllables keep all their letters.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab, texts = vocab, list(vocab.tokens)
        if vocab.unk is None:
            raise FileFormatError(
                str(vocab.source), "names no unknown token", field="tokenizer.ggml.unknown_token_id"
            )
        self.unk, self.ids = vocab.unk, {text: i for i, text in enumerate(texts)}
        self.longest = max(map(len, texts))
        self.cut = lru_cache(WORDS)(self._cut)

    @cached_property
    def _tools(self) -> tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer]:
        from tokenizers import normalizers, pre_tokenizers

        chosen = self.vocab.normalisation
        return normalizers.BertNormalizer(
            strip_accents=chosen["strip_accents"], lowercase=chosen["lowercase"]
        ), pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        normalizer, cutter = self._tools
        ids, at = list[int](), 0
        while at < len(text):
            end = text.find(" ", at + PART)
            part, at = (text[at:], len(text)) if end < 0 else (text[at:end], end)
            with refusals():
                words = cutter.pre_tokenize_str(normalizer.normalize_str(part))
            for word, _ in words:
                ids += self.cut(word) if len(word) <= REMEMBERED else self._cut(word)
        return ids

    def _cut(self, word: str) -> tuple[int, ...]:
        word, made, at = SPACE + word, list[int](), 0
        while at < len(word):
            for end in range(min(len(word), at + self.longest), at, -1):
                found = self.ids.get(word[at:end])
                if found is not None:
                    made.append(found)
                    at = end
                    break
            else:
                return (self.unk,)
        return tuple(made)


class Unigram:
    """The tokens with the largest sum of scores (Kudo 2018, arXiv:1804.10959)."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab

    @cached_property
    def _tools(self) -> tuple[models.Unigram, CharacterMap | None]:
        """The model and the replacements of characters; made at the first text, since they take time."""
        from tokenizers import models

        vocab = self.vocab
        scores = np.zeros(len(vocab)) if vocab.scores is None else vocab.scores.astype(np.float64)
        read = np.isin(vocab.attributes, [TokenAttribute.NORMAL, TokenAttribute.USER_DEFINED])
        scores[vocab.attributes == TokenAttribute.USER_DEFINED] = 0.0
        # Tokens that no text has get a name that no normalised text has either: it contains a space.
        pieces = [
            (text, score) if known else (f" {i}", 0.0)
            for i, (text, score, known) in enumerate(
                zip(vocab.tokens, scores.tolist(), read.tolist(), strict=True)
            )
        ]
        charsmap = vocab.normalisation["charsmap"]
        with refusals(self._damaged):
            made = models.Unigram(pieces, vocab.unk, False)
        return made, CharacterMap(charsmap) if charsmap else None

    def _damaged(self, why: str) -> FileFormatError:
        message, source = f"the tokenizer cannot be made: {why}", str(self.vocab.source)
        return FileFormatError(source, message, field="tokenizer.ggml.model")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        model, replacements = self._tools
        if replacements is not None:
            text = replacements.replace(text)
        with refusals():
            if self.vocab.normalisation["one_space"]:
                text = "".join(SPACE + word for word in text.split(" ") if word)
            else:
                begins = self.vocab.add_space_prefix and text.strip(" ")
                text = (SPACE if begins else "") + text.replace(" ", SPACE)
            return [token.id for token in model.tokenize(text)] if text else []


_UNKNOWN = 10_000_000
"""The cost of a character without a piece."""
MOST_SUFFIXES = 1 << 28
"""Characters of the suffixes of all pieces; those of a vocabulary of 100,000 have some millions."""


class Plamo:
    """PLaMo's pieces with the best sum of scores, in whole ten-thousandths; of equal ones the longest first.

    A character without a piece is its bytes.  As in llama.cpp, where a piece costs as much as such a character,
    as unused ones do, nothing shorter is looked for, and no piece leads from the place before into it.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        is_byte, texts = vocab.attributes == TokenAttribute.BYTE, list(vocab.tokens)
        bytes_ = np.flatnonzero(is_byte).tolist()
        # In llama.cpp the id 0 is none.
        self.bytes = {int(texts[i][3:5], 16): i for i in bytes_ if i}
        wrong = "" if len(self.bytes) == 256 else f"{len(self.bytes)} tokens of bytes, not 256"
        if sum(len(text) ** 2 for text in texts) > 2 * MOST_SUFFIXES:
            wrong = f"pieces with suffixes of more than {MOST_SUFFIXES} characters"
        if wrong or vocab.scores is None:
            field = "tokenizer.ggml.tokens"
            raise FileFormatError(str(vocab.source), f"has {wrong or 'no scores'}", field=field)
        exact = vocab.scores.astype(np.float64) * 1e4
        costs = -np.trunc(exact + np.copysign(0.5, exact))
        used = ~is_byte & (costs > -(2**31)) & (costs < 2 * _UNKNOWN)
        self.pieces = {texts[i]: (int(costs[i]), i) for i in np.flatnonzero(used).tolist()}
        self.suffixes = set[str]()
        for i in np.flatnonzero(~is_byte).tolist():
            for at in range(len(texts[i])):
                if (suffix := texts[i][at:]) in self.suffixes:
                    break
                self.suffixes.add(suffix)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        text = text.removeprefix("\ufeff")
        # From each place to the end: the least cost, and the first piece's length and token.
        best = [(0, 0, -1)] * (len(text) + 1)
        known = 0  # characters from here on that may be a piece's end
        for at in range(len(text) - 1, -1, -1):
            known = self._known(text, at, known)
            options = []
            for size in range(known, 0, -1):
                cost, token = self.pieces.get(text[at : at + size], (0, -1))
                if token >= 0:
                    options.append((best[at + size][0] + cost, -size, token))
                    if cost == _UNKNOWN:
                        break
            else:
                options.append((best[at + 1][0] + _UNKNOWN, 0, -1))
            best[at] = min(options)
        ids, at = list[int](), 0
        while at < len(text):
            _, size, token = best[at]
            ids += [token] if size else [self.bytes[byte] for byte in text[at].encode()]
            at += -size or 1
        return ids

    def _known(self, text: str, at: int, known: int) -> int:
        """The length of the longest suffix at ``at``, from that of the next place."""
        for size in range(known, -1, -1):
            if text[at : at + size + 1] in self.suffixes:
                return size + 1
            if self.pieces.get(text[at + 1 : at + 1 + size], (0, -1))[0] == _UNKNOWN:
                break
        return 0
