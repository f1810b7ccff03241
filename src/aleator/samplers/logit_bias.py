"""Logit bias: add a number to the logits of given tokens.

Effect     z + bias, rounded to float32 once; -inf masks the token, +inf leaves only the tokens so biased.
Order      first in a chain that SamplingParams builds; a pending temperature is materialised first.
Masked     stay masked, whatever the bias.
Errors     a token outside the vocabulary is refused when logits arrive.
Elsewhere  llama.cpp ignores unknown tokens, and counts duplicates only before anything was sorted; here a
           token given twice is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.core.parameter import Parameter, declare
from aleator.samplers.base import Place, Sampler

LOGIT_BIAS = Parameter(
    "logit_bias", tuple, (),
    "add BIAS to the logit of token ID, as in 15+1.5 or 15-inf; may be repeated",
    flags=("-l", "--logit-bias"),
)  # fmt: skip

MAX_TOKEN = (1 << 24) - 1


def parse_bias(text: str) -> tuple[int, float]:
    """Read ``ID+BIAS`` or ``ID-BIAS``, as llama.cpp's command line has it."""
    digits = len(text) - len(text.lstrip("0123456789"))
    try:
        if not digits or text[digits] not in "+-":
            raise ValueError
        return int(text[:digits]), float(text[digits:])
    except (ValueError, IndexError):
        raise ParameterError(
            "logit_bias", f"logit_bias {text!r} is not ID+BIAS or ID-BIAS, such as 15+1.5 or 15-inf"
        ) from None


def check_biases(value: Any) -> tuple[tuple[int, float], ...]:
    """Return (token, bias) pairs by ascending token from a mapping or pairs."""
    try:
        pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
        biases = [(int(token), float(bias)) for token, bias in pairs]
    except (TypeError, ValueError):
        raise ParameterError(
            "logit_bias", f"logit_bias={value!r} must map token ids to numbers, as in {{15: -1.5}}"
        ) from None
    seen: set[int] = set()
    for token, bias in biases:
        if not 0 <= token <= MAX_TOKEN:
            raise ParameterError("logit_bias", f"logit_bias: token {token} is not a token id")
        if math.isnan(bias):
            raise ParameterError("logit_bias", f"logit_bias: the bias of token {token} is NaN")
        if token in seen:
            raise ParameterError("logit_bias", f"logit_bias gives token {token} twice")
        seen.add(token)
    return tuple(sorted(biases))


@dataclass(frozen=True)
class LogitBias(Sampler):
    """Add biases to logits.

    Parameters
    ----------
    logit_bias
        Token ids and biases: a mapping or pairs.

    """

    name = "logit_bias"
    writes = True
    logit_bias: Any = declare(LOGIT_BIAS)

    def __post_init__(self) -> None:
        """Check tokens and biases."""
        object.__setattr__(self, "logit_bias", check_biases(self.logit_bias))

    @property
    def neutral(self) -> bool:
        """True without biases."""
        return not self.logit_bias

    def native(self, place: Place) -> host.Sampler:
        """Host kernel: native/samplers/logit_bias.cpp."""
        return host.LogitBias(list(self.logit_bias))

    def native_llama(self, place: Place) -> host.LlamaSampler:
        """llama.cpp's numbers: native/llama/logit_bias.cpp."""
        return host.LlamaLogitBias(list(self.logit_bias))

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference."""
        if self.neutral:
            return
        with np.errstate(over="ignore"):
            biases = {token: np.float32(bias) for token, bias in self.logit_bias}
        if max(biases) >= step.n_vocab:
            raise ParameterError("logit_bias", f"logit_bias names token {max(biases)}")
        row.edit(lambda token, z: np.float32(z + biases[token]) if token in biases else z)
