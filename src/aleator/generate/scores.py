"""What a model thinks of texts that are given: probabilities of their tokens, and vectors for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass
from aleator.generate.context import Context
from aleator.generate.logprobs import Logprobs, log_softmax, top_logprobs
from aleator.generate.text_rows import Wanted, rows_of

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
    """Score the ends of texts.

    Args:
        context: Empty, with a sequence for each text and cells for all.
        texts: Tokens, and how many of them, at least one, are the prompt.
    """
    wanted = [Wanted(tokens[:-1], prompt - 1) for tokens, prompt in texts]
    logprobs: list[list[float]] = [[] for _ in texts]
    greedy = [True] * len(texts)
    open_texts = [i for i, (tokens, prompt) in enumerate(texts) if len(tokens) > prompt]
    for j, at, row in rows_of(context, [wanted[i] for i in open_texts]):
        i = open_texts[j]
        token = texts[i][0][at + 1]
        row = row[: context.n_vocab]
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
    """What the model thought of every token of some texts; of the first, which nothing precedes, None.

    Args:
        context: Empty, with a sequence for each text and cells for all.
        texts: Their tokens.
        top: How many of the most probable tokens to list at each place.
        token_bytes: Gives the bytes of a token.
    """
    made: list[list[Logprobs | None]] = [[None] for _ in texts]
    for i, at, row in rows_of(context, [Wanted(tokens[:-1]) for tokens in texts]):
        made[i].append(top_logprobs(row[: context.n_vocab], texts[i][at + 1], top, token_bytes))
    return made


def vectors_of(
    context: Context, texts: Sequence[tuple[int, ...]], pooling: str, normalize: bool
) -> npt.NDArray[np.float32]:
    """A vector for each text, float32 [n, n_embd].

    Args:
        context: Gives hidden states (``embeddings=True``); empty, with a sequence for each text and cells for
            all.
        texts: Their tokens.
        pooling: "mean": of the hidden states of all tokens; "last": that of the last one.
        normalize: Whether the vectors have length 1.
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
