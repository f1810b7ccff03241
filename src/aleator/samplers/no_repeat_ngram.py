"""No repeated n-grams: no run of n tokens occurs twice.

Masks      every token that would complete a run of ``no_repeat_ngram_size`` tokens that already occurs in the
           accepted tokens, prompt included.  1 forbids any token to occur twice; 0 is off.
Masked     stay masked.  If nothing is left, the step raises ``LogitsError``.
Order      before everything else in a chain that SamplingParams builds; a pending temperature is materialised
           first.
Elsewhere  transformers agrees (``no_repeat_ngram_size``); llama.cpp and vLLM do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.parameter import Off, Parameter, declare
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host

NO_REPEAT_NGRAM_SIZE = Parameter(
    "no_repeat_ngram_size", int, 0, "let no run of this many tokens occur twice; 0 is off",
    low=0, high=2**31 - 1, off=(Off("below", ("transformers",), 0, "bans no run"),),
    flags=("--no-repeat-ngram-size",),
)  # fmt: skip


@dataclass(frozen=True)
class NoRepeatNgram(Sampler):
    """Mask tokens that would repeat a run of ``no_repeat_ngram_size`` tokens."""

    name = "no_repeat_ngram"
    writes = True
    switch = NO_REPEAT_NGRAM_SIZE
    kernel = host.NoRepeatNgram
    no_repeat_ngram_size: int = declare(NO_REPEAT_NGRAM_SIZE)

    def banned(self, history: Sequence[int]) -> set[int]:
        """The tokens that would repeat a run."""
        n, history = self.no_repeat_ngram_size, list(history)
        if not n:
            return set()
        ending = history[len(history) - (n - 1) :] if n > 1 else []
        starts = range(len(history) - n + 1)
        return {history[i + n - 1] for i in starts if history[i : i + n - 1] == ending}

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.mask(self.banned(step.history))
