"""Chunks of prompts in a batch: which tokens, which of them want logits, and whose rows these are."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.generate.context import Batch
from aleator.generate.prompt_chunks import Chunk, add_chunks
from aleator.generate.request_state import RequestState
from aleator.generate.steering import Guidance
from tests.engine.fake_run import state

TOKENS = [17, 14, 12, 4, 14]  # "romeo"


def request(held: int = 0, guided: int | None = None, wants: bool = False) -> RequestState:
    """In sequence 2, with a second prompt of four tokens in sequence 3 of which ``guided`` are computed."""
    made = state()
    made.seq, made.tokens = 2, TOKENS[:held]
    if guided is not None:
        made.guidance = Guidance([1, 2, 3, 4], 2.0)
        made.guidance.seq, made.guidance.computed = 3, guided
    if wants:
        made.completion.want_prompt(0)
    return made


def added(chunks: list[Chunk], row: int = 7) -> tuple[list[Any], Any]:
    batch = Batch()
    ends = add_chunks(batch, chunks, row)
    told = zip(batch.tokens, batch.positions, batch.sequences, batch.logits, strict=True)
    return [(token, pos, seqs[0], wanted) for token, pos, seqs, wanted in told], ends


@pytest.mark.parametrize(
    ("given", "n", "positions", "wanted", "ends"),
    [
        ({}, 5, [0, 1, 2, 3, 4], [4], (-1, 7, range(0))),
        ({}, 4, [0, 1, 2, 3], [], (-1, -1, range(0))),
        ({"held": 4}, 1, [4], [4], (-1, 7, range(0))),
        ({"held": 2}, 2, [2, 3], [], (-1, -1, range(0))),
        ({"wants": True}, 5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], (-1, 11, range(7, 12))),
        ({"wants": True, "held": 1}, 3, [1, 2, 3], [1, 2, 3], (-1, -1, range(7, 10))),
    ],
)
def test_the_last_token_of_a_prompt_wants_logits(
    given: dict[str, Any], n: int, positions: list[int], wanted: list[int], ends: Any
) -> None:
    tokens, found = added([Chunk(request(**given), n)])
    assert tokens == [(TOKENS[pos], pos, 2, pos in wanted) for pos in positions]
    assert found == [ends]


@pytest.mark.parametrize(
    ("guided", "n", "second", "own", "ends"),
    [
        (0, 3, [0, 1, 2], [], (-1, -1)),
        (0, 4, [0, 1, 2, 3], [], (7, -1)),
        (0, 9, [0, 1, 2, 3], [0, 1, 2, 3, 4], (7, 8)),
        (2, 4, [2, 3], [0, 1], (7, -1)),
        (3, 6, [3], [0, 1, 2, 3, 4], (7, 8)),
        (4, 5, [], [0, 1, 2, 3, 4], (-1, 7)),
    ],
)
def test_a_second_prompt_comes_first(
    guided: int, n: int, second: list[int], own: list[int], ends: tuple[int, int]
) -> None:
    tokens, found = added([Chunk(request(guided=guided), n)])
    assert tokens == [
        *((pos + 1, pos, 3, pos == 3) for pos in second), *((TOKENS[pos], pos, 2, pos == 4) for pos in own),
    ]  # fmt: skip
    assert found == [(*ends, range(0))]


def test_rows_are_counted_over_all_chunks() -> None:
    chunks = [
        Chunk(request(), 5), Chunk(request(held=1), 2), Chunk(request(guided=0), 9),
        Chunk(request(held=2, wants=True), 3), Chunk(request(held=3), 2),
    ]  # fmt: skip
    _, ends = added(chunks, 0)
    assert ends == [
        (-1, 0, range(0)), (-1, -1, range(0)), (1, 2, range(0)), (-1, 5, range(3, 6)), (-1, 6, range(0)),
    ]  # fmt: skip
