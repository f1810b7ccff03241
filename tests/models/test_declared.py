"""Fields of models' files, their ranges and defaults are those on record; ``make docs`` records one that is meant."""

from __future__ import annotations

import declared
import declared_models


def test_every_field_is_read_as_recorded() -> None:
    recorded = declared_models.FILE.read_text().splitlines()
    assert list(declared_models.models()) == recorded


def test_defaults_and_constants_are_as_recorded() -> None:
    part = "code of models"
    assert list(declared.PARTS[part]()) == declared.recorded(part)
