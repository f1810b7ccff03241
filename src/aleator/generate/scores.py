"""What a model thinks of texts that are given: probabilities of tokens, under chains too, and vectors."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.generate.batch import Batch
from aleator.generate.context import Context
from aleator.generate.logprobs import Logprobs, log_softmax, top_logprobs
from aleator.samplers import SamplerChain
from aleator.samplers.kept_tokens import KeptRow, KeptTokens

ROWS_BYTES = 2**26
"""Rows that are held at once, in bytes."""


@dataclass(frozen=True)
class Wanted:
    """A text of at least one token; the rows of its tokens from ``first`` on are wanted."""

    tokens: tuple[int, ...]
    first: int = 0


def rows_at_once(width: int) -> int:
    """How many rows of so many numbers may be held at once; 8 at least."""
    return max(8, ROWS_BYTES // (4 * width))


def groups(texts: Sequence[Sequence[int]], n_seq_max: int, n_cells: int) -> Iterator[range]:
    """Texts to compute together: at most so many, which fit into so many cells, or one alone."""
    start, cells = 0, 0
    for i, text in enumerate(texts):
        full = i - start == n_seq_max or cells + len(text) > n_cells
        if i > start and full:
            yield range(start, i)
            start, cells = i, 0
        cells += len(text)
    if len(texts) > start:
        yield range(start, len(texts))


def rows_of(
    context: Context, texts: Sequence[Wanted]
) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
    """Compute texts, each as a sequence of an empty context, which is empty again afterwards.

    The context has a sequence for each text, and a cell for each of their tokens.

    Yields:
        Text, token and its row [n]: of each text in order.
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
            context.cache.seq_rm(i, -1, -1)


def _before_tokens(
    context: Context, texts: Sequence[tuple[tuple[int, ...], int]]
) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
    """For each token after the prompts of texts: the text's index, the token, and the row [V] before it."""
    longer = [i for i, (tokens, prompt) in enumerate(texts) if len(tokens) > prompt]
    wanted = [Wanted(texts[i][0][:-1], texts[i][1] - 1) for i in longer]
    for j, at, row in rows_of(context, wanted):
        i = longer[j]
        yield i, texts[i][0][at + 1], np.ascontiguousarray(row[: context.n_vocab])


def _parts(work: list[tuple[int, int]], step: int) -> Iterator[list[tuple[int, int]]]:
    items = iter(work)
    while part := list(islice(items, step)):
        yield part


def _batch(texts: Sequence[Wanted], part: list[tuple[int, int]], wanted: bool) -> Batch:
    batch = Batch()
    for i, at in part:
        batch.add(texts[i].tokens[at], at, [i], logits=wanted)
    return batch


ADAPTIVE = ("mirostat", "mirostat_v2", "adaptive_p")
"""Samplers whose state depends on what they drew themselves."""
LARGEST = math.log(sys.float_info.max)
"""Powers of e from here on are above the range of a float."""


@dataclass(frozen=True)
class ChainScore:
    """What a model and a chain make of a text that is given.

    Attributes:
        tokens: Of the text.
        logprobs: Natural-log probability of each in the model's own distribution.
        kept: For each, which tokens the chain kept at its place, and its log-probability among them; -inf where
            the chain could not have drawn it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept: tuple[KeptTokens, ...]

    @property
    def logprob(self) -> float:
        """Natural-log probability with which the chain draws the whole text."""
        return math.fsum(each.logprob for each in self.kept)


@dataclass(frozen=True)
class Importance:
    """A text that one chain drew, under another.

    Attributes:
        behaviour: Under the chain that drew it.
        target: Under the other one.
    """

    behaviour: ChainScore
    target: ChainScore

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """For each token, log of its probability under the target over that under the behaviour.

        -inf where the target did not keep it, whatever the behaviour did; else inf where that did not.
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
        """Of the whole text: 0 if the target did not keep one of its tokens; inf above the range of a float."""
        logs = self.log_ratios
        return 0.0 if -math.inf in logs else _exp(math.fsum(logs))


def _exp(value: float) -> float:
    """The power of e; inf above the range of a float, where ``math.exp`` raises."""
    return math.exp(value) if value < LARGEST else math.inf


def check_fixed(chain: SamplerChain) -> None:
    """Refuse a chain whose distribution depends on what it drew, not on the text alone."""
    found = next((s.name for s, _ in chain.placed if s.name in ADAPTIVE), None)
    if found is not None:
        raise ParameterError(
            found,
            f"{found} adapts to what it draws itself: a text that is given has no probability under it",
        )


def chain_scores_of(
    context: Context, texts: Sequence[tuple[tuple[int, ...], int]], chains: Sequence[SamplerChain]
) -> list[ChainScore]:
    """Score the ends of texts, each under a new chain, which has accepted the prompt and is used up.

    Texts come with how many of their tokens, at least one, are the prompt.  The context is as for
    :func:`rows_of`.
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


POOLING = ("mean", "last")


@dataclass(frozen=True)
class Score:
    """What a model thinks of a continuation.

    Attributes:
        tokens: Of the continuation.
        logprobs: Natural-log probability of each, given the prompt and those before it.
        greedy: Whether each is the most probable token (of equal ones the lowest id): greedy decoding of the
            prompt gives this continuation.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def logprob(self) -> float:
        """Natural-log probability of the whole continuation."""
        return math.fsum(self.logprobs)


def scores_of(context: Context, texts: Sequence[tuple[tuple[int, ...], int]]) -> list[Score]:
    """Score the ends of texts, as :func:`chain_scores_of` does by the model alone."""
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
    context: Context,
    texts: Sequence[tuple[int, ...]],
    top: int,
    token_bytes: Callable[[int], bytes],
) -> list[list[Logprobs | None]]:
    """What the model thought of every token of some texts; of the first, which nothing precedes, None."""
    made: list[list[Logprobs | None]] = [[None] for _ in texts]
    for i, at, row in rows_of(context, [Wanted(tokens[:-1]) for tokens in texts]):
        made[i].append(top_logprobs(row[: context.n_vocab], texts[i][at + 1], top, token_bytes))
    return made


def vectors_of(
    context: Context, texts: Sequence[tuple[int, ...]], pooling: str, normalize: bool
) -> npt.NDArray[np.float32]:
    """A vector for each text, float32 [n, n_embd]: its hidden states pooled.

    With ``normalize`` it is 1 long.  The context is as for :func:`rows_of`, with ``embeddings=True``.
    """
    wanted = [Wanted(t, len(t) - 1 if pooling == "last" else 0) for t in texts]
    sums = np.zeros((len(texts), context.decoder.config.n_embd), np.float64)
    for i, _, row in rows_of(context, wanted):
        sums[i] += row
    counts = np.array([len(each.tokens) - each.first for each in wanted], np.float64)
    vectors = sums / counts[:, None]
    if normalize:
        lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
        vectors = vectors / np.where(lengths > 0, lengths, 1.0)
    return vectors.astype(np.float32)
