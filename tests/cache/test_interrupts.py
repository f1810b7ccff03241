"""Interrupts and failing allocations within every operation: the state is that before or that after.

Here at a few places of each; ``tools/interrupts.py`` tries all of them, and counts.
"""

from __future__ import annotations

import pytest
from cache_scenes import MODELS, OPERATIONS, Operation, difference
from interrupts import Kind, examine

CASES: list[tuple[str, Kind, int, int]] = [
    *((model, "line", 2, 1) for model in ("llama", "gemma3", "mamba", "jamba")),
    *((model, "line", 2, 3) for model in ("llama-streams", "llama-2024", "gemma3-ring")),
    *((model, "line", 1, 4) for model in ("qwen35moe", "granitehybrid", "lfm2", "deepseek2")),
    *(("jamba", kind, 2, 5) for kind in ("opcode", "call")),
    ("llama", "native", 2, 3),
]
"""Model, what counts as a place, places of an operation, and every how manyth operation."""


@pytest.mark.parametrize(("model", "kind", "most", "every"), CASES)
def test_the_state_is_that_before_or_that_after(
    model: str, kind: Kind, most: int, every: int
) -> None:
    tried = 0
    for name in list(OPERATIONS)[::every]:
        found = examine(model, OPERATIONS[name], kind, most, warm=True)
        assert not found.violations, f"{model}, {name}: {found.violations}"
        tried += found.tried
    assert tried > len(OPERATIONS) // every // 2


@pytest.mark.parametrize("kind", ["line", "opcode", "call"])
def test_two_changes_that_are_not_one_are_noticed(kind: Kind) -> None:
    apart = Operation(lambda s: [s.cache.seq_rm(0), s.cache.seq_rm(1)])
    found = examine("llama", apart, kind, 20)
    assert found.violations
    assert all(
        v.what == ["pool 0 head", "pool 0 owners", "pool 0 positions"] or v.what
        for v in found.violations
    )
    together = Operation(lambda s: s.cache.journal.run(lambda: apart.run(s)))
    assert not examine("llama", together, kind, 20).violations


@pytest.mark.parametrize("model", MODELS)
def test_scenes_are_always_the_same(model: str) -> None:
    for operation in (OPERATIONS["decode one"], OPERATIONS["decode, evicting"]):
        a, b = operation.scene(model), operation.scene(model)
        assert difference(a.state(), b.state()) == []
        probe = a.probe()
        assert probe == b.probe() == a.probe()
        assert difference(a.state(), b.state()) == []
        a.decode((1, 2), 0)
        assert difference(a.state(), b.state())
