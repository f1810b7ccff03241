"""A model's scores of given texts, without generating any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.parameter import check_callable
from aleator.engine.prompts import checked_prompt, checked_prompts
from aleator.generate import scores
from aleator.generate.logprobs import Logprobs
from aleator.language_model.embedding import EmbeddingModel, is_list
from aleator.samplers import SamplingParams


class ScoringModel(EmbeddingModel):
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
                no token before a text.
            TokenizerError: Token ids outside the vocabulary.
            ContextFull: A text longer than ``n_ctx``.
        """
        several = is_list(prompt) or is_list(continuation)
        prompts = checked_prompts(prompt if is_list(prompt) else [prompt], 1)
        ends = list(continuation) if is_list(continuation) else [continuation]
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
        vocab, n_top = self.vocab, exact(top)
        if n_top is None or not 0 <= n_top <= len(vocab):
            raise ParameterError(f"top={top!r:.80}: give 0 to {len(vocab)}")

        def bytes_of(token: int) -> bytes:
            return vocab.token_bytes(token) if vocab.has_text else b""

        prompts = checked_prompts(prompt if is_list(prompt) else [prompt], 1)
        texts = [self.request_maker.tokens(each) for each in prompts]
        compute = partial(scores.prompt_logprobs_of, top=n_top, token_bytes=bytes_of)
        made = self._together(texts, texts, compute)
        return made if is_list(prompt) else made[0]

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
        check_callable("progress", progress)
        tokens = self.request_maker.tokens(checked_prompt(text), False)
        bos = self.vocab.bos if self.vocab.add_bos else None
        n_chunks = scores.chunks_of(tokens, n_ctx, chunks)
        for found in scores.perplexities(self.context(n_ctx), tokens, n_ctx, n_chunks, bos):
            if progress is not None:
                progress(found)
        return found

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
