from __future__ import annotations

from server_connections import run


def test_a_server_with_all_the_connections_that_it_takes() -> None:
    """A few hundred; tools/server_connections.py opens 10,000."""
    figures, wrong = run(300)
    assert wrong == []
    assert figures["connections"] == 300
