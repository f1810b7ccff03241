"""Logit bias: add a number to the logits of given tokens.

Effect     z + bias, rounded to float32 once; -inf masks the token, +inf leaves only the tokens so biased.
Order      first in a chain that SamplingParams builds; a pending temperature is materialised first.
Masked     stay masked, whatever the bias.
Text       stands for all tokens of its encoding, as in llama.cpp's server.
Errors     a token outside the vocabulary is refused when logits arrive.
Elsewhere  llama.cpp ignores unknown tokens, and counts duplicates only while candidates are unsorted.  Here a
           token given twice is refused, unless a text names it again with the same bias.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.integers import MAX_TOKEN, integer
from aleator.samplers.base import Parameter, Place, Row, Sampler, Step, dataclass, declare, host
from aleator.samplers.token_arguments import Tokenizer, require_tokenizer


def parse_bias(text: str) -> tuple[int | str, float]:
    """Read ``ID+BIAS`` or ``ID-BIAS``, as llama.cpp's command line has it, or ``"TEXT"+BIAS`` with quotes."""
    try:
        token: int | str
        if text.startswith('"'):
            token, end = json.JSONDecoder().raw_decode(text)
        else:
            end = len(text) - len(text.lstrip("0123456789"))
            token = int(text[:end])
        if text[end] not in "+-":
            raise ValueError
        return token, float(text[end:])
    except (ValueError, IndexError):
        raise ParameterError(
            f"logit_bias {text!r} is not ID+BIAS, ID-BIAS or the same with text in double quotes, such as "
            "15+1.5, 15-inf or '\" the\"-2'"
        ) from None


def check_biases(value: Any) -> tuple[tuple[int | str, float], ...]:
    """Return (token, bias) pairs from a mapping or pairs: tokens ascending, then texts."""
    try:
        pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
        biases = [
            (t if isinstance(t, str) else integer("logit_bias", t), float(bias))
            for t, bias in pairs
        ]
    except (TypeError, ValueError):
        raise ParameterError(
            f"logit_bias={value!r:.80} must map token ids or texts to numbers, as in {{15: -1.5}}"
        ) from None
    seen: set[int | str] = set()
    for token, bias in biases:
        if token == "":
            raise ParameterError("logit_bias: an empty text names no token")
        if isinstance(token, int) and not 0 <= token <= MAX_TOKEN:
            raise ParameterError(f"logit_bias: token {token} is not a token id")
        if math.isnan(bias):
            raise ParameterError(f"logit_bias: the bias of token {token} is NaN")
        if token in seen:
            raise ParameterError(f"logit_bias gives token {token!r} twice")
        seen.add(token)
    ids = sorted((t, bias) for t, bias in biases if isinstance(t, int))
    return (*ids, *((t, bias) for t, bias in biases if isinstance(t, str)))


def biases_of_ids(
    biases: Iterable[tuple[int | str, float]], tokenizer: Tokenizer | None
) -> tuple[tuple[int, float], ...]:
    """Return biases by token id, with texts encoded; one token must not get different biases."""
    made: dict[int, float] = {}
    for token, bias in biases:
        if isinstance(token, int):
            ids = [token]
        else:
            encode = require_tokenizer("logit_bias", tokenizer).encode
            ids = encode(token, add_special=False, parse_special=False)
        for each in ids:
            if made.setdefault(each, bias) != bias:
                raise ParameterError(
                    f"logit_bias gives token {each} of {token!r} both {made[each]} and {bias}: give its bias "
                    "by id"
                )
    return tuple(sorted(made.items()))


LOGIT_BIAS = Parameter(
    "logit_bias", tuple, (),
    "add BIAS to the logit of token ID, as in 15+1.5 or 15-inf, or of all tokens of a text, as in "
    "'\" the\"-2'; may be repeated",
    flags=("-l", "--logit-bias"), checker=check_biases,
    reader=lambda words: [parse_bias(word) for word in words], metavar="ID+BIAS",
    annotation="Mapping[int, float] | Mapping[str, float] | Mapping[int | str, float] | "
    "Iterable[tuple[int | str, float]]",
    schema={
        "type": "array", 
        "items": {"type": "array", "prefixItems": [{"type": ["integer", "string"]}, {"type": "number"}]},
    },
)  # fmt: skip


@dataclass(frozen=True)
class LogitBias(Sampler):
    """Add biases to logits."""

    name = "logit_bias"
    writes = True
    switch = LOGIT_BIAS
    kernel = host.LogitBias
    llama_kernel = host.LlamaLogitBias
    # Token ids or texts with their biases, as a mapping or pairs.  Stored by token id.
    logit_bias: Any = declare(LOGIT_BIAS)
    # An object with ``encode``; None if there are no texts
    tokenizer: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        biases = biases_of_ids(check_biases(self.logit_bias), self.tokenizer)
        object.__setattr__(self, "logit_bias", biases)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        with np.errstate(over="ignore"):
            biases = {token: np.float32(bias) for token, bias in self.logit_bias}
        if max(biases) >= step.n_vocab:
            raise ParameterError(f"logit_bias names token {max(biases)}")
        row.edit(lambda token, z: np.float32(z + biases[token]) if token in biases else z)
