"""Memory in large pages."""

from __future__ import annotations

import errno
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.models.files.mapping import LARGE_PAGE, lock, zeros_in_large_pages


@pytest.mark.parametrize("size", [0, 1, LARGE_PAGE - 1, LARGE_PAGE, LARGE_PAGE + 1, 3 * LARGE_PAGE])
def test_zeros_may_be_written(size: int) -> None:
    made = zeros_in_large_pages(size)
    assert made.shape == (size,)
    assert not made.any()
    made[:] = 7
    assert (made == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked")
def test_they_begin_where_a_large_page_does() -> None:
    made = [zeros_in_large_pages(LARGE_PAGE + i) for i in range(4)]
    assert [each.ctypes.data % LARGE_PAGE for each in made] == [0] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may lack mlock")
def test_why_memory_is_not_locked() -> None:
    nowhere: Any = SimpleNamespace(ctypes=SimpleNamespace(data=1 << 45), nbytes=4096)
    assert lock(nowhere) == f"{os.strerror(errno.ENOMEM)}: raise the limit, ulimit -l"
