"""A plugin of pytest for tools/mutate_python.py: the tests that are wanted, in their order, within their time.

``ALEATOR_MUTATED`` is a file of JSON: "tests" (FILE::NAME), "most" seconds of the processor for all of them,
"longest" for one, and "began", the file that gets the name of each test that begins.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from pathlib import Path

import pytest

MEMORY = 6 << 30
"""Bytes that the process may add: a change may ask for any number of them."""
LOAD_SECONDS = 120
"""Processor seconds for loading the tests."""
AT_ONCE = 4
"""So many parameters of a test run before the next test; the rest of them come later."""
WORK = json.loads(Path(os.environ["ALEATOR_MUTATED"]).read_text())


def used() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def limit(seconds: float) -> None:
    """End the process after so many more processor seconds."""
    own = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(own + seconds) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1])
    )


def pytest_configure() -> None:
    """Limit memory, and the time of loading."""
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, held + MEMORY))
    limit(LOAD_SECONDS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the wanted tests, in their order."""
    place = {name: i for i, name in enumerate(WORK["tests"])}
    rounds: Counter[str] = Counter()
    order = {}
    for item in items:
        name = "::".join(item.nodeid.partition("[")[0].split("::")[:2])
        if name in place:
            order[item] = (rounds[name] // AT_ONCE, place[name])
            rounds[name] += 1
    items[:] = sorted(order, key=order.__getitem__)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test begins, and limit it; end as if all had passed where the time is over.

    A test that has begun goes on to its end or its limit: one that hangs has noticed the change.
    """
    if used() >= WORK["most"]:
        os._exit(0)
    with Path(WORK["began"]).open("a") as file:
        print(nodeid, file=file)
    limit(WORK["longest"])
