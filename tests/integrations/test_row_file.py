"""Files of results that are gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from aleator.core.errors import FileFormatError, ParameterError
from aleator.integrations.row_file import RowFile


def test_a_row_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with RowFile(path, "id") as file:
        assert file.append({"id": 1, "text": "a"})
        assert not file.append({"id": 1, "text": "a"})
    with RowFile(path, "id") as file:
        assert file.done == {"1"}
        assert not file.append({"id": "1", "text": "a"})
        assert file.append({"id": "2", "text": "é"})
    assert path.read_text() == '{"id": 1, "text": "a"}\n{"id": "2", "text": "\\u00e9"}\n'


def test_a_torn_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b", "te')
    with RowFile(path, "id") as file:
        assert file.done == {"a"}
        file.append({"id": "b"})
    assert path.read_text() == '{"id": "a"}\n{"id": "b"}\n'


@pytest.mark.parametrize("line", ["nothing\n", "[]\n", '{"name": "a"}\n', "3\n"])
def test_other_files_are_refused_and_stay(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a"}\n' + line)
    with pytest.raises(FileFormatError, match="line 2 is not a result"):
        RowFile(path, "id")
    assert path.read_text() == '{"id": "a"}\n' + line


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with RowFile(tmp_path / "rows", "id"), pytest.raises(ParameterError, match="in use"):
        RowFile(tmp_path / "rows", "id")
