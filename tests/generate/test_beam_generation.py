"""A search of beams in an engine: its steps as they are made, and its texts at the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.generate.beam_generation import BeamGeneration
from tests.generate.test_generation_reader import Run


def told(run: Run, search: Any) -> list[tuple[str, int]]:
    """Each step that is told, and how many of the run's own are left then."""

    async def read() -> list[tuple[str, int]]:
        made = BeamGeneration(run, run.completion, search)
        return [(str(each), len(run.steps)) async for each in made.steps_async()]

    return asyncio.run(read())


def test_steps_are_told_as_they_are_made() -> None:
    run, checked = Run(), list[bool]()
    search: Any = SimpleNamespace(steps=[], beams=["one"], found=[run.completion])
    run.completion.check = lambda: checked.append(run.completion.done)
    run.steps = [
        lambda: search.steps.append("a"), lambda: None, lambda: search.steps.extend("bc"), run.end,
    ]  # fmt: skip
    assert told(run, search) == [("a", 3), ("b", 1), ("c", 1)]
    assert checked == [True]
    again = told(run, search)  # of a search that has ended
    assert again == [("a", 0), ("b", 0), ("c", 0)]
    made: Any = BeamGeneration(run, run.completion, search)
    assert (made.beams, made.steps) == (["one"], ["a", "b", "c"])
    assert [each.tokens for each in made.generations] == [[]]


def test_the_last_step_may_come_with_the_end_and_an_error_is_raised() -> None:
    run = Run()
    search: Any = SimpleNamespace(steps=[], beams=[], found=[])

    def last() -> None:
        search.steps.append("a")
        run.end()

    def fails() -> None:
        raise ValueError("not today")

    run.steps, run.completion.check = [last], fails
    steps: list[Any] = []

    async def read() -> None:
        async for each in BeamGeneration(run, run.completion, search).steps_async():
            steps.append(each)

    with pytest.raises(ValueError, match="not today"):
        asyncio.run(read())
    assert steps == ["a"]


@pytest.mark.parametrize("name", ["beams", "steps", "generations"])
def test_what_is_found_is_waited_for(name: str) -> None:
    run = Run()
    search: Any = SimpleNamespace(steps=[], beams=[], found=[])
    run.steps = [lambda: search.beams.append("one"), run.end]
    assert len(getattr(BeamGeneration(run, run.completion, search), name)) == (name == "beams")
    assert run.steps == []
