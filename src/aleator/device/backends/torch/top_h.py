"""Top-H on the device; the contract is in aleator.samplers.top_h."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from aleator.core.parameter import single
from aleator.device.candidates import DeviceCandidates, entropy_of
from aleator.device.places import DeviceSampler, DeviceStep, Field, Fields, Values, expect
from aleator.samplers.base import Place, Sampler
from aleator.samplers.top_h import TopH

FAR = 1024
"""Lengths are sought among multiples of this first, all at once, then among what lies between."""


class DeviceTopH(DeviceSampler):
    """Keeps the most likely tokens whose entropy is at most a share of that of all."""

    fields: ClassVar[Fields] = {"share": Field(torch.float64, 1.0)}

    def values(self, sampler: Sampler, place: Place) -> Values:
        """The share, as its float32."""
        return {"share": single(expect(TopH, sampler).top_h)}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Truncate."""
        terms = data.entropy_terms()
        weights, bits = (data.ranked(x).cumsum(1) for x in (terms.weights, terms.bits))
        counts = data.ranked(data.alive).to(torch.int64).cumsum(1)
        tops, gap, share = (x.unsqueeze(1) for x in terms[:3])
        size, n_columns = data.size.unsqueeze(1), counts.shape[1]

        def entropies(lengths: Tensor) -> Tensor:
            # What was masked late may stand between candidates in the order: a length is no column.
            at = torch.searchsorted(counts, lengths).clamp(max=n_columns - 1)
            of = entropy_of(
                tops.minimum(lengths), gap, share, weights.gather(1, at), bits.gather(1, at)
            )
            return of.bits

        most = self.get("share", step).unsqueeze(1) * entropies(size)
        kept = torch.zeros_like(terms.tops)
        for unit, places in ((FAR, n_columns // FAR), (1, min(FAR - 1, n_columns))):
            lengths = kept.unsqueeze(1) + unit * torch.arange(1, places + 1, device=kept.device)
            passes = (entropies(lengths) <= most) & (lengths <= size)
            kept = kept + unit * _by_bits(passes)
        data.keep_first(torch.where(self.get("active", step), kept.clamp(min=1), 2**62))


def _by_bits(passes: Tensor) -> Tensor:
    """int64 [B]: the number whose bits are set from the highest where ``passes`` [B, n], from 1 on, says so."""
    n = passes.shape[1]
    found = torch.zeros(len(passes), dtype=torch.int64, device=passes.device)
    for i in reversed(range(n.bit_length())):
        next_ = found + (1 << i)
        says = passes.gather(1, (next_ - 1).clamp(max=n - 1).unsqueeze(1)).squeeze(1)
        found = torch.where(says & (next_ <= n), next_, found)
    return found
