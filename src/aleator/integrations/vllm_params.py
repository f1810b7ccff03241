"""Checks of the parameters of vLLM's requests that ask for a chain."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

from vllm.platforms import current_platform

from aleator.core.errors import ParameterError
from aleator.integrations.settings import read_settings, sampling_params
from aleator.samplers import SamplerChain
from aleator.samplers import SamplingParams as AleatorParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

NAME = "aleator"
TOKENIZER = "ALEATOR_VLLM_TOKENIZER"
_PLAIN: dict[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "thinking_token_budget": (None,),
}
"""vLLM's own parameters that would conflict with the chain, and their allowed values."""


def checked(params: Any) -> AleatorParams | None:
    """Return the parameters of a request's chain from vLLM's ``SamplingParams``; None if it asks for none.

    ValueError names a parameter that is unknown, out of range, or without effect.
    """
    given = (params.extra_args or {}).get(NAME)
    if given is None:
        return None
    given = read_settings(given, NAME, f"extra_args[{NAME!r}]")
    for name, allowed in _PLAIN.items():
        value = getattr(params, name, allowed[0])
        if value not in allowed:
            raise ParameterError(
                f"{name}={value} of vLLM would work against the chain: leave it at {allowed[0]}, and give it "
                f"in extra_args[{NAME!r}]"
            )
    settings = sampling_params(given, "vLLM")
    seed, its = settings.values()["seed"], params.seed
    if seed is None and its is not None and params.n == 1:
        settings = settings.replace(seed=its)
    elif params.n > 1 and (seed is None or its != seed):
        raise ParameterError(
            "seed",
            f"n={params.n} needs SamplingParams(seed={seed if seed is not None else 1}) and the same seed in "
            f"extra_args[{NAME!r}]: vLLM tells completions apart by it",
        )
    elif its is not None and seed is not None and not 0 <= its - seed < 1 << 20:
        raise ParameterError(
            f"seed={its} of vLLM and seed={seed} of extra_args[{NAME!r}] differ: give one of them"
        )
    if settings.values()["numerics"] != "portable" and not current_platform.is_cpu():
        raise ParameterError("numerics='llama.cpp' are computed on the CPU: choose 'portable' here")
    _made(settings)
    return settings


def _made(settings: AleatorParams) -> SamplerChain:
    """Make the chain, so that errors are raised now."""
    try:
        return settings.chain(tokenizer())
    except ParameterError as error:
        if tokenizer() is None and re.search("tokenizer|vocab", str(error)):
            raise ParameterError(
                error.parameter, f"{error}; for that set {TOKENIZER} to the model's directory"
            ) from None
        raise


@cache
def tokenizer() -> Tokenizer | None:
    """The tokenizer that :data:`TOKENIZER` names, or None."""
    path = os.environ.get(TOKENIZER)
    if not path:
        return None
    directory = os.path.isdir(path)
    return Tokenizer(Vocabulary.from_directory(path) if directory else Vocabulary.from_gguf(path))
