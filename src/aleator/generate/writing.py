"""A text under way, as the package itself reads it; users have a :class:`~aleator.Generation` of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from aleator.core.records import dataclass
from aleator.generate.completion import Completion, Stats

Until = Callable[[], bool]


class Stepper(Protocol):
    """What moves a text forward: an :class:`aleator.engine.run.Run`, or a request of an engine."""

    stats: Stats

    def make(self, until: Until, timeout: float | None = None) -> None:
        """Have tokens made until something holds, or so many seconds are over."""

    async def make_async(self, until: Until) -> None:
        """Have tokens made until something holds, while other tasks of the event loop go on."""

    def wake(self) -> None:
        """Notice that a completion was cancelled; may be called from a signal handler."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text under way; ``end`` tokens had been drawn when it was given out."""

    text: str
    end: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the computing of a prompt is.

    Attributes:
        total: Tokens of the prompt.
        cached: Those of them that were not computed, since a cached prefix has them.
        computed: Those that were computed so far.
        seconds: Since the computing began.
    """

    total: int
    cached: int
    computed: int
    seconds: float


class Writing:
    """A text under way: what there is of it, and how to wait for more.

    ``run`` moves it forward; ``completion`` is what has been made so far, and looking at it makes nothing.
    """

    def __init__(self, run: Stepper, completion: Completion) -> None:
        self.run, self.completion = run, completion
        self._given = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Make it to its end, for so many seconds at most; returns whether it has ended."""
        self.run.make(lambda: self.completion.done, timeout)
        return self.completion.done

    async def wait_async(self) -> None:
        """Let other tasks run until it has ended."""
        await self.run.make_async(lambda: self.completion.done)

    def next_piece(self) -> str | None:
        """Make the next piece; None at the end, with which comes the error that ended it."""
        self._require_text()
        if not self._has_more():
            self.run.make(self._has_more_or_done)
        return self._take()

    async def next_piece_async(self) -> str | None:
        """The next piece, as :meth:`next_piece` gives it; other tasks run meanwhile."""
        self._require_text()
        if not self._has_more():
            await self.run.make_async(self._has_more_or_done)
        return self._take()

    async def next_pieces(self) -> list[Piece]:
        """Wait for text that was not given yet, and give all of it that there is; [] at the end.

        How many pieces come at once depends on time; the pieces do not.
        """
        self._require_text()
        if not self._has_more():
            await self.run.make_async(self._has_more_or_done)
        if not self._has_more():
            self.completion.check()
        return self._rest()

    async def pass_on(self, ready: Callable[[], bool], take: Callable[[list[Piece]], None]) -> None:
        """Have pieces taken by the thread that makes them, as soon as they are made.

        Returns at the end, or where ``ready`` says that they cannot be taken; :meth:`next_pieces` has what was
        not. ``ready`` and ``take`` are called in any thread, one call at a time, and must be quick; what they
        raise is raised here, and the text goes on.
        """
        self._require_text()
        over = False
        raised: BaseException | None = None

        def passed() -> bool:
            nonlocal over, raised
            if not over and self._has_more():
                try:
                    over = not ready()
                    if not over:
                        take(self._rest())
                except BaseException as error:
                    over, raised = True, error
            return over

        await self.run.make_async(lambda: passed() or self.completion.done)
        if raised is not None:
            raise raised

    async def wait_for_prompt(self) -> None:
        """Let other tasks run until the prompt is computed, or it has ended."""
        made = self.completion
        await self.run.make_async(lambda: made.done or bool(made.tokens))

    async def prompt_progress(self) -> AsyncIterator[PromptProgress]:
        """How far the computing of the prompt is: once at its beginning, and after each piece of it."""
        made, stats = self.completion, self.run.stats
        total = len(made.request.tokens)
        seen: list[tuple[int, float]] = [(0, 0.0)]
        told = 0

        def further() -> bool:
            if stats.prompt_tokens > seen[-1][0]:
                seen.append((stats.prompt_tokens, stats.prompt_seconds))
            return len(seen) > max(1, told) or made.done or bool(made.tokens)

        over = False
        while not over:
            await self.run.make_async(further)
            over = further() and (made.done or bool(made.tokens))
            for computed, seconds in seen[told:]:
                told += 1
                yield PromptProgress(total, stats.reused_tokens, computed, seconds)

    def _require_text(self) -> None:
        self.completion.require_text("iterating over a generation")

    def _has_more(self) -> bool:
        return self._given < len(self.completion.pieces)

    def _has_more_or_done(self) -> bool:
        return self._has_more() or self.completion.done

    def _take(self) -> str | None:
        """The next piece, if there is one."""
        if not self._has_more():
            self.completion.check()
            return None
        self._given += 1
        return self.completion.pieces[self._given - 1]

    def _rest(self) -> list[Piece]:
        """The pieces so far that were not given."""
        first, made = self._given, self.completion
        self._given = len(made.pieces)
        return [Piece(made.pieces[i], made.piece_ends[i]) for i in range(first, self._given)]
