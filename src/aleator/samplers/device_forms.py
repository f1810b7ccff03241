"""Which samplers can run on a device: ``aleator.device.forms`` has the code, this module needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.samplers.dist import Dist
from aleator.samplers.dry import DRY
from aleator.samplers.penalties import Penalties
from aleator.samplers.user import UserSampler

if TYPE_CHECKING:
    from aleator.samplers.base import Sampler

NAMES = frozenset(
    {
        "adaptive_p", "dry", "greedy", "logit_bias", "min_p", "mirostat", "mirostat_v2", "penalties", "softmax",
        "temperature", "token_mask", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc",
    }
)  # fmt: skip
"""Samplers that have a device form, but for the settings that `why_not` names."""
DRAWS = ("inverse", "gumbel")
"""The draws of ``dist`` that have one."""
MAX_DRY_WINDOW = 512
"""The longest window in which DRY seeks repetitions on a device."""
MAX_BREAKERS = 64
"""How many sequence breakers of several tokens DRY has on a device."""
MAX_BREAKER_TOKENS = 24
"""Tokens of such a breaker."""


def long_breakers(sampler: DRY) -> list[tuple[int, ...]]:
    """The sequence breakers of several tokens."""
    return [tokens for tokens in sampler.breakers if len(tokens) > 1]


def why_not(sampler: Sampler) -> str:
    """Why a chain's sampler cannot run on a device; "" if it can."""
    if isinstance(sampler, UserSampler):
        able = callable(getattr(sampler.user, "apply_device", None))
        return "" if able else f"{sampler.name} has no device form"
    if isinstance(sampler, Dist):
        return "" if sampler.draw in DRAWS else f"draw={sampler.draw!r} has no device form"
    if isinstance(sampler, Penalties) and sampler.repetition_per != "token":
        return f"repetition_per={sampler.repetition_per!r} has no device form"
    if isinstance(sampler, DRY) and not sampler.neutral:
        if not 0 <= sampler.dry_penalty_last_n <= MAX_DRY_WINDOW:
            return (
                f"dry has a device form for windows of at most {MAX_DRY_WINDOW} tokens, not for "
                f"dry_penalty_last_n={sampler.dry_penalty_last_n}"
            )
        long = long_breakers(sampler)
        if len(long) > MAX_BREAKERS or max(map(len, long), default=0) > MAX_BREAKER_TOKENS:
            return (
                f"dry has a device form for at most {MAX_BREAKERS} sequence breakers of several tokens, of "
                f"{MAX_BREAKER_TOKENS} tokens each"
            )
    return "" if sampler.name in NAMES else f"{sampler.name} has no device form"


def has_device_form(sampler: Sampler) -> bool:
    """Whether a chain's sampler can run on a device."""
    return not why_not(sampler)
