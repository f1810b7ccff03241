"""Fields of models' files, their ranges and defaults are on record; ``make docs`` records a change."""

from __future__ import annotations

import declared
import declared_models

RECORDED = declared_models.FILE.read_text().splitlines()


def test_every_field_is_read_as_recorded() -> None:
    facts = [line for line in RECORDED if line.startswith(("GGUF: ", "config.json: "))]
    assert list(declared_models.models()) == facts


def test_tensors_get_the_recorded_types_when_a_model_is_quantised() -> None:
    types = [line for line in RECORDED if not line.startswith(("GGUF: ", "config.json: "))]
    assert list(declared_models.quantised()) == types


def test_defaults_and_constants_are_as_recorded() -> None:
    part = "code of models"
    assert list(declared.PARTS[part]()) == declared.recorded(part)
