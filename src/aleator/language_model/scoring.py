"""A model's scores of given texts, without generating any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from aleator.core.arrays import Floats
from aleator.core.errors import ContextFull, ParameterError
from aleator.core.integers import exact
from aleator.engine.prompts import checked_prompt, checked_prompts
from aleator.generate import scores
from aleator.generate.context import Context
from aleator.generate.logprobs import Logprobs
from aleator.language_model.base import LoadedModel
from aleator.samplers import SamplingParams

T = TypeVar("T")
Made = TypeVar("Made")

TOGETHER = 32
"""Most texts that are computed together."""


class ScoringModel(LoadedModel):
    """The part of :class:`~aleator.LanguageModel` that scores texts."""

    def score(
        self,
        prompt: str | Sequence[int] | Sequence[str | Sequence[int]],
        continuation: str | Sequence[int] | Sequence[str | Sequence[int]],
    ) -> scores.Score | list[scores.Score]:
        """Score a continuation of a prompt by its probability; several are computed together.

        Texts are cut into tokens as evaluation harnesses do it: the tokens of the whole text without those of
        the prompt alone; white space at the end of a prompt goes to the continuation.  Equal prompts are
        computed once.

        Args:
            prompt: Text or token ids; or a list of them.
            continuation: Text or token ids; or a list of the same length.  With one prompt and a list of
                continuations, all continue that prompt.

        Returns:
            The score, or a list of scores if a list was given.

        Raises:
            ParameterError: Lists of different lengths or empty ones, or an empty prompt if the tokenizer puts
        no
                token before a text.
            TokenizerError: Token ids outside the vocabulary.
            ContextFull: A text longer than ``n_ctx``.
        """
        several = _is_list(prompt) or _is_list(continuation)
        prompts = checked_prompts(prompt if _is_list(prompt) else [prompt], 1)
        ends = list(continuation) if _is_list(continuation) else [continuation]
        if not ends:
            raise ParameterError("continuation is empty: give at least one text")
        if len(prompts) == 1:
            prompts *= len(ends)
        if len(prompts) != len(ends):
            raise ParameterError(
                f"continuation has {len(ends)} texts for {len(prompts)} prompts: give one for each"
            )
        texts = [self._pair(p, checked_prompt(e)) for p, e in zip(prompts, ends, strict=True)]
        made = self._together([t for t, _ in texts], texts, scores.scores_of)
        return made if several else made[0]

    def importance(
        self,
        prompt: str | Sequence[int],
        continuation: str | Sequence[int],
        behaviour: SamplingParams,
        target: SamplingParams,
    ) -> scores.Importance:
        """Score a continuation under two chains, after filters and temperatures, token by token.

        Args:
            prompt: Text or token ids.
            continuation: Text or token ids, such as the ``tokens`` of a generation.
            behaviour: Parameters of the chain that drew it.
            target: Parameters of another chain.

        Returns:
            Log-probabilities, kept tokens, ratios.

        Raises:
            ParameterError: A chain with mirostat, adaptive-p or llama.cpp's numerics; as for :meth:`score`.
            TokenizerError: Token ids outside the vocabulary.
            ContextFull: A text longer than ``n_ctx``.
        """
        text = self._pair(checked_prompt(prompt), checked_prompt(continuation))
        chains = [params.chain(self.tokenizer) for params in (behaviour, target)]
        for chain in chains:
            scores.check_fixed(chain)
            chain.accept_many(text[0][: text[1]])
        own, other = self._together(
            [text[0], text[0]],
            chains,
            lambda context, some: scores.chain_scores_of(context, [text] * len(some), some),
        )
        return scores.Importance(own, other)

    def prompt_logprobs(
        self, prompt: str | Sequence[int] | Sequence[str | Sequence[int]], top: int = 0
    ) -> list[Logprobs | None] | list[list[Logprobs | None]]:
        """The model's log-probabilities of every token of a prompt; several prompts are computed together.

        Args:
            prompt: Text or token ids; or a list of them.
            top: How many of the most probable tokens to list at each place.

        Returns:
            An entry for each token; None for the first, which nothing precedes.  A list of such lists if a list
            was given.

        Raises:
            ParameterError: ``top`` out of range, or an empty prompt.
            TokenizerError: Token ids outside the vocabulary.
            ContextFull: A prompt longer than ``n_ctx``.
        """
        number = exact(top)
        if number is None or not 0 <= number <= len(self.vocab):
            raise ParameterError(f"top={top!r:.80}: give 0 to {len(self.vocab)}")
        n_top: int = number
        vocab = self.vocab

        def bytes_of(token: int) -> bytes:
            return vocab.token_bytes(token) if vocab.has_text else b""

        texts = self._tokens_of(prompt if _is_list(prompt) else [prompt])
        made = self._together(
            texts,
            texts,
            lambda context, some: scores.prompt_logprobs_of(context, some, n_top, bytes_of),
        )
        return made if _is_list(prompt) else made[0]

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        pooling: str = "mean",
        normalize: bool = True,
    ) -> Floats:
        """Vectors of texts: their hidden states after the last norm, pooled; several are computed together.

        Args:
            texts: A text, or a list of texts or lists of token ids.
            pooling: "mean": over all tokens; "last": that of the last token.
            normalize: Whether vectors have length 1, so that their dot products are cosines.

        Returns:
            float32 [n, n_embd]; [n_embd] for a single text.

        Raises:
                ParameterError: A value out of range, or an empty text if the tokenizer puts no token before it.
            TokenizerError: Token ids outside the vocabulary.
            ContextFull: A text longer than ``n_ctx``.
        """
        if pooling not in scores.POOLING:
            raise ParameterError(
                f"pooling={pooling!r:.80}: give {' or '.join(map(repr, scores.POOLING))}"
            )
        if not isinstance(normalize, bool):
            raise ParameterError(f"normalize={normalize!r:.80}: give True or False")
        one = isinstance(texts, str)
        tokens = self._tokens_of([texts] if one else texts)
        made = self._together(
            tokens,
            tokens,
            lambda context, some: list(scores.vectors_of(context, some, pooling, normalize)),
            embeddings=True,
        )
        return made[0] if one else np.stack(made)

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        n_ctx: int = 512,
        chunks: int | None = None,
        progress: Callable[[scores.Perplexity], None] | None = None,
    ) -> scores.Perplexity:
        """Measure how well the model predicts a text, as ``llama-perplexity`` does.

        The text is cut into chunks of ``n_ctx`` tokens.  Each is computed with an empty cache; BOS replaces its
        first token if the tokenizer adds one.  Its second half is scored.

        Args:
            text: text, in which names of control tokens are text too, or token ids.
            n_ctx: tokens per chunk, at least 4.
            chunks: most chunks to compute; None: all whole ones.
            progress: called after each chunk with the result so far.

        Returns:
            Value and standard error over all computed chunks.

        Raises:
            ParameterError: a number out of range, or a text shorter than a chunk.
            TokenizerError: token ids outside the vocabulary.
        """
        tokens = self.request_maker.tokens(checked_prompt(text), False)
        bos = self.vocab.bos if self.vocab.add_bos else None
        n_chunks = scores.chunks_of(tokens, n_ctx, chunks)
        for found in scores.perplexities(self.context(n_ctx), tokens, n_ctx, n_chunks, bos):
            if progress is not None:
                progress(found)
        return found

    def _together(
        self,
        texts: Sequence[tuple[int, ...]],
        given: Sequence[T],
        compute: Callable[[Context, Sequence[T]], list[Made]],
        embeddings: bool = False,
    ) -> list[Made]:
        """Compute results for texts in groups, each in one batch, from the data given for each text."""
        longest = max(map(len, texts))
        if longest > self.n_ctx:
            raise ContextFull(
                f"a text has {longest} tokens and the context {self.n_ctx} positions: shorten it, or load the "
                "model with a larger n_ctx"
            )
        made: list[Made] = []
        parts = list(scores.groups(texts, TOGETHER, self.n_ctx))
        cells = max(sum(len(texts[i]) for i in part) for part in parts)
        context = self.context(cells, max(map(len, parts)), embeddings=embeddings)
        for part in parts:
            made += compute(context, [given[i] for i in part])
        return made

    def _tokens_of(self, prompts: object) -> list[tuple[int, ...]]:
        return [self.request_maker.tokens(each) for each in checked_prompts(prompts, 1)]

    def _pair(self, prompt: object, continuation: object) -> scores.Prompted:
        """Tokens of a prompt with its continuation, and the number of prompt tokens."""
        if isinstance(prompt, str) and isinstance(continuation, str):
            bare = prompt.rstrip()
            whole = self.request_maker.tokens(prompt + continuation)
            n = len(self.request_maker.tokens(bare))
            return whole, min(n, len(whole))
        first = self.request_maker.tokens(checked_prompt(prompt))
        rest = continuation
        if isinstance(rest, str):
            rest = self.tokenizer.encode(rest, add_special=False)
        return (*first, *self.request_maker.tokens(checked_prompt(rest))), len(first)


def _is_list(value: object) -> bool:
    """Whether a value is several texts: a list other than one of token ids."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    return not all(exact(each) is not None for each in value) or not value
