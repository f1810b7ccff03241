"""Which samplers have a device form.  Needs no torch: their modules load when a device chain is made."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aleator.kernels.device.base import DeviceSampler

_BY_NAME = {
    "adaptive_p": "DeviceAdaptiveP",
    "greedy": "DeviceGreedy",
    "logit_bias": "DeviceLogitBias",
    "min_p": "DeviceMinP",
    "mirostat_v2": "DeviceMirostatV2",
    "penalties": "DevicePenalties",
    "softmax": "DeviceSoftmax",
    "temperature": "DeviceTemperature",
    "token_mask": "DeviceTokenMask",
    "top_k": "DeviceTopK",
    "top_n_sigma": "DeviceTopNSigma",
    "top_p": "DeviceTopP",
    "typical_p": "DeviceTypicalP",
    "xtc": "DeviceXTC",
}
"""The class in the module of the sampler's name."""

_DRAWS = {"inverse": "DeviceDist", "gumbel": "DeviceGumbel"}


def _home(sampler: Any) -> tuple[str, str] | None:
    """Module and class of a sampler's device form."""
    user = getattr(sampler, "user", None)
    if user is not None:
        return ("user", "DeviceUser") if callable(getattr(user, "apply_device", None)) else None
    if sampler.name == "dist":
        return ("dist", _DRAWS[sampler.draw]) if sampler.draw in _DRAWS else None
    if sampler.name == "penalties" and sampler.repetition_per != "token":
        return None
    return (sampler.name, _BY_NAME[sampler.name]) if sampler.name in _BY_NAME else None


def has_device_form(sampler: Any) -> bool:
    """Whether a chain's sampler can run on a device."""
    return _home(sampler) is not None


def device_form(sampler: Any) -> type[DeviceSampler] | None:
    """The device form of a chain's sampler; None: it runs on the host."""
    home = _home(sampler)
    if home is None:
        return None
    module, name = home
    form: type[DeviceSampler] = getattr(import_module(f"aleator.kernels.device.{module}"), name)
    return form
