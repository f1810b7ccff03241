"""The device form of each sampler."""

from __future__ import annotations

from aleator.device.backends.torch import bans, draws, logits, mirostat, truncation
from aleator.device.backends.torch.dry import DeviceDRY
from aleator.device.backends.torch.user import DeviceUser
from aleator.device.places import DeviceSampler
from aleator.samplers.base import Sampler
from aleator.samplers.dist import Dist
from aleator.samplers.plan import why_not
from aleator.samplers.user import UserSampler

FORMS: dict[str, type[DeviceSampler]] = {
    "adaptive_p": draws.DeviceAdaptiveP,
    "bad_words": bans.DeviceBadWords,
    "dry": DeviceDRY,
    "epsilon_cutoff": truncation.DeviceEpsilonCutoff,
    "eta_cutoff": truncation.DeviceEtaCutoff,
    "greedy": draws.DeviceGreedy,
    "logit_bias": logits.DeviceLogitBias,
    "min_k": truncation.DeviceMinK,
    "min_p": truncation.DeviceMinP,
    "min_tokens": bans.DeviceMinTokens,
    "mirostat": mirostat.DeviceMirostat,
    "mirostat_v2": mirostat.DeviceMirostatV2,
    "no_repeat_ngram": bans.DeviceNoRepeatNgram,
    "p_less": truncation.DevicePLess,
    "penalties": logits.DevicePenalties,
    "smoothing": logits.DeviceSmoothing,
    "softmax": logits.DeviceSoftmax,
    "temperature": logits.DeviceTemperature,
    "token_mask": bans.DeviceTokenMask,
    "top_h": truncation.DeviceTopH,
    "top_k": truncation.DeviceTopK,
    "top_n_sigma": truncation.DeviceTopNSigma,
    "top_p": truncation.DeviceTopP,
    "typical_p": truncation.DeviceTypicalP,
    "xtc": truncation.DeviceXTC,
}
"""By the name of the sampler."""

DRAWS: dict[str, type[DeviceSampler]] = {
    "inverse": draws.DeviceDist,
    "gumbel": draws.DeviceGumbel,
    "watermark": draws.DeviceWatermark,
}
"""Of ``dist``, by its ``draw``."""


def device_form(sampler: Sampler) -> type[DeviceSampler] | None:
    """The device form of a chain's sampler; None: it runs on the host."""
    if why_not(sampler):
        return None
    if isinstance(sampler, UserSampler):
        return DeviceUser
    return DRAWS[sampler.draw] if isinstance(sampler, Dist) else FORMS[sampler.name]
