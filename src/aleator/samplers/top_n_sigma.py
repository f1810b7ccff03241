"""Top-n-sigma truncation, Tang et al. 2024 (arXiv:2411.07641).

Keeps      logits within n standard deviations of the largest: fl32(z - zmax) >= -fl32(n * sigma).  With
           q = rint(max(z - zmax, -256) * 4096) of the N candidates, sigma is
           sqrt(N * sum(q^2) - sum(q)^2) / N / 4096: integer sums, then float64, each step correctly rounded.
Equality   a logit exactly at the bound stays.  0 and -1 turn it off.
Ties       equal logits stay or go together.
Masked     not candidates; they do not enter the deviation.
Temperature does not matter: it scales both sides.
Elsewhere  llama.cpp masks with -inf instead of removing, and sums in float32.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core.parameter import Off, Parameter, declare, single
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host

TOP_N_SIGMA = Parameter(
    "top_n_sigma", float, -1.0, "keep logits within this many deviations of the best; 0 and -1 are off",
    low=0, high=1e6, beyond=-1.0, off=(Off("below", ("llama.cpp",), -1.0, "keeps all tokens"),),
    aliases=("nsigma",), flags=("--top-nsigma", "--top-n-sigma"),
)  # fmt: skip


@dataclass(frozen=True)
class TopNSigma(Sampler):
    """Keep logits within ``top_n_sigma`` standard deviations of the largest."""

    name = "top_n_sigma"
    letter = "s"
    aliases = ("top-n-sigma", "topnsigma")
    kernel = host.TopNSigma
    llama_kernel = host.LlamaTopNSigma
    top_n_sigma: float = declare(TOP_N_SIGMA)

    @property
    def neutral(self) -> bool:
        return single(self.top_n_sigma) <= 0

    def reference(self, row: Row, step: Step, place: Place) -> None:
        with np.errstate(over="ignore"):
            d = row.logits - row.top
        q = np.rint(np.maximum(d, np.float32(-256)) * np.float32(4096)).astype(np.int64).tolist()
        spread = len(q) * sum(x * x for x in q) - sum(q) ** 2
        sigma = math.sqrt(float(spread)) / len(q) / 4096.0
        row.keep(d >= np.float32(-(float(np.float32(self.top_n_sigma)) * sigma)))
