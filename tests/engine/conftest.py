from __future__ import annotations

from collections.abc import Iterator

import pytest

import aleator


@pytest.fixture
def engine(model: aleator.LanguageModel) -> Iterator[aleator.Engine]:
    with aleator.Engine(model, n_seq_max=3, n_ctx=3 * 512) as made:
        yield made
