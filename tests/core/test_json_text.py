"""JSON is read within a bound of levels, whatever its brackets are within."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aleator.core.json_text import MOST_LEVELS, NestingError, check_levels, loads


def nested(levels: int) -> Any:
    """Lists and objects in turn, each beside others that end."""
    made: Any = {}
    for i in range(levels - 1):
        made = [[], made, {}] if i % 2 else {"a": [], '"}]\\': made, "[{[": "{["}
    return made


@pytest.mark.parametrize("levels", [1, 64, 65, MOST_LEVELS - 1, MOST_LEVELS])
def test_levels_within_the_bound(levels: int) -> None:
    text = json.dumps([*[[] for _ in range(MOST_LEVELS)], "]}]}"])
    assert loads(text) == json.loads(text)
    assert loads(json.dumps(nested(levels))) == nested(levels)


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 2 * MOST_LEVELS, 3000])
def test_the_outermost_name_is_in_the_error(levels: int) -> None:
    lists = "[" * (levels - 1) + "]" * (levels - 1)
    with pytest.raises(NestingError, match="'b' is nested more than 128 levels deep: give fewer"):
        loads(f'{{"a": [{{}}], "b": {lists}, "c": 1}}')
    with pytest.raises(NestingError, match=r"^JSON is nested"):
        check_levels(json.dumps([nested(MOST_LEVELS)]))


@pytest.mark.parametrize("text", ["[" * 100, "[]" * 100 + '"', "]" * 50 + "[" * 150, '["' * 140])
def test_what_does_not_end_is_no_json(text: str) -> None:
    check_levels(text[:MOST_LEVELS])
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated|levels"):
        loads(text)
