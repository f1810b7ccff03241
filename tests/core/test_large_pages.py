"""Memory and files in large pages."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from aleator.core.large_pages import LARGE_PAGE, append_in_large_pages, zeros_in_large_pages


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


class Written(io.RawIOBase):
    """Remembers how many bytes each write brought."""

    def __init__(self, held: int) -> None:
        self.sizes: list[int] = []
        self._at = held

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.sizes.append(size)
        self._at += size
        return size


@pytest.mark.parametrize("held", [0, 1000])
def test_what_arrives_is_written_in_whole_large_pages(held: int) -> None:
    raw = Written(held)
    with io.BufferedWriter(raw, LARGE_PAGE) as out:
        for block in [bytes(70_001)] * 62 + [bytes(2 * LARGE_PAGE)]:
            append_in_large_pages(out, block)
        sizes = list(raw.sizes)
    assert sizes[0] == LARGE_PAGE - held
    assert len(sizes) > 3
    assert set(sizes[1:]) == {LARGE_PAGE}


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_piece_is_written_as_soon_as_it_is_complete(pieces: int) -> None:
    raw = Written(0)
    with io.BufferedWriter(raw, LARGE_PAGE) as out:
        append_in_large_pages(out, bytes(pieces * LARGE_PAGE))
        assert raw.sizes == [LARGE_PAGE] * pieces
        append_in_large_pages(out, bytes(LARGE_PAGE - 1))
        assert raw.sizes == [LARGE_PAGE] * pieces
        append_in_large_pages(out, b"x")
        assert raw.sizes == [LARGE_PAGE] * (pieces + 1)
