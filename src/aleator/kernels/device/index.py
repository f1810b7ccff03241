"""Which samplers have a device form."""

from __future__ import annotations

from typing import Any

from aleator.kernels.device.base import DeviceSampler
from aleator.kernels.device.dist import DeviceDist, DeviceGumbel
from aleator.kernels.device.greedy import DeviceGreedy
from aleator.kernels.device.logit_bias import DeviceLogitBias
from aleator.kernels.device.min_p import DeviceMinP
from aleator.kernels.device.mirostat_v2 import DeviceMirostatV2
from aleator.kernels.device.penalties import DevicePenalties
from aleator.kernels.device.softmax import DeviceSoftmax
from aleator.kernels.device.temperature import DeviceTemperature
from aleator.kernels.device.token_mask import DeviceTokenMask
from aleator.kernels.device.top_k import DeviceTopK
from aleator.kernels.device.top_n_sigma import DeviceTopNSigma
from aleator.kernels.device.top_p import DeviceTopP
from aleator.kernels.device.typical_p import DeviceTypicalP
from aleator.kernels.device.user import DeviceUser
from aleator.kernels.device.xtc import DeviceXTC

_BY_NAME: dict[str, type[DeviceSampler]] = {
    "greedy": DeviceGreedy,
    "logit_bias": DeviceLogitBias,
    "min_p": DeviceMinP,
    "mirostat_v2": DeviceMirostatV2,
    "penalties": DevicePenalties,
    "softmax": DeviceSoftmax,
    "temperature": DeviceTemperature,
    "token_mask": DeviceTokenMask,
    "top_k": DeviceTopK,
    "top_n_sigma": DeviceTopNSigma,
    "top_p": DeviceTopP,
    "typical_p": DeviceTypicalP,
    "xtc": DeviceXTC,
}
_DRAWS: dict[str, type[DeviceSampler]] = {"inverse": DeviceDist, "gumbel": DeviceGumbel}


def device_form(sampler: Any) -> type[DeviceSampler] | None:
    """The device form of a chain's sampler; None: it runs on the host."""
    user = getattr(sampler, "user", None)
    if user is not None:
        return DeviceUser if callable(getattr(user, "apply_device", None)) else None
    if sampler.name == "dist":
        return _DRAWS.get(sampler.draw)
    return _BY_NAME.get(sampler.name)
