"""Tail-free truncation (Phénix, 2019); llama.cpp had it until October 2024.

Keeps      the first i tokens of the order, i the first index at which the sum of curvatures
           |(w_i - w_i+1) - (w_i+1 - w_i+2)| exceeds tfs_z of their total and i >= ``min_keep``; all if there
           is no such i; at least one.  Integers throughout.  Fewer than three candidates all stay.
Equality   a sum exactly equal to the bound does not exceed it.  1 turns it off.
Ties       by lower token id.  When every curvature is 0 each counts the same.
Masked     not candidates.
Elsewhere  llama.cpp summed float32 probabilities; its index was off by one, and so is this one.
"""

from __future__ import annotations

import itertools

from aleator.core.numerics import Row, Step, exact, ints
from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare
from aleator.samplers.base import Place, Sampler, dataclass, host

TFS_Z = Parameter(
    "tfs_z", float, 1.0, "cut the tail where the curve of probabilities flattens; 1 is off",
    low=0, high=1, off=(Off("above", ("llama.cpp",), 1.0, "keeps all tokens"),),
    aliases=("tfs",), flags=("--tfs",),
)  # fmt: skip


@dataclass(frozen=True)
class TailFree(Sampler):
    """Cut the tail where the sorted probabilities flatten out."""

    name = "tail_free"
    aliases = ("tfs_z", "tfs", "tail-free")
    reads = "mass"
    switch = TFS_Z
    kernel = host.TailFree
    llama_kernel = host.LlamaTailFree
    tfs_z: float = declare(TFS_Z)
    min_keep: int = declare(MIN_KEEP)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        w = ints(row.weights()[row.order()])
        slopes = [a - b for a, b in itertools.pairwise(w)]
        curvature = [abs(a - b) for a, b in itertools.pairwise(slopes)]
        if not any(curvature):
            curvature = [1] * len(curvature)
        bound, total = exact(self.tfs_z) * sum(curvature), 0
        for i, c in enumerate(curvature):
            total += c
            if total > bound and i >= self.min_keep:
                row.keep_first(i)
                return
