"""Greedy selection: the most likely token.

Keeps      nothing: it selects.
Ties       the lowest token id.
Masked     never selected.
Elsewhere  llama.cpp's `greedy` agrees, except that it selects token 0 when every logit is -inf.
"""

from __future__ import annotations

from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host


@dataclass(frozen=True)
class Greedy(Sampler):
    """Select the token with the largest logit."""

    name = "greedy"
    selects = True
    kernel = host.Greedy
    llama_kernel = host.LlamaGreedy

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.selected = int(row.ids[row.order()[0]])
