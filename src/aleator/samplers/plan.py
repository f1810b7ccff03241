"""Which samplers of a chain run on a device, which on the host after them, and what crosses between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aleator.kernels.device.index import has_device_form
from aleator.samplers.base import Sampler
from aleator.samplers.top_k import TopK


@dataclass(frozen=True)
class Plan:
    """A chain's split; ``print`` it.

    Attributes:
        where: the device.
        device: names of the samplers that run there.
        host: names of those that run on the host after them.
        why: why the first of the latter does; "" where there is none.
        bound: candidates that cross to the host at most; 0: all.
        grammar: the host makes a mask of a row's grammar before every step.

    """

    where: str
    device: tuple[str, ...]
    host: tuple[str, ...]
    why: str = ""
    bound: int = 0
    grammar: bool = False

    def __str__(self) -> str:
        lines = [f"device ({self.where}): {' -> '.join(self.device) or 'nothing'}"]
        if self.grammar:
            lines.append("before: the grammar's mask from the host, a bit per token")
        if not self.host:
            return "\n".join([*lines, "host: nothing; only the tokens cross"])
        lines.append(f"host: {' -> '.join(self.host)}, because {self.why}")
        crossing = (
            f"the {self.bound} candidates that top_k leaves"
            if self.bound
            else "all logits, since no top_k comes before: put one there"
        )
        return "\n".join([*lines, f"crossing: {crossing}"])


def make_plan(
    samplers: Sequence[Sampler], where: str, *, portable: bool = True, grammar: bool = False
) -> Plan:
    """Split samplers for a device: the longest beginning that can run there does.

    Args:
        samplers: of a chain, in order.
        where: the device.
        portable: llama.cpp's numbers are made on the host only.
        grammar: the chain has one.

    """
    names = [sampler.name for sampler in samplers]
    if not portable:
        return Plan(where, (), tuple(names), "numerics='llama.cpp' are made there only")
    split = next((i for i, s in enumerate(samplers) if not has_device_form(s)), len(names))
    why = f"{names[split]} has no device form" if split < len(names) else ""
    full = next((s.name for s in samplers[split:] if getattr(s, "mass", "") == "full"), "")
    if full and "softmax" in names[:split]:
        # The mass that Softmax notes does not cross.
        split = max(i for i, name in enumerate(names[:split]) if name == "softmax")
        why = f"{full} with mass='full', which runs there, needs what softmax notes"
    return Plan(
        where, tuple(names[:split]), tuple(names[split:]), why, bound(samplers[:split]), grammar
    )


def bound(samplers: Sequence[Sampler]) -> int:
    """How many candidates these leave at most; 0: all."""
    ks = [s.top_k for s in samplers if isinstance(s, TopK) and not s.neutral]
    return min(ks, default=0)
