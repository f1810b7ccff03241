"""How a generation is read while it is made: pieces, the progress of its prompt, and what is shown of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.generate.completion import Stats
from aleator.generate.generation import (
    SHOWN,
    Generation,
    GenerationReader,
    Piece,
    PromptProgress,
    checked_timeout,
)


class Run:
    """Generates a text in steps that are given, one after the other, until a condition holds."""

    def __init__(self, **made: Any) -> None:
        self.stats, self.steps = Stats(), list[Callable[[], object]]()
        usual = {"tokens": [], "pieces": [], "piece_ends": [], "done": False, "error": None}
        self.completion: Any = SimpleNamespace(
            **{**usual, **made}, request=SimpleNamespace(tokens=range(10)), check=lambda: None,
            require_text=lambda what: None, chain=SimpleNamespace(seed=3), stop_reason="length",
        )  # fmt: skip

    @property
    def reader(self) -> GenerationReader:
        return GenerationReader(self, self.completion)

    def piece(self, *texts: str) -> None:
        for text in texts:
            self.completion.tokens.append(1)
            self.completion.piece_ends.append(len(self.completion.tokens))
            self.completion.pieces.append(text)

    def end(self) -> None:
        self.completion.done = True

    def computed(self, n: int) -> None:
        self.stats.prompt_tokens += n
        self.stats.prompt_seconds += 0.5

    def make(self, until: Callable[[], bool], timeout: float | None = None) -> None:
        while not until():
            self.steps.pop(0)()

    async def make_async(self, until: Callable[[], bool]) -> None:
        self.make(until)

    def wake(self) -> None:
        """Nobody sleeps."""


def progress(run: Run) -> list[tuple[PromptProgress, int]]:
    """What is told of a prompt, and how many steps are left then."""

    async def told() -> list[tuple[PromptProgress, int]]:
        made = []
        async for each in run.reader.prompt_progress():
            made.append((each, len(run.steps)))
            assert len(made) < 20, "it does not end"
        return made

    return asyncio.run(told())


def test_the_progress_of_a_prompt_is_told_after_each_step() -> None:
    run = Run()
    run.stats.reused_tokens = 2
    run.steps = [
        lambda: run.computed(4), lambda: None, lambda: run.computed(3), lambda: run.computed(1),
        lambda: run.piece("a"), run.end,
    ]  # fmt: skip
    made = progress(run)
    # Its beginning is told together with the first step.
    assert [(each.computed, each.seconds, left) for each, left in made] == [
        (0, 0.0, 5), (4, 0.5, 5), (7, 1.0, 3), (8, 1.5, 2),
    ]  # fmt: skip
    assert {(each.total, each.cached) for each, _ in made} == {(10, 2)}


def test_the_last_progress_may_come_with_the_first_token_or_the_end() -> None:
    for last in ("token", "end"):
        run = Run()

        def step(run: Run = run, last: str = last) -> None:
            run.computed(10)
            run.piece("a") if last == "token" else run.end()

        run.steps = [step, run.end]
        assert [each.computed for each, _ in progress(run)] == [0, 10]
    run = Run(done=True)
    assert [each.computed for each, _ in progress(run)] == [0]


@pytest.mark.parametrize("taken", [1, 2, 9])
def test_pieces_are_passed_on_until_they_cannot_be_taken(taken: int) -> None:
    run, passed = Run(), list[list[Piece]]()
    run.steps = [
        lambda: run.piece("a"), lambda: None, partial(run.piece, "b", "c"),
        lambda: run.piece("d"), run.end,
    ]  # fmt: skip
    reader = run.reader

    def take(pieces: list[Piece]) -> bool:
        passed.append(pieces)
        return len(passed) < taken

    asyncio.run(reader.pass_on(take))
    wanted = [[("a", 1)], [("b", 2), ("c", 3)], [("d", 4)]]
    assert passed == wanted[:taken]
    assert run.completion.done == (taken > 3)  # else it returns while the text is made
    rest = []
    while some := asyncio.run(reader.next_pieces()):
        rest += some
    assert rest == [piece for pieces in wanted[taken:] for piece in pieces]


def test_an_error_of_who_takes_pieces_is_raised_and_the_text_goes_on() -> None:
    run = Run()
    run.steps = [lambda: run.piece("a"), lambda: run.piece("b"), run.end]

    def take(pieces: list[Piece]) -> bool:
        raise OSError("gone")

    reader = run.reader
    with pytest.raises(OSError, match="gone"):
        asyncio.run(reader.pass_on(take))
    assert [reader.next_piece(), reader.next_piece()] == ["b", None]


def test_the_prompt_is_awaited_until_the_first_token_or_the_end() -> None:
    for first in ("token", "end"):
        run = Run()
        given = run.end if first == "end" else partial(run.piece, "a")
        run.steps = [partial(run.computed, 10), given, lambda: None]
        asyncio.run(run.reader.wait_for_prompt())
        assert len(run.steps) == 1


@pytest.mark.parametrize("n", [SHOWN - 1, SHOWN, SHOWN + 1])
def test_so_much_of_a_text_is_shown(n: int) -> None:
    run = Run(pieces=["x" * n], tokens=[1, 2], done=True)
    shown = "x" * n if n <= SHOWN else f"{'x' * (SHOWN - 1)}…"
    assert (
        repr(Generation(run, run.completion))
        == f"<Generation: {shown!r}, 2 tokens, length, seed 3>"
    )


def test_just_what_a_timeout_may_be() -> None:
    for sound in (None, 0, 0.0, 1.5, 10):
        assert checked_timeout(sound) == sound
