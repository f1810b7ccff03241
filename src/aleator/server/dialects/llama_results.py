"""What ``/completion`` tells of a completion: settings, timings, probabilities, in llama-server's fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.generate.options import GenerateOptions
from aleator.samplers import SamplingParams
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.grammar import Grammar
from aleator.samplers.json_schema import JSONSchema
from aleator.samplers.logit_bias import biases_of_ids
from aleator.samplers.regex import Regex
from aleator.server.dialects.llama_fields import RANDOM_SEED
from aleator.text.tokenizer import Tokenizer

LEAST_LOGPROB = -3.4028234663852886e38
"""llama-server's logarithm of 0: JSON has no infinity."""

STOP_TYPES = {"eog": "eos", "stop_token": "eos", "grammar": "eos", "stop": "word"}
"""llama-server's ``stop_type``; any other reason is its "limit"."""

_NAMES = {
    "temperature": "temperature",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exponent": "dynatemp_exponent",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "typical_p": "typical_p",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "adaptive_target": "adaptive_target",
    "adaptive_decay": "adaptive_decay",
    "min_keep": "min_keep",
}
"""Sampling parameters by llama-server's names."""

_OURS = (
    "numerics",
    "draw",
    "penalty_scope",
    "min_tokens",
    "no_repeat_ngram_size",
    "top_a",
    "tfs_z",
)
"""Parameters that llama-server lacks, which are told too."""


def settings(
    params: SamplingParams,
    options: GenerateOptions,
    tokenizer: Tokenizer,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """``generation_settings``: what was asked for, as it is in effect.

    Args:
        params: Of the request.
        options: Of the request.
        tokenizer: Knows the tokens of texts, and those that end one, which ``ignore_eos`` masks.
        about: The request's own fields: ``stream``, ``n_probs`` and the like.
    """
    values = params.values()
    made = {name: values[ours] for name, ours in _NAMES.items()}
    ids = biases_of_ids(values["logit_bias"], tokenizer)
    biases = [{"bias": _finite(bias), "token": token} for token, bias in ids]
    if params.ignore_eos:
        biases += [{"bias": None, "token": token} for token in sorted(tokenizer.vocab.eog)]
    n_predict = -1 if options.max_tokens is None else options.max_tokens
    constraint = params.constraint
    return made | {
        "seed": RANDOM_SEED if params.seed is None else params.seed,
        "dry_sequence_breakers": [
            list(x) if not isinstance(x, str) else x for x in values["dry_sequence_breakers"]
        ],
        "stop": list(options.stop),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": 0 if options.n_keep is None else options.n_keep,
        "n_discard": 0,
        "ignore_eos": params.ignore_eos,
        "logit_bias": biases,
        "grammar": _shown(constraint),
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": list(options.shown_tokens),
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": ["typ_p" if name == "typical_p" else name for name in params.samplers],
        "speculative.types": options.spec_type,
        "backend_sampling": False,
        "lora": [],
        **{name: values[name] for name in _OURS},
        **about,
    }


OF_TEXT = (
    "stop",
    "logit_bias",
    "grammar",
    "grammar_triggers",
    "preserved_tokens",
    "dry_sequence_breakers",
)
"""Settings that may hold somebody's text: ``/slots`` and ``/props`` leave them out, as llama-server does."""


def without_text(made: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what was said by whoever asked."""
    return {name: value for name, value in made.items() if name not in OF_TEXT}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(constraint: ConstraintSampler | None) -> str:
    """The text of a grammar; of a schema or an expression what was given."""
    if constraint is None:
        return ""
    if isinstance(constraint, Grammar):
        return constraint.grammar
    if isinstance(constraint, JSONSchema):
        return str(constraint.schema)
    return constraint.pattern if isinstance(constraint, Regex) else constraint.name


def probabilities(entries: Sequence[Logprobs]) -> list[dict[str, Any]]:
    """``completion_probabilities`` before sampling: of each token, and of the most probable ones."""
    return [
        _entry(each.chosen) | {"top_logprobs": [_entry(top) for top in each.top]}
        for each in entries
    ]


def _entry(each: TokenLogprob) -> dict[str, Any]:
    return {
        "id": each.token,
        "token": shown(each.bytes),
        "bytes": list(each.bytes),
        "logprob": max(each.logprob, LEAST_LOGPROB),
    }


def shown(raw: bytes) -> str:
    """The text of a token's bytes, without the beginning of a character at their end."""
    return raw.decode("utf-8", "ignore")


def chosen(fields: Sequence[str], made: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a response that ``response_fields`` names; with a slash, one within another.

    Fields that do not exist are left out.
    """
    if not fields:
        return dict(made)
    found: dict[str, Any] = {}
    for path in fields:
        value: Any = made
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found
