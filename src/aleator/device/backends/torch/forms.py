"""The device form of each sampler."""

from __future__ import annotations

from aleator.device.backends.torch.adaptive_p import DeviceAdaptiveP
from aleator.device.backends.torch.bad_words import DeviceBadWords
from aleator.device.backends.torch.dist import DeviceDist, DeviceGumbel
from aleator.device.backends.torch.dry import DeviceDRY
from aleator.device.backends.torch.epsilon_cutoff import DeviceEpsilonCutoff
from aleator.device.backends.torch.eta_cutoff import DeviceEtaCutoff
from aleator.device.backends.torch.greedy import DeviceGreedy
from aleator.device.backends.torch.logit_bias import DeviceLogitBias
from aleator.device.backends.torch.min_p import DeviceMinP
from aleator.device.backends.torch.min_tokens import DeviceMinTokens
from aleator.device.backends.torch.mirostat import DeviceMirostat
from aleator.device.backends.torch.mirostat_v2 import DeviceMirostatV2
from aleator.device.backends.torch.no_repeat_ngram import DeviceNoRepeatNgram
from aleator.device.backends.torch.penalties import DevicePenalties
from aleator.device.backends.torch.smoothing import DeviceSmoothing
from aleator.device.backends.torch.softmax import DeviceSoftmax
from aleator.device.backends.torch.temperature import DeviceTemperature
from aleator.device.backends.torch.token_mask import DeviceTokenMask
from aleator.device.backends.torch.top_k import DeviceTopK
from aleator.device.backends.torch.top_n_sigma import DeviceTopNSigma
from aleator.device.backends.torch.top_p import DeviceTopP
from aleator.device.backends.torch.typical_p import DeviceTypicalP
from aleator.device.backends.torch.user import DeviceUser
from aleator.device.backends.torch.xtc import DeviceXTC
from aleator.device.places import DeviceSampler
from aleator.samplers.base import Sampler
from aleator.samplers.dist import Dist
from aleator.samplers.plan import why_not
from aleator.samplers.user import UserSampler

FORMS: dict[str, type[DeviceSampler]] = {
    "adaptive_p": DeviceAdaptiveP,
    "bad_words": DeviceBadWords,
    "dry": DeviceDRY,
    "epsilon_cutoff": DeviceEpsilonCutoff,
    "eta_cutoff": DeviceEtaCutoff,
    "greedy": DeviceGreedy,
    "logit_bias": DeviceLogitBias,
    "min_p": DeviceMinP,
    "min_tokens": DeviceMinTokens,
    "mirostat": DeviceMirostat,
    "mirostat_v2": DeviceMirostatV2,
    "no_repeat_ngram": DeviceNoRepeatNgram,
    "penalties": DevicePenalties,
    "smoothing": DeviceSmoothing,
    "softmax": DeviceSoftmax,
    "temperature": DeviceTemperature,
    "token_mask": DeviceTokenMask,
    "top_k": DeviceTopK,
    "top_n_sigma": DeviceTopNSigma,
    "top_p": DeviceTopP,
    "typical_p": DeviceTypicalP,
    "xtc": DeviceXTC,
}
"""By the name of the sampler."""

DRAWS: dict[str, type[DeviceSampler]] = {"inverse": DeviceDist, "gumbel": DeviceGumbel}
"""Of ``dist``, by its ``draw``."""


def device_form(sampler: Sampler) -> type[DeviceSampler] | None:
    """The device form of a chain's sampler; None: it runs on the host."""
    if why_not(sampler):
        return None
    if isinstance(sampler, UserSampler):
        return DeviceUser
    return DRAWS[sampler.draw] if isinstance(sampler, Dist) else FORMS[sampler.name]
