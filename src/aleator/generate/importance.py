"""How probable a given text is under a chain: after its filters and temperatures, token by token."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.generate.context import Context
from aleator.generate.logprobs import log_softmax
from aleator.generate.text_rows import Wanted, rows_of
from aleator.samplers import SamplerChain
from aleator.samplers.kept_tokens import KeptRow, KeptTokens

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
    """Refuse a chain whose distribution depends on what it drew, not on the text alone.

    Raises:
        ParameterError: It has a sampler that adapts; names it.
    """
    found = next((s.name for s, _ in chain.placed if s.name in ADAPTIVE), None)
    if found is not None:
        raise ParameterError(
            found,
            f"{found} adapts to what it draws itself: a text that is given has no probability under it",
        )


def chain_scores_of(
    context: Context, texts: Sequence[tuple[tuple[int, ...], int]], chains: Sequence[SamplerChain]
) -> list[ChainScore]:
    """Score the ends of texts, each under a chain of its own.

    Args:
        context: Empty, with a sequence for each text and cells for all.
        texts: Tokens, and how many of them, at least one, are the prompt.
        chains: New ones, which have accepted the prompts; they are used up.
    """
    logprobs: list[list[float]] = [[] for _ in texts]
    kept: list[list[KeptTokens]] = [[] for _ in texts]
    longer = [i for i, (tokens, prompt) in enumerate(texts) if len(tokens) > prompt]
    wanted = [Wanted(texts[i][0][:-1], texts[i][1] - 1) for i in longer]
    for j, at, row in rows_of(context, wanted):
        i = longer[j]
        token, row = texts[i][0][at + 1], np.ascontiguousarray(row[: context.n_vocab])
        logprobs[i].append(float(log_softmax(row)[token]))
        kept[i].append(KeptRow.of(chains[i], row).with_token(token))
        chains[i].accept(token, generated=True)
    return [
        ChainScore(tokens[prompt:], tuple(logprobs[i]), tuple(kept[i]))
        for i, (tokens, prompt) in enumerate(texts)
    ]
