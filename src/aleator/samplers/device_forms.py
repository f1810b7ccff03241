"""Which samplers can run on a device.

Their code is in ``aleator.device.backends.torch.forms``; this module needs no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.samplers.bad_words import BadWords
from aleator.samplers.dist import Dist
from aleator.samplers.dry import DRY
from aleator.samplers.no_repeat_ngram import NoRepeatNgram
from aleator.samplers.user import UserSampler

if TYPE_CHECKING:
    from aleator.samplers.base import Sampler

NAMES = frozenset(
    {
        "adaptive_p", "bad_words", "dry", "epsilon_cutoff", "eta_cutoff", "greedy", "logit_bias", "min_p",
        "min_tokens", "mirostat", "mirostat_v2", "no_repeat_ngram", "penalties", "smoothing", "softmax",
        "temperature", "token_mask", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc",
    }
)  # fmt: skip
"""Samplers that have a device form, but for the settings that `why_not` names."""
DRAWS = ("inverse", "gumbel")
"""The draws of ``dist`` that have one."""
MAX_DRY_WINDOW = 512
"""The longest window in which DRY seeks repetitions on a device.

It compares all pairs, which keeps no state to roll back, but is quadratic.
"""
MAX_BREAKERS = 64
"""How many sequence breakers of several tokens DRY has on a device."""
MAX_BREAKER_TOKENS = 24
"""Tokens of such a breaker."""

MAX_BAD_WORDS = 256
"""How many bad words of several tokens a row has on a device."""
MAX_BAD_WORD_TOKENS = 24
"""Tokens of such a word."""
MAX_NGRAM = 64
"""The longest run that `no_repeat_ngram` compares on a device."""


def long_breakers(sampler: DRY) -> list[tuple[int, ...]]:
    """The sequence breakers of several tokens."""
    return [tokens for tokens in sampler.breakers if len(tokens) > 1]


def long_words(sampler: BadWords) -> list[tuple[int, ...]]:
    """The bad words of several tokens."""
    return [sequence for sequence in sampler.sequences if len(sequence) > 1]


def why_not(sampler: Sampler) -> str:
    """Why a chain's sampler cannot run on a device; "" if it can."""
    if isinstance(sampler, UserSampler):
        able = callable(getattr(sampler.user, "apply_device", None))
        return "" if able else f"{sampler.name} has no device form"
    if sampler.name not in NAMES and not isinstance(sampler, Dist):
        return f"{sampler.name} has no device form"
    return "" if sampler.neutral else _beyond_limits(sampler)


def _beyond_limits(sampler: Sampler) -> str:
    """Which of its settings has no device form; "" if all have one."""
    if isinstance(sampler, Dist) and sampler.draw == "mt19937":
        return "draw='mt19937' takes its numbers one after the other from a generator on the host"
    if isinstance(sampler, Dist) and sampler.draw not in DRAWS:
        return f"draw={sampler.draw!r} has no device form"
    if isinstance(sampler, NoRepeatNgram):
        if sampler.no_repeat_ngram_size > MAX_NGRAM:
            return (
                f"no_repeat_ngram has a device form for runs of at most {MAX_NGRAM} tokens, not for "
                f"no_repeat_ngram_size={sampler.no_repeat_ngram_size}"
            )
    elif isinstance(sampler, BadWords):
        long = long_words(sampler)
        if len(long) > MAX_BAD_WORDS or max(map(len, long), default=0) > MAX_BAD_WORD_TOKENS:
            return (
                f"bad_words has a device form for at most {MAX_BAD_WORDS} sequences of several tokens, of "
                f"{MAX_BAD_WORD_TOKENS} tokens each"
            )
    elif isinstance(sampler, DRY):
        if not 0 <= sampler.dry_penalty_last_n <= MAX_DRY_WINDOW:
            return (
                f"dry has a device form for windows of at most {MAX_DRY_WINDOW} tokens, not for "
                f"dry_penalty_last_n={sampler.dry_penalty_last_n}"
            )
        breakers = long_breakers(sampler)
        if len(breakers) > MAX_BREAKERS or max(map(len, breakers), default=0) > MAX_BREAKER_TOKENS:
            return (
                f"dry has a device form for at most {MAX_BREAKERS} sequence breakers of several tokens, of "
                f"{MAX_BREAKER_TOKENS} tokens each"
            )
    return ""


def has_device_form(sampler: Sampler) -> bool:
    """Whether a chain's sampler can run on a device."""
    return not why_not(sampler)
