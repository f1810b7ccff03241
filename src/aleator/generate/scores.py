"""A model's scores of given texts: token probabilities, perplexity, vectors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from aleator.core.arrays import Doubles, Floats
from aleator.core.cancellation import check_cancelled
from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.records import dataclass
from aleator.generate.context import Batch, Context
from aleator.generate.logprobs import Logprobs, TokenBytes, log_softmax, top_logprobs
from aleator.samplers import SamplerChain
from aleator.samplers.kept_tokens import KeptRow, KeptTokens

ROWS_BYTES = 2**26
"""Most bytes of rows that are held at once."""


@dataclass(frozen=True)
class ScoredText:
    """A text of at least one token; the rows of its tokens from ``first`` on are wanted."""

    tokens: tuple[int, ...]
    first: int = 0


Prompted = tuple[tuple[int, ...], int]
"""The tokens of a text, and how many of them, at least one, are the prompt."""


def rows_at_once(width: int) -> int:
    """How many rows of ``width`` numbers may be held at once; at least 8."""
    return max(8, ROWS_BYTES // (4 * width))


def groups(texts: Sequence[Sequence[int]], n_seq_max: int, n_cells: int) -> Iterator[range]:
    """Groups of texts to compute together: up to ``n_seq_max`` that fit ``n_cells``, or a single text."""
    start, cells = 0, 0
    for i, text in enumerate(texts):
        full = i - start == n_seq_max or cells + len(text) > n_cells
        if i > start and full:
            yield range(start, i)
            start, cells = i, 0
        cells += len(text)
    if texts:
        yield range(start, len(texts))


def rows_of(context: Context, texts: Sequence[ScoredText]) -> Iterator[tuple[int, int, Floats]]:
    """Compute texts, each as a sequence of an empty context, which is emptied again afterwards.

    The context needs a sequence for each text, and a cell for each of their tokens.

    Yields:
        Index of the text, index of the token and its row [n]; in order within each text.
    """
    width = max(context.n_vocab, context.decoder.config.n_embd)
    step = max(8, min(context.n_ubatch, rows_at_once(width)))
    leaders: dict[tuple[int, ...], int] = {}
    work: list[tuple[int, int]] = []
    copies: list[tuple[int, int, int]] = []
    for i, text in enumerate(texts):
        beginning = text.tokens[: text.first]
        leader = leaders.setdefault(beginning, i)
        if leader != i:
            copies.append((leader, i, len(beginning)))
    beginnings = [(i, at) for i in leaders.values() for at in range(texts[i].first)]
    work = [(i, at) for i, text in enumerate(texts) for at in range(text.first, len(text.tokens))]
    try:
        for part in _parts(beginnings, step):
            context.decode(_batch(texts, part, False))
        for leader, i, n in copies:
            if n:
                context.cache.seq_cp(leader, i, 0, n)
        for part in _parts(work, step):
            rows = np.asarray(context.decode(_batch(texts, part, True)))
            for (i, at), row in zip(part, rows, strict=True):
                yield i, at, row
    finally:
        for i in range(len(texts)):
            context.cache.seq_rm(i)


def _before_tokens(
    context: Context, texts: Sequence[Prompted]
) -> Iterator[tuple[int, int, Floats]]:
    """For each token after the prompts of texts: the text's index, the token, and the row [V] before it."""
    longer = [i for i, (tokens, prompt) in enumerate(texts) if len(tokens) > prompt]
    wanted = [ScoredText(texts[i][0][:-1], texts[i][1] - 1) for i in longer]
    for j, at, row in rows_of(context, wanted):
        i = longer[j]
        yield i, texts[i][0][at + 1], np.ascontiguousarray(row[: context.n_vocab])


def _parts(work: list[tuple[int, int]], step: int) -> Iterator[list[tuple[int, int]]]:
    items = iter(work)
    while part := list(islice(items, step)):
        check_cancelled()
        yield part


def _batch(texts: Sequence[ScoredText], part: list[tuple[int, int]], wanted: bool) -> Batch:
    batch = Batch()
    for i, at in part:
        batch.add(texts[i].tokens[at], at, [i], logits=wanted)
    return batch


LARGEST = math.log(sys.float_info.max)
"""Exponents above this overflow a float."""


@dataclass(frozen=True)
class ChainScore:
    """Scores of a given text by a model and a chain."""

    tokens: tuple[int, ...]  # The text's tokens
    logprobs: tuple[float, ...]  # Natural-log probability of each in the model's own distribution
    # For each token, which tokens the chain kept at its place, and its log-probability among them; -inf if
    # the chain could not have drawn it
    kept: tuple[KeptTokens, ...]

    @property
    def logprob(self) -> float:
        """Natural-log probability with which the chain draws the whole text."""
        return math.fsum(each.logprob for each in self.kept)


@dataclass(frozen=True)
class Importance:
    """A text that one chain drew, scored under another.

    Attributes:
        behaviour: Its scores under the chain that drew it.
        target: Its scores under the other chain.
    """

    behaviour: ChainScore
    target: ChainScore

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """For each token, log of its probability under the target over that under the behaviour.

        -inf if the target did not keep it; otherwise inf if the behaviour did not.
        """
        pairs = zip(self.target.kept, self.behaviour.kept, strict=True)
        return tuple(
            other.logprob - own.logprob if other.logprob > -math.inf else -math.inf
            for other, own in pairs
        )

    @property
    def ratios(self) -> tuple[float, ...]:
        """For each token, its probability under the target over that under the behaviour; 0: not kept."""
        return tuple(map(_exp, self.log_ratios))

    @property
    def ratio(self) -> float:
        """Ratio of the whole text: 0 if the target did not keep a token of it; inf if it overflows a float."""
        logs = self.log_ratios
        return 0.0 if -math.inf in logs else _exp(math.fsum(logs))


def _exp(value: float) -> float:
    """The exponential; inf on overflow, where ``math.exp`` raises."""
    return math.exp(value) if value < LARGEST else math.inf


def check_fixed(chain: SamplerChain) -> None:
    """Refuse a chain whose distribution depends on its own draws, not on the text alone."""
    if chain.adapts:
        raise ParameterError(
            f"{chain.adapts} adapts to what it draws itself: a text that is given has no probability under it"
        )


def chain_scores_of(
    context: Context, texts: Sequence[Prompted], chains: Sequence[SamplerChain]
) -> list[ChainScore]:
    """Score the ends of texts, each under a new chain that has accepted the prompt; the chains are used up.

    The context is as for :func:`rows_of`.
    """
    logprobs: list[list[float]] = [[] for _ in texts]
    kept: list[list[KeptTokens]] = [[] for _ in texts]
    for i, token, row in _before_tokens(context, texts):
        logprobs[i].append(float(log_softmax(row)[token]))
        kept[i].append(KeptRow.of(chains[i], row).with_token(token))
        chains[i].accept(token, generated=True)
    return [
        ChainScore(tokens[prompt:], tuple(logprobs[i]), tuple(kept[i]))
        for i, (tokens, prompt) in enumerate(texts)
    ]


@dataclass(frozen=True)
class Score:
    """A model's score of a continuation.

    Attributes:
        tokens: The continuation's tokens.
        logprobs: Natural-log probability of each, given the prompt and the tokens before it.
        greedy: Whether each is the most probable token (of equal ones the lowest id), so that greedy decoding
            of the prompt gives this continuation.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def logprob(self) -> float:
        """Natural-log probability of the whole continuation."""
        return math.fsum(self.logprobs)


def scores_of(context: Context, texts: Sequence[Prompted]) -> list[Score]:
    """Score the ends of texts by the model alone; otherwise like :func:`chain_scores_of`."""
    logprobs: list[list[float]] = [[] for _ in texts]
    greedy = [True] * len(texts)
    for i, token, row in _before_tokens(context, texts):
        logprobs[i].append(float(log_softmax(row)[token]))
        greedy[i] = greedy[i] and int(np.nanargmax(row)) == token
    return [
        Score(tokens[prompt:], tuple(logprobs[i]), greedy[i])
        for i, (tokens, prompt) in enumerate(texts)
    ]


def prompt_logprobs_of(
    context: Context, texts: Sequence[tuple[int, ...]], top: int, token_bytes: TokenBytes
) -> list[list[Logprobs | None]]:
    """The model's log-probabilities of every token of some texts; None for the first token."""
    made: list[list[Logprobs | None]] = [[None] for _ in texts]
    for i, at, row in rows_of(context, [ScoredText(tokens[:-1]) for tokens in texts]):
        made[i].append(top_logprobs(row[: context.n_vocab], texts[i][at + 1], top, token_bytes))
    return made


LEAST_CONTEXT = 4
"""Shortest chunk in which a token is scored after some context."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of a text over its chunks so far, as defined by llama.cpp's ``llama-perplexity``.

    The text's tokens are cut into chunks of ``n_ctx``; a rest at the end is not used.  Each chunk starts with
    an empty cache, and BOS replaces its first token if the tokenizer puts BOS before a text.  The first half of
    a chunk is context only; the tokens at positions ``n_ctx // 2 + 1`` to ``n_ctx - 1`` are scored, each
    predicted from all tokens before it.
    """

    value: float  # e to the mean negative log-likelihood of the scored tokens; at least 1
    error: float  # standard error of ``value``: that of the mean, times ``value``
    n_scored: int  # scored tokens
    n_ctx: int  # tokens per chunk
    chunk: int  # chunks computed so far
    n_chunks: int  # chunks to compute

    @property
    def n_read(self) -> int:
        """Tokens that went through the model."""
        return self.chunk * self.n_ctx


def chunks_of(tokens: Sequence[int], n_ctx: int, chunks: int | None) -> int:
    """Number of chunks of a text to compute: all whole ones, or at most ``chunks``."""
    size, most = exact(n_ctx), exact(chunks)
    if size is None or size < LEAST_CONTEXT:
        raise ParameterError(f"n_ctx={n_ctx!r}: a chunk has at least {LEAST_CONTEXT} tokens")
    if chunks is not None and (most is None or most < 1):
        raise ParameterError(f"chunks={chunks!r}: read at least 1, or None for all")
    whole = len(tokens) // n_ctx
    if whole == 0:
        raise ParameterError(
            "text",
            f"the text has {len(tokens)} tokens, fewer than one chunk of n_ctx={n_ctx}: give a longer text or "
            "a smaller n_ctx",
        )
    return whole if chunks is None else min(whole, chunks)


def perplexities(
    context: Context, tokens: Sequence[int], n_ctx: int, n_chunks: int, bos: int | None
) -> Iterator[Perplexity]:
    """Compute a text chunk by chunk, and yield the perplexity so far after each.

    The context needs at least ``n_ctx`` cells; sequence 0 is used, and the cache is cleared before each chunk.
    ``bos`` replaces the first token of each chunk; None: nothing does.
    """
    total = squares = 0.0
    count = 0
    for chunk in range(n_chunks):
        part = list(tokens[chunk * n_ctx : (chunk + 1) * n_ctx])
        if bos is not None:
            part[0] = bos
        for losses in _losses(context, part, n_ctx // 2):
            total += float(losses.sum())
            squares += float((losses * losses).sum())
            count += len(losses)
        mean = total / count
        variance = max(0.0, squares / count - mean * mean)
        with np.errstate(over="ignore"):
            value = float(np.exp(mean))
        error = value * (variance / (count - 1)) ** 0.5 if count > 1 else float("nan")
        yield Perplexity(value, error, count, n_ctx, chunk + 1, n_chunks)


def _losses(context: Context, part: list[int], first: int) -> Iterator[Doubles]:
    """Negative log-likelihoods of a chunk's tokens after the one at ``first``, in parts."""
    context.cache.clear()
    context.decode(Batch.one(part[:first], 0))
    most = max(1, ROWS_BYTES // (4 * context.n_vocab))
    for start in range(first, len(part) - 1, most):
        end = min(start + most, len(part) - 1)
        rows = np.asarray(context.decode(Batch.one(part[start:end], start, logits=True)))
        yield losses_of(rows, part[start + 1 : end + 1])


def losses_of(rows: Floats, tokens: Sequence[int]) -> Doubles:
    """Negative natural logarithms, float64 [T], of the probabilities that logits [T, V] give to tokens [T].

    The exponentials are float32, their sums and logarithms float64.
    """
    shifted = rows - rows.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(rows)), tokens].astype(np.float64)
    np.exp(shifted, out=shifted)
    losses: Doubles = np.log(shifted.sum(axis=1, dtype=np.float64)) - chosen
    return losses
