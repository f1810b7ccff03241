"""What tests of kernels watch: programs of one launch that depend on each other are found."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _moved(x, from_, to, step, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each of some programs moves N numbers; places of the next one are ``step`` further."""
    at = x + tl.program_id(0) * step + tl.arange(0, N)
    tl.store(at + to, tl.load(at + from_))


def moved(from_: int, to: int, step: int) -> None:
    """Two programs move 4 of 16 numbers each."""
    _moved[(2,)](torch.zeros(16), from_, to, step, N=4)


def test_programs_with_memory_of_their_own() -> None:
    moved(0, 8, 4)
    moved(4, 4, 4)


def test_what_another_program_has_written_is_not_read() -> None:
    with pytest.raises(Exception, match="another program writes there"):
        moved(0, 4, 4)


def test_what_another_program_reads_is_not_written() -> None:
    """It may run first on a device, though not here."""
    with pytest.raises(Exception, match="another program reads there"):
        moved(4, 0, 4)


def test_nothing_is_written_twice() -> None:
    with pytest.raises(Exception, match="another program writes there"):
        moved(0, 8, 0)


def test_nothing_outside_of_tensors_is_touched() -> None:
    with pytest.raises(Exception, match="outside of the tensors"):
        moved(0, 12, 4)
