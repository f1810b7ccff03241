"""Minimum length: no token ends the text before enough tokens were generated.

Masks      ``end_tokens`` while fewer than ``min_tokens`` tokens were generated and accepted, since the last
           reset or since a new text began (``SamplerChain.restart``).  Tokens of the prompt do not count.
Masked     stay masked.  If nothing is left, as under a grammar that allows only the end, the step raises
           ``LogitsError``.
Order      before everything else in a chain that SamplingParams builds, with the vocabulary's end-of-generation
           tokens and ``stop_token_ids`` as ``end_tokens``; a pending temperature is materialised first.
Elsewhere  vLLM agrees (``min_tokens``), as does transformers (``min_new_tokens``); llama.cpp does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from aleator.samplers.base import Parameter, Place, Row, Sampler, Step, dataclass, declare, host
from aleator.samplers.token_arguments import check_ids

MIN_TOKENS = Parameter(
    "min_tokens", int, 0, "let no token end the text before this many were generated; 0 is off",
    low=0, high=2**31 - 1, aliases=("min_new_tokens",), flags=("--min-tokens",),
)  # fmt: skip


@dataclass(frozen=True)
class MinTokens(Sampler):
    """Mask tokens that end the text until ``min_tokens`` were generated."""

    name = "min_tokens"
    writes = True
    asked_by = "min_tokens"
    kernel = host.MinTokens
    min_tokens: int = declare(MIN_TOKENS)
    end_tokens: tuple[int, ...] = field(default=())  # The tokens that end a text

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "end_tokens", check_ids("end_tokens", self.end_tokens))

    @classmethod
    def asked_for(cls, values: Mapping[str, Any]) -> bool:
        return bool(values["min_tokens"])

    @property
    def neutral(self) -> bool:
        return self.min_tokens == 0 or not self.end_tokens

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return self.min_tokens, self.end_tokens

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference for a chain that was not restarted."""
        if sum(step.generated) < self.min_tokens:
            row.mask(self.end_tokens)
