"""A plugin of pytest for tools/mutate_python.py: notes which test runs which line.

Runs under ``coverage run``, and writes to the file that ALEATOR_LINES names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SECONDS: dict[str, float] = {}


def _measuring() -> coverage.Coverage:
    current = coverage.Coverage.current()
    if current is None:
        raise pytest.UsageError("this plugin needs `coverage run`")
    return current


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count lines run by a test and its fixtures as the test's."""
    measuring = _measuring()
    measuring.switch_context(item.nodeid)
    result = yield
    measuring.switch_context("")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of a test."""
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    """Write tests, seconds and lines."""
    measuring = _measuring()
    measuring.stop()
    data = measuring.get_data()
    tests = list(SECONDS)
    index = {"": -1} | {test: i for i, test in enumerate(tests)}
    lines: dict[str, dict[int, list[int]]] = {}
    root = Path.cwd().resolve()
    for file in data.measured_files():
        name = Path(file).resolve().relative_to(root).as_posix()
        contexts = data.contexts_by_lineno(file)
        lines[name] = {
            line: sorted(index[each] for each in found if each in index)
            for line, found in contexts.items()
        }
    values = {"tests": tests, "seconds": [SECONDS[test] for test in tests], "lines": lines}
    Path(os.environ["ALEATOR_LINES"]).write_text(json.dumps(values))
