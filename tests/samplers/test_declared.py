"""Defaults, bounds and names are those on record; ``make docs`` records a change that is meant."""

from __future__ import annotations

import declared


def test_every_parameter_is_declared_as_recorded() -> None:
    assert list(declared.PARTS["samplers"]()) == declared.recorded("samplers")


def test_defaults_and_constants_are_as_recorded() -> None:
    part = "code of samplers"
    assert list(declared.PARTS[part]()) == declared.recorded(part)
