"""Defaults, bounds and names are those on record; ``make docs`` records a change that is meant."""

from __future__ import annotations

import declared
import pytest


def test_every_option_is_declared_as_recorded() -> None:
    assert list(declared.PARTS["cache"]()) == declared.recorded("cache")


def test_defaults_and_constants_are_as_recorded() -> None:
    pytest.importorskip("torch")
    part = "code of cache"
    assert list(declared.PARTS[part]()) == declared.recorded(part)
