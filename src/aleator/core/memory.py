"""The memory that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int | None:
    """Bytes of memory: the machine's, or the control group's limit if smaller; None if unknown."""
    found = []
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in _GROUPS:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            found.append(int(text))
    return min((each for each in found if each > 0), default=None)
