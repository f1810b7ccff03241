"""Packages have the names that they offer, whose modules are imported when one is first used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

NAMES = (Path(__file__).parents[1] / "data" / "public_names.txt").read_text().replace("\n    ", " ")


@pytest.mark.parametrize("line", NAMES.splitlines())
def test_packages_have_the_names_that_they_offer(line: str) -> None:
    module, names = line.split(":")
    try:
        found = import_module(module)
        for name in names.split():
            assert getattr(found, name, None) is not None
    except ImportError as error:
        if (error.name or "").startswith("aleator"):
            raise
        pytest.skip(str(error))
