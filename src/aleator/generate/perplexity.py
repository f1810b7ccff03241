"""Perplexity of a model on a text, as llama.cpp's tool ``llama-perplexity`` defines it.

The text's tokens are cut into chunks of ``n_ctx``; what is left over at the end is not used.  Each chunk
starts with an empty cache, and BOS replaces its first token where the tokenizer puts BOS before a text.  The
first half of a chunk is context only; the tokens at positions ``n_ctx // 2 + 1`` to ``n_ctx - 1`` are scored,
each predicted from all before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.records import dataclass
from aleator.generate.batch import Batch
from aleator.generate.context import Context

LEAST_CONTEXT = 4
"""Shortest chunk of which a token is scored after some context."""
ROWS_BYTES = 2**26
"""Logits that are held at once, in bytes."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of the chunks that have been read so far.

    Attributes:
        value: e to the mean negative log-likelihood of the scored tokens; at least 1.
        error: standard error of ``value``: that of the mean, times ``value``.
        n_scored: tokens scored.
        n_ctx: tokens of a chunk.
        chunk: chunks read so far.
        n_chunks: chunks to read.
    """

    value: float
    error: float
    n_scored: int
    n_ctx: int
    chunk: int
    n_chunks: int

    @property
    def n_read(self) -> int:
        """Tokens that went through the model."""
        return self.chunk * self.n_ctx


def chunks_of(tokens: Sequence[int], n_ctx: int, chunks: int | None) -> int:
    """How many chunks of a text are to be read: all whole ones, or ``chunks`` at most."""
    if (exact(n_ctx) or 0) < LEAST_CONTEXT:
        raise ParameterError(
            "n_ctx", f"n_ctx={n_ctx!r}: a chunk has at least {LEAST_CONTEXT} tokens"
        )
    if chunks is not None and (exact(chunks) or 0) < 1:
        raise ParameterError("chunks", f"chunks={chunks!r}: read at least 1, or None for all")
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
    """Read a text chunk by chunk, and give the perplexity of what has been read after each.

    The context has at least ``n_ctx`` cells; sequence 0 is used, and the cache cleared before each chunk.
    ``bos`` replaces the first token of each; None: nothing does.
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


def _losses(context: Context, part: list[int], first: int) -> Iterator[npt.NDArray[np.float64]]:
    """Negative log-likelihoods of a chunk's tokens after the one at ``first``, in pieces."""
    context.cache.clear()
    context.decode(Batch.one(part[:first], 0))
    most = max(1, ROWS_BYTES // (4 * context.n_vocab))
    for start in range(first, len(part) - 1, most):
        end = min(start + most, len(part) - 1)
        rows = np.asarray(context.decode(Batch.one(part[start:end], start, logits=True)))
        yield losses_of(rows, part[start + 1 : end + 1])


def losses_of(rows: npt.NDArray[np.float32], tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """Negative natural logarithms, float64 [T], of the probabilities that logits [T, V] give to tokens [T].

    The exponentials are float32, their sums and logarithms float64.
    """
    shifted = rows - rows.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(rows)), tokens].astype(np.float64)
    np.exp(shifted, out=shifted)
    losses: npt.NDArray[np.float64] = np.log(shifted.sum(axis=1, dtype=np.float64)) - chosen
    return losses
