"""Aleator's chains in mlx-lm: a logits processor and a sampler, one object for each sequence."""

from __future__ import annotations

from aleator.core.arrays import Floats
from aleator.integrations.versions import require

require("mlx-lm", at_least="0.32", install="aleator[mlx]")

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np

from aleator.core.errors import ParameterError
from aleator.integrations.follower import Follower
from aleator.integrations.settings import Settings, sampling_params


class AleatorLogitsProcessor:
    """Leaves only Aleator's token: for ``logits_processors=[...]`` of ``generate_step``, or of a batch.

    The sampler must take the largest logit, as mlx-lm's default does.  One object serves one sequence.  mlx-lm
    passes the text each time, so guesses of a draft model change nothing.

    Args:
        settings: the sampling parameters of the chain.
        prompt: the whole prompt, which ``speculative_generate_step`` does not pass; None: the first text.
        vocab: an Aleator tokenizer or vocabulary, if a parameter needs text.
        completion: index among completions of one prompt.

    Raises:
        ParameterError: a parameter is unknown or out of range.
    """

    def __init__(
        self,
        settings: Settings,
        prompt: Iterable[int] | None = None,
        *,
        vocab: Any = None,
        completion: int = 0,
    ) -> None:
        self._chain = sampling_params(settings, "mlx-lm").chain(vocab, completion=completion)
        self._whole = None if prompt is None else list(prompt)
        self._first: list[int] = []
        self._text: Follower | None = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Draw a token; return float32 [1, V]: 0 at the token, -inf elsewhere.

        ``tokens`` are the text so far, [n], at the first call the prompt; ``logits`` are [1, V].
        ParameterError for a text that does not continue the earlier one, or for several rows.
        """
        row, text = _row(logits), [int(token) for token in np.array(tokens)]
        if self._text is None:
            whole = text if self._whole is None else self._whole
            if whole[-len(text) :] != text:
                raise ParameterError(f"prompt ends in {whole[-3:]}, and the text in {text[-3:]}")
            self._first, self._text = text, Follower(self._chain, whole)
        n = len(self._first)
        if text[:n] != self._first:
            raise ParameterError(
                "tokens", "another text: make an AleatorLogitsProcessor for each sequence"
            )
        self._text.follow(text[n:])
        left = np.full((1, len(row)), -np.inf, np.float32)
        left[0, self._text.draw(row)] = 0.0
        return mx.array(left)


class AleatorSampler:
    """Draws from the log-probabilities of one sequence: for ``sampler=`` of ``generate_step``.

    It remembers the tokens that it drew.  mlx-lm computes one token ahead of its output, so the chain ends one
    token too far.  It rounds its log-probabilities, so in rare cases a token differs from that on the logits.

    Args:
        settings: the sampling parameters of the chain.
        prompt: the text before, for penalties and the like.
        vocab: as for :class:`AleatorLogitsProcessor`.
        completion: index among completions of one prompt.

    Raises:
        ParameterError: a parameter is unknown, out of range, or ``repetition_penalty``.
    """

    def __init__(
        self,
        settings: Settings,
        prompt: Iterable[int] = (),
        *,
        vocab: Any = None,
        completion: int = 0,
    ) -> None:
        params = sampling_params(settings, "mlx-lm")
        if params.values()["repetition_penalty"] != 1:
            raise ParameterError(
                "repetition_penalty tells positive logits from negative ones, and samplers of mlx-lm see "
                "log-probabilities: use AleatorLogitsProcessor"
            )
        self.chain = params.chain(vocab, completion=completion)
        self.chain.accept_many(prompt)

    def __call__(self, logprobs: Any) -> Any:
        """Draw a token, [1], from log-probabilities [1, V]."""
        return mx.array([self.chain.sample(_row(logprobs))])


def _row(logits: Any) -> Floats:
    """The only row, float32 [V]."""
    if logits.ndim != 2 or logits.shape[0] != 1:
        raise ParameterError(
            f"logits of shape {tuple(logits.shape)}: give each sequence an object of its own"
        )
    return np.asarray(np.array(logits.astype(mx.float32))[0], np.float32)
