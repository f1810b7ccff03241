"""Defaults, bounds and names are those on record; ``make docs`` records a change that is meant."""

from __future__ import annotations

import declared

from aleator.samplers.index import SAMPLERS


def test_every_parameter_is_declared_as_recorded() -> None:
    assert list(declared.PARTS["samplers"]()) == declared.recorded("samplers")


def test_defaults_and_constants_are_as_recorded() -> None:
    part = "code of samplers"
    assert list(declared.PARTS[part]()) == declared.recorded(part)


def test_neutral_values_are_what_their_checks_give() -> None:
    """So samplers need not check them."""
    for parameter in [each for cls in SAMPLERS for each in cls.parameters()]:
        made, neutral = parameter.check(parameter.neutral), parameter.neutral
        assert (type(made), made) == (type(neutral), neutral), parameter.name
