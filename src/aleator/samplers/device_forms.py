"""Which samplers can run on a device: ``aleator.device.forms`` has the code, this module needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.samplers.dist import Dist
from aleator.samplers.penalties import Penalties
from aleator.samplers.user import UserSampler

if TYPE_CHECKING:
    from aleator.samplers.base import Sampler

NAMES = frozenset(
    {
        "adaptive_p", "greedy", "logit_bias", "min_p", "mirostat_v2", "penalties", "softmax", "temperature",
        "token_mask", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc",
    }
)  # fmt: skip
"""Samplers that have a device form, but for the settings that `has_device_form` names."""
DRAWS = ("inverse", "gumbel")
"""The draws of ``dist`` that have one."""


def has_device_form(sampler: Sampler) -> bool:
    """Whether a chain's sampler can run on a device."""
    if isinstance(sampler, UserSampler):
        return callable(getattr(sampler.user, "apply_device", None))
    if isinstance(sampler, Dist):
        return sampler.draw in DRAWS
    if isinstance(sampler, Penalties) and sampler.repetition_per != "token":
        return False
    return sampler.name in NAMES
