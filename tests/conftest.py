from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aleator import LanguageModel


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    """The bundled model, on one thread."""
    import aleator

    return aleator.load(n_threads=1)
