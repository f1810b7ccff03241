from __future__ import annotations

from pathlib import Path

from server_equality import CHAINS, compare, report

from aleator.hub.bundled import bundled_model


def test_one_text_for_each_request(tmp_path: Path) -> None:
    """One seed of the bundled model in all ways; tools/server_equality.py has more seeds and models."""
    notes: list[str] = []
    found = compare(bundled_model(), 1, 16, tmp_path, notes.append)
    ways = {
        "repeated", "cached", "noisy", "noisy, cached", "cancels", "restored", "guessed", "guessed, cancels",
        "offline",
    }  # fmt: skip
    assert set(found) == set(CHAINS)
    for chain in found.values():
        assert chain == dict.fromkeys(ways, 0)
    assert len(notes) == len(ways)
    assert "| bundled | default | 0 |" in report({"bundled": found}, 1, 16)
