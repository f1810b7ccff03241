"""Defaults and constants are those on record; ``make docs`` records a change that is meant."""

from __future__ import annotations

import declared


def test_defaults_and_constants_are_as_recorded() -> None:
    part = "code of text"
    assert list(declared.PARTS[part]()) == declared.recorded(part)
