"""Words to tokens without merges: the longest tokens (WordPiece), or those with the best scores (unigram).

The package `tokenizers` normalises texts for WordPiece, and finds the best scores.
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
