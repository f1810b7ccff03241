"""Models that are split into several GGUF files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from aleator.core.errors import FileFormatError, ModelNotFound
from aleator.models.weights import open_weights
from tests.models.builders import model_metadata, model_tensors, write_gguf

COUNT = 3


def write_parts(
    folder: Path, tensors: dict[str, NDArray[np.float32]] | None = None, **changes: int
) -> list[Path]:
    """The small llama in three files; ``changes`` to the fields of the second."""
    named = list((model_tensors() if tensors is None else tensors).items())
    paths = []
    for part in range(COUNT):
        fields = {"no": part, "count": COUNT, "tensors": len(named)}
        if part == 1:
            fields |= changes
        path = folder / f"m-Q8_0-{part + 1:05}-of-{COUNT:05}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if part == 0:
            for key, value in model_metadata().items():
                (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
        writer.add_uint16("split.no", fields["no"])
        writer.add_uint16("split.count", fields["count"])
        writer.add_int32("split.tensors.count", fields["tensors"])
        for name, values in named[part::COUNT]:
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def test_all_tensors_are_there(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    weights = open_weights(paths[0])
    whole = open_weights(write_gguf(tmp_path / "whole.gguf"))
    assert weights.gguf is not None
    assert [part.path for part in weights.gguf.parts] == paths
    assert sorted(weights.names()) == sorted(whole.names())
    assert (weights.n_parameters, weights.size_bytes) == (whole.n_parameters, whole.size_bytes)
    for name in whole.names():
        np.testing.assert_array_equal(weights.floats(name), whole.floats(name))


def test_the_fingerprint_is_of_all_parts(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    before = open_weights(paths[0]).identity().fingerprint
    changed = {name: values + 1 for name, values in model_tensors().items()}
    write_parts(tmp_path / "..", changed)[2].replace(paths[2])
    assert open_weights(paths[0]).identity().fingerprint != before


def renamed(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("model.gguf"))


def twice(paths: list[Path]) -> Path:
    paths[1].write_bytes(paths[0].read_bytes())
    return paths[0]


@pytest.mark.parametrize(
    ("opened", "message"),
    [
        (lambda paths: paths[1], "this is part 2 of 3: give the first, m-Q8_0-00001-of-00003.gguf"),
        (renamed, "split into 3 files, whose names must end in"),
        (twice, "part 1 of 3, its name that it is part 2 of 3"),
    ],
)
def test_what_is_not_the_first_part_is_refused(
    tmp_path: Path, opened: Callable[[list[Path]], Path], message: str
) -> None:
    path = opened(write_parts(tmp_path))
    with pytest.raises(FileFormatError, match=message):
        open_weights(path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    paths[2].unlink()
    with pytest.raises(ModelNotFound, match=r"m-Q8_0-00003-of-00003\.gguf: no such file"):
        open_weights(paths[0])


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    other = write_parts(
        tmp_path / "..", {"a.weight": np.ones((4, 32), np.float32)} | model_tensors()
    )
    other[1].replace(paths[1])
    with pytest.raises(FileFormatError, match=r"is in m-Q8_0-00001|has 20 tensors, its 3 files"):
        open_weights(paths[0])


def test_tensors_are_counted(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    other = write_parts(tmp_path / "..", dict(list(model_tensors().items())[:4]))
    other[2].replace(paths[2])
    with pytest.raises(FileFormatError, match=r"is in|tensors, its 3 files"):
        open_weights(paths[0])


def alone(folder: Path, **fields: int) -> Path:
    """A file that says of itself which part it is."""
    numbers = {f"split.{key.replace('_', '.')}": value for key, value in fields.items()}
    return write_gguf(folder / "m-00001-of-00003.gguf", model_metadata() | numbers)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"count": 1}, ""), ({"count": 0}, ""), ({"count": 99_999}, "must end in -00001-of-99999"),
        ({"count": 100_000}, "split.count is 100000; it must be between 0 and 99999"),
        ({"count": 3}, "'split.no' is missing"), ({"count": 3, "no": 2}, "this is part 3 of 3"),
        ({"count": 3, "no": 3}, "split.no is 3; it must be between 0 and 2"),
        ({"count": 3, "no": -1}, "split.no is -1; it must be between 0 and 2"),
        ({"count": 2, "no": 0}, "00001-of-00002"),
    ],
)  # fmt: skip
def test_numbers_of_parts(fields: dict[str, int], said: str, tmp_path: Path) -> None:
    path = alone(tmp_path, **fields)
    if not said:
        assert len(open_weights(path).names()) == len(model_tensors())
        return
    with pytest.raises(FileFormatError, match=said):
        open_weights(path)


@pytest.mark.parametrize(
    ("total", "said"),
    [(1 << 31, "the model has 2147483648 tensors, its 3 files 20"), ((1 << 31) + 1, "it must be between 0 and"),
     (-1, "it must be between 0 and"), (0, "the model has 0 tensors")],
)  # fmt: skip
def test_numbers_of_tensors(total: int, said: str, tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    data = paths[0].read_bytes()
    key = b"split.tensors.count"
    at = data.index(key) + len(key)
    kind = struct.pack("<I", 5 if total < 0 else 4)
    value = struct.pack("<i" if total < 0 else "<I", total)
    paths[0].write_bytes(data[:at] + kind + value + data[at + 8 :])
    with pytest.raises(FileFormatError, match=said):
        open_weights(paths[0])
