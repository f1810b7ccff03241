"""What tests of kernels share: memory that is watched, programs as small as on a device, captured steps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.models.kernels.recorded_graph import RecordedGraph

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ANYWHERE = ("test_packed", "test_runs", "test_seen")
"""What needs no Triton."""


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """Kernels are compiled in one process, and interpreted in another: tests/test_kernels.py."""
    name = collector.path.stem
    if not isinstance(collector, pytest.Module) or name in ANYWHERE:
        return None
    if name.endswith("_compiled") != INTERPRETED:
        return None
    why = (str(collector.path), 0, "Skipped: runs in a process of its own")
    return pytest.CollectReport(collector.nodeid, "skipped", why, [])


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel touches what is not its own; NumPy says nothing of special values and of what is masked out."""
    if INTERPRETED:
        from tests.models.kernels.watched import watch

        watch(monkeypatch)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are as small as on a device."""
    from aleator.models.kernels import floats

    monkeypatch.setattr(floats, "INTERPRETED", False)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """The graphs that steps are recorded in."""
    if not INTERPRETED:
        pytest.skip("runs in a process of its own")
    import torch

    from aleator.models.kernels.norms import gelu_table
    from aleator.models.triton.decoder import Graphs
    from tests.models.kernels.recorded_graph import RecordedGraph

    made: list[RecordedGraph] = []
    # On a device a step runs once before its capture, which makes the table.
    gelu_table(torch.device("cpu"))

    def new(_: Graphs) -> RecordedGraph:
        made.append(RecordedGraph())
        return made[-1]

    monkeypatch.setattr(Graphs, "new", new)
    return made
