"""Files that are written: what other readers find in them, and that a file appears whole or not at all."""

from __future__ import annotations

import io
import os
import shutil
import signal
import stat
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from aleator.core.errors import ParameterError
from aleator.models.files import gguf_writer
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.gguf_writer import NewTensor, field, target, whole_file, write_gguf

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = (
    gguf.GGUFValueType(number) for number in (4, 5, 6, 7, 8, 9)
)
VALUES: dict[str, tuple[Any, list[gguf.GGUFValueType]]] = {
    "zero": (0, [UINT32]),
    "large": (2**32 - 1, [UINT32]),
    "negative": (-1, [INT32]),
    "least": (-(2**31), [INT32]),
    "whole float": (-2.0, [FLOAT32]),
    "float": (0.5, [FLOAT32]),
    "yes": (True, [BOOL]),
    "no": (False, [BOOL]),
    "text": ("naïve", [STRING]),
    "integers": ([1, -2, 0], [ARRAY, INT32]),
    "floats": ((0.5, -1.0), [ARRAY, FLOAT32]),
    "booleans": ((True, False), [ARRAY, BOOL]),
    "texts": (["a", "", "bc"], [ARRAY, STRING]),
}


def written(path: Path, alignment: int = 32) -> dict[str, np.ndarray[Any, Any]]:
    """Write all values, and tensors whose sizes are no multiples of the alignment; give the tensors."""
    fields = [field(key, value) for key, (value, _) in VALUES.items()]
    fields.append(field("general.architecture", "llama"))
    if alignment != 32:
        fields.append(field("general.alignment", alignment))
    shapes = {"a": (3,), "b": (2, 5), "c": (1, 2, 3)}
    numbers = {n: np.arange(np.prod(s), dtype=np.float32).reshape(s) for n, s in shapes.items()}
    tensors = [NewTensor(name, "F32", shape) for name, shape in shapes.items()]
    size = write_gguf(path, fields, tensors, lambda each: [numbers[each.name]], alignment)
    assert size == path.stat().st_size
    return numbers


@pytest.mark.parametrize("alignment", [32, 64, 8])
def test_other_readers_find_every_value_and_tensor(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    numbers = written(path, alignment)
    theirs = gguf.GGUFReader(path)
    for key, (value, kinds) in VALUES.items():
        assert theirs.fields[key].contents() == (list(value) if kinds[0] == ARRAY else value), key
        assert theirs.fields[key].types == kinds, key
    assert [each.name for each in theirs.tensors] == list(numbers)
    ours = GGUFFile(path)
    assert ours.alignment == alignment
    for each in theirs.tensors:
        assert each.data_offset % alignment == 0
        assert np.array_equal(each.data.reshape(numbers[each.name].shape), numbers[each.name])
        assert np.array_equal(ours.stored(each.name).floats(), numbers[each.name])


def test_an_empty_list_is_one_of_texts(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", [field("none", [])], [], lambda _: [])
    assert GGUFFile(tmp_path / "m.gguf").metadata.array("none") is not None
    assert GGUFFile(tmp_path / "m.gguf").metadata["none"] == []


@pytest.mark.parametrize("value", [2**32, -(2**31) - 1, [2**31]])
def test_numbers_have_32_bits(value: Any) -> None:
    with pytest.raises(struct.error):
        field("n", value)


def test_bytes_of_tensors() -> None:
    assert NewTensor("t", "Q4_K", (3, 512)).nbytes == 3 * 2 * 144
    assert NewTensor("t", "F16", (7,)).nbytes == 14


def test_a_file_has_the_permissions_of_others_that_are_made(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    written(tmp_path / "m.gguf")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "m.gguf")}
    assert len(modes) == 1


@pytest.mark.parametrize("nameless", [True, False])
def test_a_file_appears_whole_or_not_at_all(
    nameless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "m"
    path.write_bytes(b"before")

    def broken() -> None:
        with whole_file(path, 4) as file:
            file.write(b"af")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert path.read_bytes() == b"before"
    with whole_file(path, 4) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="POSIX: limits of files")
def test_a_write_that_fails_names_the_file(tmp_path: Path) -> None:
    resource: Any = pytest.importorskip("resource")
    path, limit = tmp_path / "m", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as found, whole_file(path, 200) as file:
            file.write(bytes(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert found.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


class Counted(io.FileIO):
    """Remembers how many bytes each write brought."""

    sizes: list[int]

    def write(self, data: Any, /) -> int:
        self.sizes.append(memoryview(data).nbytes)
        return super().write(data)


@pytest.mark.parametrize("nameless", [True, False])
def test_files_are_written_in_large_pages(
    nameless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    sizes: list[int] = []
    monkeypatch.setattr(Counted, "sizes", sizes, raising=False)

    def opened(file: Any, mode: str, buffering: int = -1) -> io.BufferedWriter:
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        return io.BufferedWriter(Counted(file, mode.replace("b", "")), size)

    monkeypatch.setattr(gguf_writer, "open", opened, raising=False)
    rows = np.arange(3 * 500_000, dtype=np.float32).reshape(2, 3, 250_000)
    path = tmp_path / "m.gguf"
    tensor = NewTensor("a", "F32", (6, 250_000))
    size = write_gguf(path, [field("general.architecture", "llama")], [tensor], lambda _: rows)
    assert sizes == [2 << 20] * (size >> 21) + [size % (2 << 20)]
    assert (gguf.GGUFReader(path).tensors[0].data.reshape(rows.shape) == rows).all()


def test_it_must_fit_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    with whole_file(tmp_path / "m", 5) as file:
        file.write(b"fits!")
    with (
        pytest.raises(ParameterError, match="will have 6 bytes, and 5 are free"),
        whole_file(tmp_path / "n", 6),
    ):
        pass


def test_where_a_file_may_be_written(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.touch()
    assert target(other, [file, tmp_path / "missing"]) == other
    assert target(file, [other]) == file
    with pytest.raises(ParameterError, match="is no file"):
        target(tmp_path, [])
    with pytest.raises(ParameterError, match="is the file that is read"):
        target(file, [other, file])
    with pytest.raises(FileNotFoundError, match="make it"):
        target(tmp_path / "missing" / "m")


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(PermissionError, match=tmp_path.name):
        target(tmp_path / "m")
