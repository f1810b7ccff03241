"""A fixture for tests that compare PyTorch's bits; also for files that run without conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """PyTorch's products have other bits for another number of tokens where it has several threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
