"""The places of a device chain, and the assignment of a row's samplers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aleator.core.records import dataclass
from aleator.device.arguments import ChainOptions
from aleator.device.backends.torch import bans, draws, logits, truncation
from aleator.device.backends.torch.user import DeviceUser, place_of
from aleator.device.device_sampler import DeviceSampler
from aleator.samplers.base import Place, Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.dist import Dist
from aleator.samplers.plan import make_plan, why_not
from aleator.samplers.user import UserSampler

FORMS: dict[str, type[DeviceSampler]] = {
    "adaptive_p": draws.DeviceAdaptiveP,
    "bad_words": bans.DeviceBadWords,
    "dry": bans.DeviceDRY,
    "epsilon_cutoff": truncation.DeviceEpsilonCutoff,
    "eta_cutoff": truncation.DeviceEtaCutoff,
    "greedy": draws.DeviceGreedy,
    "logit_bias": logits.DeviceLogitBias,
    "min_k": truncation.DeviceMinK,
    "min_p": truncation.DeviceMinP,
    "min_tokens": bans.DeviceMinTokens,
    "mirostat": draws.DeviceMirostat,
    "mirostat_v2": draws.DeviceMirostatV2,
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
"""Device forms by the sampler's name."""

DRAWS: dict[str, type[DeviceSampler]] = {
    "inverse": draws.DeviceDist,
    "gumbel": draws.DeviceGumbel,
    "watermark": draws.DeviceWatermark,
    "synthid": draws.DeviceSynthID,
}
"""Device forms of ``dist`` by its ``draw``."""


PlacedSampler = tuple[Sampler, Place]
"""A sampler, and its place in the chain."""


@dataclass(frozen=True)
class Kind:
    """What samplers must have in common to share a place."""

    form: type[DeviceSampler]  # their device form
    user: object = None  # the key of a user's sampler, see ``place_of``; None for others


def kind_of(sampler: Sampler) -> Kind | None:
    """A sampler's kind; None if it has no device form."""
    if why_not(sampler):
        return None
    if isinstance(sampler, UserSampler):
        return Kind(DeviceUser, place_of(sampler.user))
    return Kind(DRAWS[sampler.draw] if isinstance(sampler, Dist) else FORMS[sampler.name])


def split(chain: SamplerChain) -> tuple[list[PlacedSampler], list[PlacedSampler]]:
    """A chain's samplers that run on the device, including neutral ones, and the later ones on the host."""
    pairs: list[PlacedSampler] = []
    users = 0
    for sampler, place in chain.samplers_with_places:
        if isinstance(sampler, UserSampler):  # of one kind, whatever their names
            place, users = replace(place, ordinal=users), users + 1
        pairs.append((sampler, place))
    n = make_plan([sampler for sampler, _ in pairs], "").split
    return pairs[:n], pairs[n:]


class Program:
    """Places in order; every row uses some of them.

    A row fits if the kinds of its samplers occur in this order.  If it does not fit, places are added, which
    are neutral for other rows.
    """

    def __init__(self, options: ChainOptions) -> None:
        self._options = options
        self._kinds: list[Kind] = []
        self.places: list[DeviceSampler] = []  # in the order in which they are applied

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(place.nbytes for place in self.places)

    def fit(
        self, samplers: Sequence[PlacedSampler], kept: Sequence[DeviceSampler]
    ) -> tuple[Program, dict[DeviceSampler, PlacedSampler]]:
        """Find a program with places for a row, and the samplers by place; change nothing.

        ``kept`` are places that must stay.  If places are added, unused ones are removed.
        """
        pairs = [(kind, each) for each in samplers if (kind := kind_of(each[0])) is not None]
        kinds, wanted = [kind for kind, _ in pairs], [each for _, each in pairs]
        fitted: dict[DeviceSampler, PlacedSampler] = {}
        for kind, place in zip(self._kinds, self.places, strict=True):
            if len(fitted) < len(kinds) and kind == kinds[len(fitted)]:
                fitted[place] = wanted[len(fitted)]
        if len(fitted) == len(wanted):
            return self, fitted
        made, fitted = Program(self._options), {}
        old = [i for i, place in enumerate(self.places) if place in kept]
        for here, there in merged([self._kinds[i] for i in old], kinds):
            if here is not None:
                at, kind = self.places[old[here]], self._kinds[old[here]]
            else:
                kind = kinds[there]
                at = kind.form(wanted[there][0], self._options)
            made._kinds.append(kind)
            made.places.append(at)
            if there >= 0:
                fitted[at] = wanted[there]
        return made, fitted


def merged(a: Sequence[Kind], b: Sequence[Kind]) -> list[tuple[int | None, int]]:
    """The shortest common supersequence: for each element its index in ``a`` or None, and in ``b`` or -1."""
    common = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]  # of the rest from i and j on
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            common[i][j] = (
                common[i + 1][j + 1] + 1
                if a[i] == b[j]
                else max(common[i + 1][j], common[i][j + 1])
            )
    found: list[tuple[int | None, int]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if i < len(a) and j < len(b) and a[i] == b[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif j == len(b) or (i < len(a) and common[i + 1][j] >= common[i][j + 1]):
            found.append((i, -1))
            i += 1
        else:
            found.append((None, j))
            j += 1
    return found
