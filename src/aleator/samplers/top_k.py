"""Top-k truncation.

Keeps      the first ``top_k`` candidates of the order (logit descending, then token id ascending); all of
           them if there are fewer.  0 keeps all.
Ties       equal logits rank by lower token id, also at the boundary.
Masked     not candidates: they neither count nor stay.
Elsewhere  llama.cpp leaves ties to its sort, and keeps -inf tokens when fewer than k are finite; libraries
           that compare with the k-th value keep all tokens that tie with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from aleator.core import host
from aleator.core.numerics import Row, Step
from aleator.core.parameter import Parameter, declare
from aleator.samplers.base import Place, Sampler

TOP_K = Parameter(
    "top_k", int, 0, "keep the k most likely tokens; 0 keeps all",
    low=0, high=2**31 - 1, flags=("--top-k",), metadata="top_k",
)  # fmt: skip


@dataclass(frozen=True)
class TopK(Sampler):
    """Keep the ``top_k`` most likely tokens."""

    name = "top_k"
    letter = "k"
    aliases = ("top-k", "topk")
    top_k: int = declare(TOP_K)

    @property
    def neutral(self) -> bool:
        """True at 0."""
        return self.top_k == 0

    def native(self, place: Place) -> host.Sampler:
        """Host kernel: native/samplers/top_k.cpp."""
        return host.TopK(self.top_k)

    def native_llama(self, place: Place) -> host.LlamaSampler:
        """llama.cpp's numbers: native/llama/top_k.cpp."""
        return host.LlamaTopK(self.top_k)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference."""
        if self.top_k:
            row.keep_first(self.top_k)
