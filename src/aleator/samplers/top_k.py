"""Top-k truncation.

Keeps      the first ``top_k`` candidates of the order (logit descending, then token id ascending); all of
           them if there are fewer.  0 keeps all.
Limit      ``top_k_limit`` above 0 replaces ``top_k`` if that is 0 or not less than the length of the row:
           Akunu's rule, with 256.
Ties       equal logits rank by lower token id, also at the boundary.
Masked     not candidates: they neither count nor stay.
Elsewhere  llama.cpp leaves ties to its sort, and keeps -inf tokens if fewer than k are finite; libraries
           that compare with the k-th value keep all tokens that tie with it.
"""

from __future__ import annotations

from aleator.core.parameter import Off, Parameter, declare
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host, only_portable

TOP_K = Parameter(
    "top_k", int, 0, "keep the k most likely tokens; 0 keeps all",
    low=0, high=2**31 - 1, off=(
        Off("below", ("llama.cpp", "mlx-lm"), 0, "keeps all tokens"),
        Off(-1, ("vLLM", "SGLang"), 0, "keeps all tokens"),
    ),
    flags=("--top-k",), metadata="top_k",
)  # fmt: skip
TOP_K_LIMIT = Parameter(
    "top_k_limit", int, 0,
    "keep this many where top_k is off or not less than the vocabulary, as Akunu does; 0 is no limit",
    low=0, high=2**31 - 1, flags=("--top-k-limit",),
)  # fmt: skip


@dataclass(frozen=True)
class TopK(Sampler):
    """Keep the ``top_k`` most likely tokens."""

    name = "top_k"
    letter = "k"
    aliases = ("top-k", "topk")
    top_k: int = declare(TOP_K)
    top_k_limit: int = declare(TOP_K_LIMIT)

    @property
    def neutral(self) -> bool:
        return self.top_k == 0 and self.top_k_limit == 0

    @property
    def most(self) -> int:
        """The most tokens that stay, whatever the vocabulary; 0: all."""
        return self.top_k or self.top_k_limit

    def kept_of(self, n_vocab: int) -> int:
        """The most tokens that stay of a row of ``n_vocab`` logits; 0: all."""
        if self.top_k_limit and not 0 < self.top_k < n_vocab:
            return self.top_k_limit
        return self.top_k

    def native(self, place: Place) -> host.Sampler:
        if self.top_k_limit:
            return host.LimitedTopK(self.top_k, self.top_k_limit)
        return host.TopK(self.top_k)

    def native_llama(self, place: Place) -> host.LlamaSampler:
        if self.top_k_limit:
            raise only_portable("top_k_limit", self.top_k_limit, 0)
        return host.LlamaTopK(self.top_k)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.keep_first(self.kept_of(step.n_vocab))
