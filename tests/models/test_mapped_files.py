"""Files of weights that are written to after they were mapped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aleator.models.files.mapped_files import MappedFiles


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ("a.gguf", ["a.gguf"]),
        ("a-00001-of-00003.gguf", [f"a-0000{n}-of-00003.gguf" for n in (1, 2, 3)]),
        (".", ["x.safetensors", "y.safetensors"]),
    ],
)
def test_each_file_is_watched(given: str, files: list[str], tmp_path: Path) -> None:
    for name in (*files, "config.json"):
        (tmp_path / name).write_bytes(b"1234")
        os.utime(tmp_path / name, (1, 1))
    mapped = MappedFiles(tmp_path / given)
    (tmp_path / "config.json").write_bytes(b"")  # it is read, not mapped
    for name in files:
        assert not mapped.changed()
        (tmp_path / name).write_bytes(b"123")
        assert mapped.changed()
        mapped = MappedFiles(tmp_path / given)
        (tmp_path / "new").write_bytes(b"5678")
        (tmp_path / "new").replace(tmp_path / name)
        assert not mapped.changed()
        (tmp_path / name).unlink()
        assert not mapped.changed()
        (tmp_path / name).write_bytes(b"1234")
        mapped = MappedFiles(tmp_path / given)
