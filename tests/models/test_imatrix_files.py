"""Importance matrices: llama.cpp's files, old and new, and damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from aleator.core.errors import AleatorError, FileFormatError
from aleator.models.files.imatrix import read_imatrix, write_imatrix
from tests.models.builders import write_gguf

SUMS = {
    "blk.1.ffn_up_exps.weight": (np.arange(6.0).reshape(3, 2), np.array([2, 0, 4])),
    "blk.0.attn_q.weight": (np.array([[8.0, 2.0]]), np.array([4])),
}
MEANS = {"blk.0.attn_q.weight": [2, 0.5], "blk.1.ffn_up_exps.weight": [0, 0.5, 1, 1, 1, 1.25]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_imatrix(tmp_path / "i.gguf", SUMS, ["a.txt", "b.txt"], 7, 512)
    return tmp_path / "i.gguf"


def test_what_is_written_is_read(path: Path) -> None:
    found = read_imatrix(path)
    assert {name: means.tolist() for name, means in found.means.items()} == MEANS
    assert (found.datasets, found.chunks) == (("a.txt", "b.txt"), 7)


def test_the_form_is_llama_cpps(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["a.txt", "b.txt"]
    assert reader.fields["imatrix.chunk_size"].contents() == 512
    shapes = {t.name: t.shape.tolist() for t in reader.tensors}
    assert list(shapes.items()) == [
        ("blk.0.attn_q.weight.in_sum2", [2]),
        ("blk.0.attn_q.weight.counts", [1]),
        ("blk.1.ffn_up_exps.weight.in_sum2", [2, 3]),
        ("blk.1.ffn_up_exps.weight.counts", [1, 3]),
    ]


def old(
    name: bytes = b"blk.0.attn_q.weight", calls: int = 4, values: tuple[float, ...] = (8.0, 2.0)
) -> bytes:
    entry = struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values))
    return struct.pack("<i", 1) + entry + struct.pack(f"<{len(values)}f", *values)


def test_old_files(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(old())
    assert read_imatrix(path).means["blk.0.attn_q.weight"].tolist() == [2, 0.5]
    path.write_bytes(old() + struct.pack("<ii", 9, 5) + b"a.txt")
    assert (read_imatrix(path).datasets, read_imatrix(path).chunks) == (("a.txt",), 9)


def test_what_old_files_may_leave_out(tmp_path: Path) -> None:
    """No calls count as one; a name may be empty; numbers of chunks below 0 are none."""
    path = tmp_path / "i.dat"
    path.write_bytes(old(name=b"", calls=0))
    assert read_imatrix(path).means[""].tolist() == [8, 2]
    assert (read_imatrix(path).datasets, read_imatrix(path).chunks) == ((), 0)
    path.write_bytes(old(calls=1) + struct.pack("<ii", -3, 0))
    assert read_imatrix(path).means["blk.0.attn_q.weight"].tolist() == [8, 2]
    assert (read_imatrix(path).datasets, read_imatrix(path).chunks) == (("",), 0)
    path.write_bytes(old(values=()))
    assert read_imatrix(path).means["blk.0.attn_q.weight"].size == 0


@pytest.mark.parametrize("key", ["chunk_count", "chunk_size"])
@pytest.mark.parametrize(
    ("value", "fits"), [(0, True), (1 << 31, True), (-1, False), (2**32 - 1, False)]
)
def test_bounds_of_chunks(key: str, value: int, fits: bool, tmp_path: Path) -> None:
    path, numbers = tmp_path / "i.gguf", {"chunk_count": 7, "chunk_size": 512, key: value}
    write_imatrix(path, SUMS, [], numbers["chunk_count"], numbers["chunk_size"])
    if fits:
        assert read_imatrix(path).chunks == numbers["chunk_count"]
        return
    with pytest.raises(FileFormatError, match=f"{key} is {value}; it must be between 0 and"):
        read_imatrix(path)


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        (np.array([[8.0, -2.0]]), "negative or not finite"),
        (np.array([[np.inf, 0.0]]), "not finite"),
    ],
)
def test_means_that_are_none(sums: np.ndarray, message: str, path: Path) -> None:
    write_imatrix(path, {"a.weight": (sums, np.array([4]))}, [], 1, 1)
    with pytest.raises(FileFormatError, match=message):
        read_imatrix(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<i", 0), "has no entries"),
        (b"\xff\xff\xff\x7f", "cut short or damaged"),
        (old()[:-1], "cut short or damaged"),
        (struct.pack("<ii", 1, -5), "cut short or damaged"),
        (old(values=(1.0, -2.0)), "negative or not finite"),
        (old(values=(1.0, float("nan"))), "negative or not finite"),
        (old() + b"\0", "cut short or damaged"),
        (b"PK\x03\x04", "cut short or damaged"),
    ],
)
def test_damaged_old_files(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=message):
        read_imatrix(path)


def test_damaged_files(path: Path) -> None:
    data = path.read_bytes()
    for end in range(4, len(data) - 32, 37):
        path.write_bytes(data[:end])
        with pytest.raises(AleatorError):
            read_imatrix(path)
    for name in (b"counts", b"in_sum2", b"imatrix.chunk_count", b"imatrix.datasets"):
        path.write_bytes(data.replace(name, b"x" * len(name)))
        with pytest.raises(AleatorError):
            read_imatrix(path)


def test_a_model_is_none(tmp_path: Path) -> None:
    from aleator.models.hub.bundled import bundled_model

    with pytest.raises(FileFormatError, match="is a model, no importance matrix"):
        read_imatrix(bundled_model())


@pytest.mark.parametrize("counts", [np.ones((2, 1), np.float32), np.ones((1, 1), np.float16)])
def test_sums_have_counts_of_their_own(counts: np.ndarray, tmp_path: Path) -> None:
    about: dict[str, Any] = {"general.type": "imatrix", "imatrix.datasets": ["a"]}
    about |= {"imatrix.chunk_count": 1, "imatrix.chunk_size": 1}
    sums = {"a.weight.in_sum2": np.ones((1, 3), np.float32), "a.weight.counts": counts}
    path = write_gguf(tmp_path / "i.gguf", about, sums)
    with pytest.raises(FileFormatError, match=r"do not belong together.*a\.weight"):
        read_imatrix(path)
