"""How a batch is cut into micro-batches: three rules, on the tokens' sets of sequences.

Rules as in llama.cpp's batch allocator.  All take the tokens' sequences in batch order and give lists of
batch indices; in a sequence the order of the batch is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass

RULES = ("simple", "equal", "sequence")

Part = list[int]


@dataclass(frozen=True)
class Cuts:
    """How a batch is cut into pieces of ``n_batch``, and these into micro-batches.

    The arguments are those of :meth:`aleator.cache.Cache.plan`.
    """

    n_ubatch: int
    n_batch: int
    rule: str = "simple"
    keep_tail: int = 0
    causal: bool = True


def split(
    sequences: Sequence[Sequence[int]],
    n_ubatch: int,
    rule: str = "simple",
    *,
    sequential: bool = False,
    keep_tail: int = 0,
) -> list[Part]:
    """Cut a batch into micro-batches of at most ``n_ubatch`` tokens; returns the batch indices of each.

    Args:
        sequences: each token's sequence ids.
        n_ubatch: tokens per micro-batch, 1 or more.
        rule: "simple" takes the next tokens as they come; "equal" takes equally many of several
            sequences and groups them by sequence; "sequence" takes one sequence at a time.
        sequential: with "equal", the sequences of a micro-batch have consecutive ids, and no token has several.
        keep_tail: see :class:`Cuts`; less than ``n_ubatch``.

    """
    if n_ubatch < 1:
        raise ParameterError("n_ubatch", f"n_ubatch must be 1 or more, not {n_ubatch}")
    if rule == "simple":
        n = len(sequences)
        return [list(range(i, min(i + n_ubatch, n))) for i in range(0, n, n_ubatch)]
    if rule == "sequence":
        return _by_sequence(sequences, n_ubatch)
    if rule != "equal":
        raise ParameterError("rule", f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    if not 0 <= keep_tail < n_ubatch:
        raise ParameterError(
            "keep_tail", f"keep_tail must lie in [0, n_ubatch = {n_ubatch}), not {keep_tail}"
        )
    if sequential and any(len(set(s)) > 1 for s in sequences):
        raise ParameterError(
            "sequential", "a token of several sequences cannot be split by sequence"
        )
    left: dict[frozenset[int], Part] = {}
    for i, seqs in enumerate(sequences):
        left.setdefault(frozenset(seqs), []).append(i)
    parts = []
    while left:
        parts.append(_equal(left, n_ubatch, sequential, keep_tail))
    return parts


def _equal(
    left: dict[frozenset[int], Part], n_ubatch: int, sequential: bool, keep_tail: int
) -> Part:
    """Take one micro-batch of what is left."""
    chosen: list[frozenset[int]] = []
    for group in sorted(left, key=lambda g: left[g][0]):
        if len(chosen) == n_ubatch:
            break
        follows = not sequential or not chosen or min(group) == min(chosen[-1]) + 1
        if follows and all(group.isdisjoint(other) for other in chosen):
            chosen.append(group)
    n = min(n_ubatch // len(chosen), min(len(left[g]) for g in chosen))
    if keep_tail:
        good = 0
        while good < len(chosen) and (
            len(left[chosen[good]]) == n or len(left[chosen[good]]) - n >= keep_tail
        ):
            good += 1
        if good == 0:
            rest = len(left[chosen[0]])
            n, good = rest if rest <= n_ubatch else min(n, rest - keep_tail), 1
        chosen = chosen[:good]
    part: Part = []
    for group in chosen:
        part += left[group][:n]
        left[group] = left[group][n:]
        if not left[group]:
            del left[group]
    return part


def _by_sequence(sequences: Sequence[Sequence[int]], n_ubatch: int) -> list[Part]:
    groups = [frozenset(s) for s in sequences]
    todo = list(range(len(groups)))
    parts = []
    while todo:
        current = groups[todo[0]]
        part: Part = []
        rest: Part = []
        for i in todo:
            if len(part) < n_ubatch and groups[i] <= current:
                part.append(i)
                current = groups[i]
            else:
                rest.append(i)
        parts.append(part)
        todo = rest
    return parts
