"""Words to tokens without merges: the longest tokens (WordPiece), or those with the best scores (unigram).

The package `tokenizers` normalises texts, and finds the best scores.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from aleator.core.errors import FileFormatError
from aleator.text.special_tokens import SPACE, TokenAttribute
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import models, normalizers, pre_tokenizers

WORDS = 1 << 14
"""Words whose tokens are remembered."""


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
        normalizer, words = self._tools
        normalised = normalizer.normalize_str(text)
        return [i for word, _ in words.pre_tokenize_str(normalised) for i in self.cut(word)]

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
    def _tools(self) -> tuple[models.Unigram, normalizers.Normalizer | None]:
        """The model and the normaliser; made at the first text, since they take time."""
        from tokenizers import models, normalizers

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
        try:
            made = models.Unigram(pieces, vocab.unk, False)
            return made, normalizers.Precompiled(charsmap) if charsmap else None
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise FileFormatError(
                    str(vocab.source),
                    f"the tokenizer cannot be made: {error}",
                    field="tokenizer.ggml.model",
                ) from None
            raise

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        model, normalizer = self._tools
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        if self.vocab.normalisation["one_space"]:
            text = "".join(SPACE + word for word in text.split(" ") if word)
        elif text.strip(" "):
            text = (SPACE if self.vocab.add_space_prefix else "") + text.replace(" ", SPACE)
        return [token.id for token in model.tokenize(text)] if text else []
