"""What ``/completion`` tells of a completion, in llama-server's fields: settings, probabilities, errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aleator.core.errors import ParameterError
from aleator.generate.generation import Generation, reader_of
from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.generate.options import BANS, GenerateOptions
from aleator.samplers import SamplingParams
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.grammar import Grammar
from aleator.samplers.json_schema import JSONSchema
from aleator.samplers.logit_bias import biases_of_ids
from aleator.samplers.regex import Regex
from aleator.server.dialects.llama_fields import RANDOM_SEED
from aleator.server.errors import ApiError
from aleator.server.fields import constrained
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

LEAST_LOGPROB = -3.4028234663852886e38
"""llama-server's logarithm of 0: JSON has no infinity."""

STOP_TYPES = {"eog": "eos", "stop_token": "eos", "grammar": "eos", "stop": "word"}
"""llama-server's ``stop_type``; any other reason is its "limit"."""

_NAMES = {"repeat_last_n": "penalty_last_n", "repeat_penalty": "repetition_penalty"}
"""Sampling parameters with other names at llama-server."""

_SHARED = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "typical_p", "presence_penalty", "frequency_penalty", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta",
    "adaptive_target", "adaptive_decay", "min_keep",
)  # fmt: skip
"""Those with the same names."""

_OURS = (
    "numerics", "draw", "penalty_scope", "min_tokens", "no_repeat_ngram_size", "top_a", "tfs_z",
)  # fmt: skip
"""Parameters that llama-server lacks, which are told too."""

OF_TEXT = (
    "stop", "logit_bias", "grammar", "grammar_triggers", "preserved_tokens", "dry_sequence_breakers",
)  # fmt: skip
"""Settings that may hold somebody's text: ``/slots`` and ``/props`` leave them out, as llama-server does."""
Told = tuple[dict[int, float], list[int]]
"""Probabilities of tokens, and which of them are the most probable, best first."""
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""llama-server's kinds by status; 429 is ours, since it has no limit of requests."""


def settings(
    params: SamplingParams, options: GenerateOptions, tokenizer: Tokenizer, about: Mapping[str, Any]
) -> dict[str, Any]:
    """``generation_settings``: what was asked for, as it is in effect."""
    values = params.values()
    made = {name: values[name] for name in (*_SHARED, *_OURS)}
    made |= {name: values[own] for name, own in _NAMES.items()}
    ids = biases_of_ids(values["logit_bias"], tokenizer)
    biases = [{"bias": b if math.isfinite(b) else None, "token": token} for token, b in ids]
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
        **about,
    }


def without_text(made: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what was said by whoever asked."""
    return {name: value for name, value in made.items() if name not in OF_TEXT}


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


class PostSampling:
    """Looks at what is left of the distribution before each draw; of several completions at once.

    A copy of the chain is applied, so the tokens are those of a request without this.
    """

    def __init__(self, top: int, vocab: Vocabulary) -> None:
        self._top, self._vocab = top, vocab
        self._drawn: dict[int, list[Told]] = {}

    @classmethod
    def asked_for(
        cls, own: Mapping[str, Any], options: Mapping[str, Any], vocab: Vocabulary
    ) -> PostSampling | None:
        """What a request asks for; None: nothing of this kind."""
        if not own["post_sampling_probs"] or not own["n_probs"]:
            return None
        why = ""
        if ban := next((n for n in BANS if options.get(n)), ""):
            why = f"{ban} takes tokens back, and draws them anew"
        elif constrained(options) and options.get("numerics") == "llama.cpp":
            why = "llama.cpp's numbers draw again where the grammar refuses a token"
        if why:
            raise ParameterError(f"post_sampling_probs=true: {why}: leave one of them out")
        return cls(own["n_probs"], vocab)

    def __call__(self, chain: SamplerChain, logits: Any) -> None:
        """Called by the engine before a draw."""
        candidates = Candidates(logits)
        copy = chain.clone()
        copy.apply(candidates)
        ids, probs = candidates.ids, candidates.probs
        n = min(self._top, len(ids))
        some = np.argpartition(-probs, n - 1)[:n] if 0 < n < len(ids) else np.arange(n)
        some = some[np.lexsort((ids[some], -probs[some]))]
        best = [int(ids[i]) for i in some if probs[i] > 0]
        known = {int(ids[i]): float(probs[i]) for i in some}
        if candidates.selected is not None:
            known[candidates.selected] = float(probs[ids == candidates.selected][0])
        self._drawn.setdefault(id(chain), []).append((known, best))

    def entries(self, generation: Generation, first: int, end: int) -> list[dict[str, Any]]:
        """``completion_probabilities`` of some of a completion's tokens.

        A token that nothing drew, as where a grammar is brought to its end, has probability 0.
        """
        drawn = self._drawn.get(id(generation.chain), [])[first:end]
        tokens = reader_of(generation).completion.tokens[first:end]
        return [
            self._entry(token, known.get(token, 0.0))
            | {"top_probs": [self._entry(each, known[each]) for each in best]}
            for token, (known, best) in zip(tokens, drawn, strict=False)
        ]

    def _entry(self, token: int, prob: float) -> dict[str, Any]:
        raw = self._vocab.token_bytes(token)
        return {"id": token, "token": shown(raw), "bytes": list(raw), "prob": prob}


class TooLong(ApiError):
    """A prompt that does not fit, with llama-server's two counts."""

    def __init__(self, message: str, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(400, message, "prompt", "context_length_exceeded")
        self.n_prompt_tokens, self.n_ctx = n_prompt_tokens, n_ctx


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error: llama-server's fields, and the field that is wrong."""
    kind = KINDS.get(
        error.status, "invalid_request_error" if error.status < 500 else "server_error"
    )
    made: dict[str, Any] = {"code": error.status, "message": error.message, "type": kind}
    if error.code == "context_length_exceeded":
        made["type"] = "exceed_context_size_error"
    if isinstance(error, TooLong):
        made |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    if error.param is not None:
        made["param"] = error.param
    return {"error": made}
