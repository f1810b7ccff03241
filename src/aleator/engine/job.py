"""A request as the scheduler sees it: lengths, and a place in the order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

PLACES = 64
"""Earlier requests that one step of priority goes before."""


@dataclass(eq=False)
class Job:
    """What is known of a request without its text.

    Attributes:
        prompt: int32, the tokens to compute before anything is drawn.
        longest: positions that it may come to use, those of the prompt included.
        priority: see :class:`aleator.engine.options.SubmitOptions`.
        namespace: prompts share what is computed only within one.
        shares: whether it may share cells with others; if not, it needs all its positions for itself.
        number: requests are numbered as they come.
        seq: its sequence; -1 while it waits.
        done: positions that are computed.
        passed_over: how many later jobs went first, since they needed less room.
    """

    prompt: npt.NDArray[np.int32]
    longest: int
    priority: int = 0
    namespace: str = ""
    shares: bool = True
    number: int = -1
    seq: int = field(default=-1, init=False)
    done: int = field(default=0, init=False)
    passed_over: int = field(default=0, init=False)

    @property
    def turn(self) -> tuple[int, int]:
        """Jobs go in this order."""
        return self.number - PLACES * self.priority, self.number

    @property
    def left(self) -> int:
        """Tokens of the prompt that are still to be computed."""
        return max(0, len(self.prompt) - self.done)

    def common(self, other: Job, least: int) -> int:
        """How many tokens of its prompt, but the last, another begins with too; 0 below ``least``."""
        n = min(len(self.prompt) - 1, len(other.prompt))
        if n < least or self.prompt[least - 1] != other.prompt[least - 1]:
            return 0
        if (self.prompt[:least] != other.prompt[:least]).any():
            return 0
        differ = self.prompt[:n] != other.prompt[:n]
        return int(differ.argmax()) if differ.any() else n

    @property
    def growth(self) -> int:
        """Cells that it may still take from the others."""
        return self.longest - self.done if self.shares else self.longest
