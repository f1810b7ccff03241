"""A request as the scheduler sees it: its lengths, and its place in the order."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass

PLACES = 64
"""One step of priority puts a request before this many earlier ones."""
WORTH_WAITING = 32
"""If another job is computing at least this many tokens of the same prompt, it is better to wait for them."""


@dataclass(eq=False)
class Job:
    """The scheduler's view of a request: everything but its text.

    Attributes:
        prompt: int32, the tokens to compute before the first token is drawn.
        longest: Positions that it may use at most, prompt included, in both its sequences together.
        shares: Whether it may share cells with others; if not, it needs a cell for each of its positions.
        beside: Tokens of a second prompt, which has its own sequence and is computed first; 0: there is none.
        most: A step computes this many tokens of its prompts at most.
        number: Requests are numbered in the order in which they come.
        seq: Its sequence; -1 while it waits.
        beside_seq: The sequence of the second prompt; -1 without one.
        done: Positions of ``seq`` that are computed.
        beside_done: Positions of ``beside_seq`` that are computed.
        passed_over: How many later jobs went first because they needed less room.
        partners: Running jobs that share the cells of the same prompt, this job included; the cells are counted
            for the first of them.  Empty, or only this job: no other job shares them.
        follows: Whether another job is computing the prompt for it.
    """

    prompt: npt.NDArray[np.int32]
    longest: int
    priority: int = 0
    namespace: str = ""
    shares: bool = True
    beside: int = 0
    most: int = 2**31 - 1
    number: int = -1
    seq: int = field(default=-1, init=False)
    beside_seq: int = field(default=-1, init=False)
    done: int = field(default=0, init=False)
    beside_done: int = field(default=0, init=False)
    passed_over: int = field(default=0, init=False)
    partners: list[Job] = field(default_factory=list, init=False)
    follows: bool = field(default=False, init=False)

    @property
    def turn(self) -> tuple[int, int]:
        """Sort key of the order in which jobs begin."""
        return self.number - PLACES * self.priority, self.number

    @property
    def left(self) -> int:
        """How many tokens of its prompts are still to be computed."""
        left = len(self.prompt) - self.done
        left = left if left > 0 else 0
        return left + self.beside - self.beside_done if self.beside_done < self.beside else left

    @property
    def depth(self) -> int:
        """How many tokens the next token of its prompts attends to."""
        return self.done if self.beside_done >= self.beside else self.beside_done

    @property
    def width(self) -> int:
        """How many sequences it has, which is how many rows it has in a step in which it writes."""
        return 2 if self.beside else 1

    def common(self, other: Job, least: int) -> int:
        """Length of the common prefix with another prompt, without its own last token; 0 below ``least``."""
        n = min(len(self.prompt) - 1, len(other.prompt))
        if n < least or self.prompt[least - 1] != other.prompt[least - 1]:
            return 0
        if (self.prompt[:least] != other.prompt[:least]).any():
            return 0
        differ = self.prompt[:n] != other.prompt[:n]
        return int(differ.argmax()) if differ.any() else n

    @cached_property
    def beginning(self) -> tuple[str, bytes]:
        """Key that is equal for prompts that it may be worth waiting for."""
        return self.namespace, self.prompt[: WORTH_WAITING + 1].tobytes()

    @cached_property
    def looks(self) -> tuple[str, int, int]:
        """Key that is equal for equal prompts, and seldom for others."""
        n = len(self.prompt)
        return self.namespace, n, int(self.prompt[-1]) if n else -1

    def same_prompt(self, other: Job) -> bool:
        """Whether one computed prompt can serve both jobs."""
        return (
            len(self.prompt) == len(other.prompt)
            and self.shares
            and other.shares
            and not self.beside
            and not other.beside
            and self.namespace == other.namespace
            and bool((self.prompt == other.prompt).all())
        )

    @property
    def reserve(self) -> int:
        """Positions reserved for it: all, without the prompt if that is counted for a partner."""
        borrows = self.partners and self.partners[0] is not self
        return self.longest - len(self.prompt) if borrows else self.longest

    @property
    def growth(self) -> int:
        """How many more cells it may take."""
        if not self.shares:
            return self.longest
        done = len(self.prompt) if self.follows else self.done + self.beside_done
        return self.longest - done
