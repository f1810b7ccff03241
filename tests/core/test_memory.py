"""The memory that a process may have; what would take more is refused before it is taken."""

from __future__ import annotations

import pytest

import aleator
from aleator.core import memory


def test_the_limit_is_that_of_the_control_group_if_it_is_smaller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    whole = memory.memory_limit()
    assert whole is None or whole > 1 << 28
    group = tmp_path / "memory.max"  # type: ignore[operator]
    monkeypatch.setattr(memory, "_GROUPS", (str(group),))
    group.write_text("max\n")
    machine = memory.memory_limit()
    group.write_text("1048576\n")
    assert memory.memory_limit() == 1 << 20
    assert machine is None or machine > 1 << 20


def test_a_huge_context_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.cache.pools.cell_pool.memory_limit", lambda: 1 << 30)
    model = aleator.load(n_ctx=1_000_000, n_threads=1)
    with pytest.raises(aleator.AleatorError, match=r"n_ctx 1000000 needs .* there are 1,024 MiB"):
        model.generate("x", max_tokens=1)
