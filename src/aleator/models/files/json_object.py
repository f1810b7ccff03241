"""Reads files that hold one JSON object: configurations, tokenizers, indexes of shards."""

from __future__ import annotations

import json
from pathlib import Path

from aleator.core.errors import FileFormatError
from aleator.models.files.fields import Fields
from aleator.models.files.mapping import map_file

_MAX_JSON = 1 << 26  # bytes; the index of a model with 10,000 tensors has one million


def read_json(path: Path) -> Fields:
    """Read the JSON object in a file.

    Returns:
        Its members, checked on access.

    Raises:
        ModelNotFound: there is no such file.
        FileFormatError: it is too long, is not JSON, or holds something else than an object.
    """
    data = map_file(path)
    if data.size > _MAX_JSON:
        raise FileFormatError(path, f"{data.size} bytes; at most {_MAX_JSON} are read as JSON")
    try:
        values = json.loads(bytes(data).decode())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise FileFormatError(path, f"holds a JSON {type(values).__name__} instead of an object")
    return Fields(path, values)
