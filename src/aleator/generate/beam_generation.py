"""A search of beams under way in an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aleator.generate.beams import Beam, BeamSearch, Grown
from aleator.generate.completion import Completion
from aleator.generate.generation import Generation, Stepper


class BeamGeneration(Generation):
    """A search of an engine.  What it has in common with other generations is that of the best text.

    It is made as a whole: its text comes at the end, and one that is cut off (stop reason "deadline" or
    "interrupted") has none.
    """

    def __init__(self, run: Stepper, completion: Completion, search: BeamSearch) -> None:
        super().__init__(run, completion)
        self._run, self._search = run, search

    @property
    def beams(self) -> list[Beam]:
        """The texts, the best first; it is made until it ends."""
        self.wait()
        return list(self._search.beams)

    @property
    def steps(self) -> list[list[Grown]]:
        """The beams of each step, where they are noted; it is made until it ends."""
        self.wait()
        return list(self._search.steps)

    async def steps_async(self) -> AsyncIterator[list[Grown]]:
        """The beams of each step as they come, where they are noted."""
        made, noted, told = self._completion, self._search.steps, 0

        def further() -> bool:
            return len(noted) > told or made.done

        over = False
        while not over:
            await self._run.make_async(further)
            over = made.done
            for each in noted[told:]:
                told += 1
                yield each
        await self._writing.wait_async()  # what it held is free
        made.check()

    @property
    def generations(self) -> list[Generation]:
        """These as generations that have ended."""
        self.wait()
        return [Generation(self._run, each) for each in self._search.found]
