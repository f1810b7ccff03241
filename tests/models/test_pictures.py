"""Models with pictures: what is refused of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models.architectures.pictures import refuse_pictures
from aleator.models.files.fields import Fields


@pytest.mark.parametrize(
    ("sections", "refused"),
    [(None, False), ([0, 0, 5, 0], False), ([3, 0, 0, 0], True), ([0, 3, 0, 0], True)],
)
def test_channels_of_rows_and_columns_are_refused(
    sections: list[int] | None, refused: bool
) -> None:
    key = "glm4.rope.dimension_sections"
    fields = Fields(Path("m.gguf"), {} if sections is None else {key: sections})
    if not refused:
        refuse_pictures(fields, "glm4")
        return
    with pytest.raises(UnsupportedModel, match=key):
        refuse_pictures(fields, "glm4")
