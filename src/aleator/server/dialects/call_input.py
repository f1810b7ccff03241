"""Arguments of calls as objects, for dialects that have no text of them."""

from __future__ import annotations

import json
from typing import Any

INVALID = "INVALID_JSON"
"""The one field of a call's input where the model wrote no JSON object; it holds what the model wrote."""


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object.

    Args:
        arguments: JSON text as the model wrote it, which may be wrong where no call was forced.
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}
