"""Which samplers of a chain run on a device, which on the host after them, and what is transferred between."""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.records import dataclass
from aleator.samplers.base import Sampler
from aleator.samplers.device_forms import why_not
from aleator.samplers.top_k import TopK


@dataclass(frozen=True)
class Plan:
    """A chain's split; ``print`` it.

    Attributes:
        where: the device.
        device: names of the samplers that run there.
        host: names of those that run on the host after them.
        why: why the first of the latter does; "" where there is none.
        split: how many of the chain's samplers come before the host's.
        bound: candidates that are transferred to the host at most; 0: all.
        grammar: the host makes a mask of a row's grammar before every step.
        kernels: what computes the device's part, and why, where there is more than one form; "" where not.

    """

    where: str
    device: tuple[str, ...]
    host: tuple[str, ...]
    why: str = ""
    split: int = 0
    bound: int = 0
    grammar: bool = False
    kernels: str = ""

    def __str__(self) -> str:
        lines = [f"device ({self.where}): {' -> '.join(self.device) or 'nothing'}"]
        if self.kernels:
            lines.append(f"kernels: {self.kernels}")
        if self.grammar:
            lines.append("before: the grammar's mask from the host, a bit per token")
        if not self.host:
            return "\n".join([*lines, "host: nothing; only the tokens are transferred"])
        lines.append(f"host: {' -> '.join(self.host)}, because {self.why}")
        transferred = (
            f"the {self.bound} candidates that top_k leaves"
            if self.bound
            else "all logits, since no top_k comes before: put one there"
        )
        return "\n".join([*lines, f"transferred: {transferred}"])


def make_plan(
    samplers: Sequence[Sampler], where: str, *, portable: bool = True, grammar: bool = False
) -> Plan:
    """Split samplers for a device: the longest beginning that can run there does.

    A neutral sampler can stand anywhere: it does nothing.

    Args:
        samplers: of a chain, in order.
        where: the device.
        portable: llama.cpp's numbers are made on the host only.
        grammar: the chain has one.

    """
    if not portable:
        names = tuple(sampler.name for sampler in samplers if not sampler.neutral)
        return Plan(where, (), names, "numerics='llama.cpp' are made there only")
    able = [not why_not(sampler) for sampler in samplers]
    ends = (i for i, s in enumerate(samplers) if not (able[i] or s.neutral))
    split = next(ends, len(samplers))
    why = why_not(samplers[split]) if split < len(samplers) else ""
    full = next((s.name for s in samplers[split:] if getattr(s, "mass", "") == "full"), "")
    softmax = [i for i, s in enumerate(samplers[:split]) if s.name == "softmax"]
    if full and softmax:  # the mass that Softmax notes is not transferred
        split = softmax[-1]
        why = f"{full} with mass='full', which runs there, needs what softmax notes"
    here = tuple(s.name for s, can in zip(samplers[:split], able, strict=False) if can)
    rest = tuple(s.name for s in samplers[split:] if not s.neutral)
    return Plan(where, here, rest, why, split, bound(samplers[:split]), grammar)


def bound(samplers: Sequence[Sampler]) -> int:
    """How many candidates these leave at most; 0: all."""
    ks = [s.most for s in samplers if isinstance(s, TopK) and not s.neutral]
    return min(ks, default=0)
