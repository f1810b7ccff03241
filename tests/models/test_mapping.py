"""Memory that is locked."""

from __future__ import annotations

import errno
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.models.files.mapping import lock


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may lack mlock")
def test_why_memory_is_not_locked() -> None:
    nowhere: Any = SimpleNamespace(ctypes=SimpleNamespace(data=1 << 45), nbytes=4096)
    assert lock(nowhere) == f"{os.strerror(errno.ENOMEM)}: raise the limit, ulimit -l"
