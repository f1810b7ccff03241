from __future__ import annotations

from server_soak import run


def test_a_server_at_its_limit_stays_whole() -> None:
    """A short one; tools/server_soak.py takes as long as it is told."""
    soak, told = run(4.0, 8, 3)
    assert soak.wrong == []
    assert sum(soak.counts.values()) > 5
    assert len(told) == 3
