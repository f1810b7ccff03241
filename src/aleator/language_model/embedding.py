"""Vectors of texts, and scores of documents for a query."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from aleator.core.arrays import Floats
from aleator.core.cancellation import check_cancelled
from aleator.core.errors import ContextFull, FileFormatError, ParameterError, UnsupportedModel
from aleator.core.integers import exact
from aleator.core.records import dataclass
from aleator.generate import scores, vectors
from aleator.generate.context import Context
from aleator.language_model.base import LoadedModel
from aleator.models.encoder import Encoder, no_texts
from aleator.models.score_head import (
    ANSWERS,
    ScoreHead,
    has_head,
    pooling_of,
    sigmoid,
    yes_probability,
)
from aleator.text.rendered import Marks, Rendered, control_names

T = TypeVar("T")
Made = TypeVar("Made")

TOGETHER = 32
"""Most texts that are computed together."""
QUERY, DOCUMENT = "{query}", "{document}"
_PLACES = r"\{query\}|\{document\}"


@dataclass(frozen=True)
class Ranked:
    """A document and how well it answers the query."""

    index: int  # its place in the list that was given
    score: float  # larger for better answers
    n_tokens: int  # tokens of query and document together


class EmbeddingModel(LoadedModel):
    """The part of :class:`~aleator.LanguageModel` that makes vectors of texts, and ranks documents."""

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        pooling: str | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        dimensions: int | None = None,
    ) -> Floats:
        """Vectors of texts: their hidden states after the last layer, pooled; several are computed together.

        Dense layers that the model has behind the pooling (EmbeddingGemma) make the vectors of these.

        Args:
            texts: A text, or a list of texts or lists of token ids.
            pooling: "mean": over all tokens; "cls": the first token's; "last": the last one's; "max": of each
                number the largest; "weightedmean": a mean in which the nth token counts n times;
                "mean_sqrt_len": the sum divided by the square root of the number of tokens.  None: as the
                model's files say; else "mean".
            normalize: Whether vectors have length 1, so that their dot products are cosines, whatever the
                model's files say.
            truncate: Cut texts that are too long; otherwise they are refused.
            dimensions: How many of each vector's numbers are kept, the first ones, before ``normalize``; models
                trained for that (Matryoshka) lose little.  None: all.

        Returns:
            float32 [n, dimensions]; [dimensions] for a single text; without ``dimensions`` of ``n_embd``, or
            what the last dense layer has.

        Raises:
            ParameterError: A value out of range, or an empty text if the tokenizer puts no token before it.
            TokenizerError: Token ids outside the vocabulary.
            ContextFull: A text longer than ``n_ctx``.
        """
        chosen = self.pooling if pooling is None else pooling
        if chosen not in vectors.POOLING:
            known = " or ".join(map(repr, vectors.POOLING))
            asked = (
                f"{chosen!r:.80}"
                if pooling is not None
                else "None: the model's files ask for another kind"
            )
            raise ParameterError(
                "pooling", f"pooling={asked}: give {known}, or call embed_tokens() for no pooling"
            )
        _check_switches(normalize=normalize, truncate=truncate)
        width = self.projection.width
        if dimensions is not None and not 1 <= (exact(dimensions) or 0) <= width:
            message = f"dimensions={dimensions!r:.80}: give 1 to {width}, or None for all"
            raise ParameterError("dimensions", message)
        one = isinstance(texts, str)
        states = np.stack(list(self._pooled(self._whole(texts, truncate), chosen)))
        found = self._projected(states)[:, :dimensions]
        made = vectors.normalised(found) if normalize else found.astype(np.float32)
        return made[0] if one else made

    def embed_tokens(
        self, texts: str | Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> list[Floats]:
        """The hidden states of every token of some texts, not pooled; where there are dense layers, theirs.

        Args:
            texts: As for :meth:`embed`.
            truncate: As for :meth:`embed`.

        Returns:
            For each text float32 [tokens, n_embd], or as wide as the last dense layer's output.

        Raises:
            ParameterError, TokenizerError, ContextFull: as for :meth:`embed`.
        """
        _check_switches(truncate=truncate)
        return [*map(self._projected, self._pooled(self._whole(texts, truncate), "none"))]

    def _projected(self, states: Floats) -> Floats:
        made = self.projection(states)
        if not np.isfinite(made).all():
            raise self._not_finite("vectors")
        return made

    def _whole(self, texts: object, truncate: bool) -> list[tuple[int, ...]]:
        """The tokens of texts that end."""
        items = [texts] if isinstance(texts, str) else texts
        if isinstance(items, bytes | Mapping) or not isinstance(items, Iterable):
            raise ParameterError("texts", f"texts={items!r:.80}: give a text, or a list of texts")
        tokens: list[tuple[int, ...]] = []
        for i, each in enumerate(items):
            try:
                ids: Any = each if isinstance(each, str) else [*map(exact, each)]
            except TypeError:
                ids = [None]
            if isinstance(each, bytes) or (not isinstance(ids, str) and None in ids):
                message = f"texts[{i}]={each!r:.80}: give a text, or a list of token ids"
                raise ParameterError("texts", message)
            found = self.request_maker.tokens(ids, of=f"texts[{i}]", whole=True)
            tokens.append(self._cut(found) if truncate else found)
        if not tokens:
            raise ParameterError("texts", "texts is empty: give at least one text")
        return tokens

    @property
    def pooling(self) -> str:
        """How hidden states are pooled if a call does not say."""
        own = self.weights.config.pooling
        return {"": "mean", "rank": pooling_of(self.weights)}.get(own, own)

    @property
    def longest(self) -> bool:
        """Whether ``n_ctx`` is all that the model can have, as an encoder with vectors of positions."""
        return isinstance(self.decoder, Encoder) and self.n_ctx == self.decoder.most_positions

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = False,
        truncate: bool = False,
        template: str | None = None,
        max_tokens_per_doc: int | None = None,
    ) -> list[Ranked]:
        """Score how well documents answer a query; the best come first.

        The model has a head for that (a cross-encoder, or a GGUF file of Qwen3-Reranker); or, with a template,
        it is any model that answers "yes" or "no".

        Args:
            query: The query.
            documents: Texts.
            top_n: How many to return; None: all.
            normalize: Whether scores go through the sigmoid, so that they are between 0 and 1; those of models
                that answer "yes" or "no" are probabilities in any case.
            truncate: Cut documents that are too long; otherwise they are refused.
            template: Text with ``{query}`` and ``{document}``, in which names of control tokens are such; None:
                the model file's.
            max_tokens_per_doc: How many tokens are read of each document, as at Cohere; None: all.

        Raises:
            ParameterError: A value of another type or out of range, or an empty document.
            UnsupportedModel: The model has no head for scores, and there is no template.
            ContextFull: Query and document together longer than ``n_ctx``.
        """
        self._check_rerank(query, documents, top_n=top_n, max_tokens_per_doc=max_tokens_per_doc)
        _check_switches(normalize=normalize, truncate=truncate)
        written = self.vocab.rerank_template if template is None else template
        if written is not None and not (
            isinstance(written, str) and QUERY in written and DOCUMENT in written
        ):
            raise ParameterError(
                "template", f"template={written!r:.80}: give text with {QUERY} and {DOCUMENT}"
            )
        if self._head is None and (written is None or isinstance(self.decoder, Encoder)):
            raise UnsupportedModel(
                f"rerank: {self.weights.path} has no head for scores (cls.output.weight), and no template for "
                "answers: load a reranker"
            )
        first = self.tokenizer.encode(query, add_special=False) if written is None else []
        room = self.n_ctx if truncate else None
        tokens: list[tuple[int, ...]] = []
        seconds: list[int | None] = []
        for i, each in enumerate(documents):
            check_cancelled()
            whole = self.tokenizer.encode(each, add_special=False)
            read = whole[:max_tokens_per_doc]
            if written is None:
                ids, second = self.tokenizer.encode_pair(first, read, room)
            else:
                if len(read) < len(whole):
                    each = self._beginning(read)
                ids, second = self._written(written, query, each), None
                while truncate and len(ids) > self.n_ctx and read:
                    read = read[: max(0, len(read) + self.n_ctx - len(ids))]
                    ids = self._written(written, query, self._beginning(read))
            if not ids:
                raise ParameterError(
                    "documents", f"query and documents[{i}] have no tokens: give other texts"
                )
            self._check_lengths([ids], truncate)
            tokens.append(tuple(ids))
            seconds.append(second)
        found = self._scores(tokens, seconds)
        if not all(map(math.isfinite, found)):
            raise self._not_finite("scores")
        probable = self._head is None or self._head.probability
        ranked = [
            Ranked(i, sigmoid(score) if normalize and not probable else score, len(tokens[i]))
            for i, score in enumerate(found)
        ]
        return sorted(ranked, key=lambda each: (-each.score, each.index))[:top_n]

    def _check_rerank(self, query: object, documents: object, **counts: object) -> None:
        if not isinstance(query, str) or not query.strip():
            raise ParameterError("query", f"query={query!r:.80}: give a text")
        if isinstance(documents, str | bytes) or not isinstance(documents, Sequence):
            raise ParameterError("documents", f"documents={documents!r:.80}: give a list of texts")
        if not documents:
            raise ParameterError("documents", "documents is empty: give at least one text")
        for i, each in enumerate(documents):
            if not isinstance(each, str) or not each.strip():
                raise ParameterError(
                    "documents", f"documents[{i}] is {each!r:.80}: give a text that is not empty"
                )
        for name, count in counts.items():
            if count is not None and (exact(count) or 0) < 1:
                raise ParameterError(
                    name, f"{name}={count!r:.80}: give an integer, 1 or more, or None for all"
                )

    @cached_property
    def _head(self) -> ScoreHead | None:
        return ScoreHead(self.weights) if has_head(self.weights) else None

    def _beginning(self, tokens: list[int]) -> str:
        """The text of a text's first tokens, without a character of which the end is cut off."""
        return self.tokenizer.decode(tokens).rstrip("\ufffd")

    def _written(self, template: str, query: str, document: str) -> list[int]:
        """The tokens of a template, in which names of control tokens in query and document are text."""
        marks = Marks([query, document], control_names(self.vocab))
        said = {QUERY: marks.mark(query), DOCUMENT: marks.mark(document)}
        text = re.sub(_PLACES, lambda found: said[found[0]], template)
        return Rendered(text, marks.literal).encode(self.tokenizer)

    def _scores(self, texts: list[tuple[int, ...]], seconds: list[int | None]) -> list[float]:
        """The score of each text, which is a query with a document."""
        head = self._head
        if head is not None:
            return [
                head.score(each.astype(np.float32))
                for each in self._pooled(texts, head.pooling, seconds)
            ]
        ids = self.vocab.ids
        if not all(each in ids for each in ANSWERS):
            raise UnsupportedModel(
                "rerank: the vocabulary has no tokens 'yes' and 'no' to answer with"
            )
        yes, no = (ids[each] for each in ANSWERS)

        def answers(context: Context, some: Sequence[tuple[int, ...]]) -> list[float]:
            wanted = [scores.ScoredText(text, len(text) - 1) for text in some]
            return [
                yes_probability(float(r[yes]), float(r[no]))
                for _, _, r in scores.rows_of(context, wanted)
            ]

        return self._together(texts, texts, answers)

    def _pooled(
        self,
        texts: Sequence[tuple[int, ...]],
        pooling: str,
        seconds: Sequence[int | None] | None = None,
    ) -> Iterator[Floats]:
        """The hidden states of each text, pooled, in order."""
        made: Iterator[Floats]
        if isinstance(self.decoder, Encoder):
            self._check_lengths(texts)
            made = (vectors.pooled(each, pooling) for each in self.decoder.states(texts, seconds))
        else:
            made = iter(
                self._together(
                    texts,
                    texts,
                    lambda context, some: list(vectors.pooled_of_decoder(context, some, pooling)),
                    embeddings=True,
                )
            )
        for each in made:
            if not np.isfinite(each).all():
                raise self._not_finite("hidden states")
            yield each

    def _not_finite(self, what: str) -> FileFormatError:
        message = (
            f"{what} are not finite numbers: the weights are damaged, or too large for float32"
        )
        return FileFormatError(self.weights.path, message)

    def _cut(self, text: tuple[int, ...]) -> tuple[int, ...]:
        """A text of at most ``n_ctx`` tokens, with the last one if that ends texts."""
        if len(text) <= self.n_ctx:
            return text
        end = text[-1:] if self.vocab.add_eos and text[-1] == self.vocab.eos else ()
        return text[: self.n_ctx - len(end)] + end

    def _check_lengths(self, texts: Sequence[Sequence[int]], cut: bool = False) -> None:
        """Raise ContextFull for a text that is too long; ``cut``: the document of each pair was cut."""
        longest = max(map(len, texts))
        if longest <= self.n_ctx:
            return
        if cut:
            raise ContextFull(
                f"the query alone takes {longest} of the context's {self.n_ctx} positions: shorten it"
            )
        message = f"a text has {longest} tokens and the context {self.n_ctx} positions"
        if self.longest:
            raise ContextFull(
                f"{message}, which are all that the model has: shorten it, or give truncate=True"
            )
        raise ContextFull(f"{message}: shorten it, or load the model with a larger n_ctx")

    def _together(
        self,
        texts: Sequence[tuple[int, ...]],
        given: Sequence[T],
        compute: Callable[[Context, Sequence[T]], list[Made]],
        embeddings: bool = False,
    ) -> list[Made]:
        """Compute results for texts in groups, each in one batch, from the data given for each text."""
        if isinstance(self.decoder, Encoder):
            raise no_texts("scores of tokens")
        self._check_lengths(texts)
        made: list[Made] = []
        parts = list(scores.groups(texts, TOGETHER, self.n_ctx))
        cells = max(sum(len(texts[i]) for i in part) for part in parts)
        context = self.context(cells, max(map(len, parts)), embeddings=embeddings)
        for part in parts:
            made += compute(context, [given[i] for i in part])
        return made


def _check_switches(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ParameterError(name, f"{name}={value!r:.80}: give True or False")


def is_list(value: object) -> bool:
    """Whether a value is several texts: a list other than one of token ids."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    return not all(exact(each) is not None for each in value) or not value
