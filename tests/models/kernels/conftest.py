"""What tests of captured steps share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.models.kernels.recorded_graph import RecordedGraph


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """The graphs that steps are recorded in."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("runs in a process of its own")
    from aleator.models.triton_step import Graphs
    from tests.models.kernels.recorded_graph import RecordedGraph

    made: list[RecordedGraph] = []

    def new(_: Graphs) -> RecordedGraph:
        made.append(RecordedGraph())
        return made[-1]

    monkeypatch.setattr(Graphs, "new", new)
    return made
