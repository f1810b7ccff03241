"""A search of beams under way in an engine.

It has its sequences and cells at once and until its end, so it never waits half-way.  Cut off it gives no
texts, as the best so far may be no good, and status 400, as clients would try 408, 429 and 500 again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from aleator.generate.beams import Beam, BeamSearch, Grown
from aleator.generate.completion import Completion
from aleator.generate.generation import Generation, Stepper


class BeamGeneration(Generation):
    """A beam search in an engine.  Members shared with other generations describe the best text.

    All texts come at the end.  A search that is cut off (stop reason "deadline" or "interrupted") has none.
    """

    def __init__(self, run: Stepper, completion: Completion, search: BeamSearch) -> None:
        super().__init__(run, completion)
        self._run, self._search = run, search

    @property
    def beams(self) -> list[Beam]:
        """The texts, best first; runs the search to its end."""
        self.wait()
        return list(self._search.beams)

    @property
    def steps(self) -> list[list[Grown]]:
        """The beams of each step, if recorded; runs the search to its end."""
        self.wait()
        return list(self._search.steps)

    async def steps_async(self) -> AsyncIterator[list[Grown]]:
        """Yield the beams of each step as they are made, if recorded."""
        made, noted, reported = self._completion, self._search.steps, 0

        def further() -> bool:
            return len(noted) > reported or made.done

        over = False
        while not over:
            await self._run.make_async(further)
            over = made.done
            for each in noted[reported:]:
                reported += 1
                yield each
        await self._reader.wait_async()  # so that its sequences are free
        made.check()

    @property
    def generations(self) -> list[Generation]:
        """The beams as generations that have ended."""
        self.wait()
        return [Generation(self._run, each) for each in self._search.found]
