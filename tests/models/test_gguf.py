from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from aleator.core.errors import AleatorError, FileFormatError, ModelNotFound, UnsupportedModel
from aleator.models.files.gguf import GGUFFile
from aleator.models.weights import open_weights
from tests.drawn import differences
from tests.models.builders import (
    array,
    entry,
    model_metadata,
    model_tensors,
    raw_gguf,
    string,
    tensor,
    write_gguf,
)

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"), reason="no large pages here"
)
def test_weights_are_mapped_in_large_pages_where_the_system_has_them(file: Path) -> None:
    write_gguf(file, model_metadata(), model_tensors())
    data = GGUFFile(file).data
    begins = f"{data.ctypes.data:08x}-"
    flags = ""
    for line in Path("/proc/self/smaps").read_text().split("\n"):
        if line.startswith(begins):
            assert line.endswith(str(file))
            flags = "next"
        elif flags == "next" and line.startswith("VmFlags:"):
            flags = line
    assert "hg" in flags.split()


def test_big_endian_processors_are_refused_in_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(file, model_metadata(), model_tensors())
    folder = file.parent / "folder"
    folder.mkdir()
    monkeypatch.setattr("sys.byteorder", "big")
    with pytest.raises(UnsupportedModel, match="big-endian") as refused:
        open_weights(file)
    assert "\n" not in str(refused.value)


def opened(path: Path, data: bytes) -> GGUFFile:
    path.write_bytes(data)
    return GGUFFile(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.gguf"


def test_every_value_type(file: Path) -> None:
    scalars: list[tuple[int, str, Any]] = [
        (0, "B", 200),
        (1, "b", -100),
        (2, "H", 60000),
        (3, "h", -30000),
        (4, "I", 4_000_000_000),
        (5, "i", -2_000_000_000),
        (6, "f", 0.5),
        (7, "?", True),
        (10, "Q", 2**63 + 1),
        (11, "q", -(2**62)),
        (12, "d", 0.1),
    ]
    entries = [entry(f"scalar.{k}", k, struct.pack("<" + c, v)) for k, c, v in scalars]
    entries += [
        entry(f"array.{k}", ARRAY, array(k, 2, struct.pack(f"<2{c}", v, 0))) for k, c, v in scalars
    ]
    entries += [
        entry("scalar.8", STRING, string("naïve")),
        entry("array.8", ARRAY, array(STRING, 2, string("") + string("日本"))),
        entry("empty", ARRAY, array(STRING, 0, b"")),
    ]
    metadata = opened(file, raw_gguf(entries)).metadata
    for kind, _, value in scalars:
        assert metadata[f"scalar.{kind}"] == value
        assert type(metadata[f"scalar.{kind}"]) is type(value)
        assert metadata[f"array.{kind}"] == [value, 0]
    assert metadata["scalar.8"] == "naïve"
    assert metadata["array.8"] == ["", "日本"]
    assert metadata["empty"] == []
    assert len(metadata) == len(entries)
    assert "empty" in metadata
    assert "absent" not in metadata


def test_reads_what_the_gguf_package_writes(file: Path) -> None:
    tensors = model_tensors()
    write_gguf(file, model_metadata() | {"words": ["a", "bc"]}, tensors, alignment=64)
    opened_file = GGUFFile(file)
    assert opened_file.version == 3
    assert opened_file.metadata["general.architecture"] == "llama"
    assert opened_file.metadata["words"] == ["a", "bc"]
    assert opened_file.alignment == 64
    assert list(opened_file.tensors) == list(tensors)
    for name, values in tensors.items():
        stored = opened_file.stored(name)
        assert stored.type == "F32"
        assert stored.shape == values.shape
        assert not stored.data.flags.writeable
        np.testing.assert_array_equal(stored.data.view("<f4").reshape(stored.shape), values)


def test_version_2(file: Path) -> None:
    assert opened(file, raw_gguf([entry("a", U32, b"\1\0\0\0")], version=2)).metadata["a"] == 1


def test_require_and_get_check_types(file: Path) -> None:
    opened_file = opened(file, raw_gguf([entry("n", U32, b"\5\0\0\0"), entry("flag", BOOL, b"\1")]))
    assert opened_file.require("n", int) == 5
    assert opened_file.require("n", float) == 5.0
    assert opened_file.get("n", 7) == 5
    assert opened_file.get("absent", 7) == 7
    assert opened_file.get("absent") is None
    for call in (
        lambda: opened_file.require("absent", int),
        lambda: opened_file.require("n", str),
        lambda: opened_file.require("flag", int),
        lambda: opened_file.get("n", "text"),
    ):
        with pytest.raises(FileFormatError) as caught:
            call()
        assert caught.value.field in ("absent", "n", "flag")


def test_strings_are_decoded_when_asked_for(file: Path) -> None:
    strings = string("good") + string(b"\xff\xfe") + string("after")
    opened_file = opened(file, raw_gguf([entry("tokens", ARRAY, array(STRING, 3, strings))]))
    assert opened_file.array_length("tokens") == 3
    assert opened_file.array_length("absent") is None
    with pytest.raises(FileFormatError, match=r"string 1 is not UTF-8.*'tokens'") as caught:
        opened_file.metadata["tokens"]
    assert caught.value.offset == file.read_bytes().index(string(b"\xff\xfe"))


HUGE = struct.pack("<Q", 2**64 - 1)
HOSTILE: dict[str, tuple[bytes, str, str]] = {  # name: bytes, field, part of the message
    "empty": (b"", "", "empty"),
    "magic only": (b"GGUF", "version", "cut short"),
    "no counts": (b"GGUF\3\0\0\0", "tensor_count", "cut short"),
    "text": (b"Once upon a time there was a model", "magic", "not a GGUF file"),
    "zip": (b"PK\x03\x04" + bytes(64), "magic", "PyTorch checkpoint"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "magic", "git lfs pull"),
    "version 0": (raw_gguf(version=0), "version", "GGUF version 0"),
    "version 1": (raw_gguf(version=1), "version", "GGUF version 1"),
    "version 4": (raw_gguf(version=4), "version", "GGUF version 4"),
    "too many entries": (raw_gguf(n_entries=2**63), "metadata_kv_count", "claims"),
    "too many tensors": (raw_gguf(n_tensors=2**64 - 1), "tensor_count", "claims"),
    "one entry too many": (
        raw_gguf([entry("a", U32, bytes(4))], n_entries=2) + bytes(64),
        "metadata key 1",
        "is empty",
    ),
    "key length": (raw_gguf([HUGE + bytes(64)], n_entries=1), "metadata key 0", "cut short"),
    "key not UTF-8": (raw_gguf([entry(b"\xff", U32, bytes(4))]), "metadata key 0", "UTF-8"),
    "key twice": (raw_gguf([entry("a", U32, bytes(4))] * 2), "a", "twice"),
    "value type": (raw_gguf([entry("a", 13, bytes(8))]), "a", "unknown value type 13"),
    "element type": (raw_gguf([entry("a", ARRAY, array(99, 1, bytes(8)))]), "a", "type 99"),
    "nested arrays": (
        raw_gguf([entry("a", ARRAY, array(ARRAY, 1, array(ARRAY, 1, bytes(64))))]),
        "a",
        "array of arrays",
    ),
    "array count": (raw_gguf([entry("a", ARRAY, array(0, 2**64 - 1, bytes(8)))]), "a", "claims"),
    "array overflow": (raw_gguf([entry("a", ARRAY, array(U64, 2**61 + 1, bytes(8)))]), "a", "claims"),
    "string length": (raw_gguf([entry("a", STRING, HUGE)]), "a", "past the end"),
    "string in array": (
        raw_gguf([entry("a", ARRAY, array(STRING, 2, string("x") + HUGE))]),
        "a",
        "string 1 of 2",
    ),
    "alignment 0": (raw_gguf([entry("general.alignment", U32, bytes(4))]), "general.alignment", "0"),
    "alignment 24": (
        raw_gguf([entry("general.alignment", U32, b"\x18\0\0\0")]),
        "general.alignment",
        "power of two",
    ),
    "alignment text": (
        raw_gguf([entry("general.alignment", STRING, string("32"))]),
        "general.alignment",
        "an integer",
    ),
    "tensor name": (raw_gguf(tensors=[HUGE + bytes(64)]), "tensor name 0", "cut short"),
    "no dimensions": (raw_gguf(tensors=[tensor("t", [], n_dims=0) + bytes(8)]), "t", "0 dimensions"),
    "5 dimensions": (raw_gguf(tensors=[tensor("t", [1] * 5)]), "t", "5 dimensions"),
    "many dimensions": (raw_gguf(tensors=[tensor("t", [1], n_dims=2**32 - 1)]), "t", "dimensions"),
    "dimension 0": (raw_gguf(tensors=[tensor("t", [0, 3])], data=bytes(64)), "t", "zero"),
    "product": (raw_gguf(tensors=[tensor("t", [2**32, 2**32 + 1])], data=bytes(64)), "t", "too large"),
    "blocks": (raw_gguf(tensors=[tensor("t", [31], kind=8)], data=bytes(64)), "t", "blocks of 32"),
    "unaligned": (raw_gguf(tensors=[tensor("t", [1], offset=4)], data=bytes(64)), "t", "multiple of"),
    "offset": (raw_gguf(tensors=[tensor("t", [1], offset=64)], data=bytes(64)), "t", "cut short"),
    "large offset": (
        raw_gguf(tensors=[tensor("t", [1], offset=2**64 - 32)], data=bytes(64)),
        "t",
        "cut short",
    ),
    "data missing": (raw_gguf(tensors=[tensor("t", [17])], data=bytes(64)), "t", "cut short"),
    "tensor twice": (
        raw_gguf(tensors=[tensor("t", [1]), tensor("t", [1], offset=32)], data=bytes(64)),
        "t",
        "twice",
    ),
    "array of unaligned tensors": (
        raw_gguf(
            [
                entry("a", ARRAY, array(U32, 3, bytes(12))),
                entry("b", ARRAY, array(STRING, 1, string("x"))),
            ],
            tensors=[tensor("t", [4]), tensor("uv", [4, 2], offset=40)],
            data=bytes(128),
        ),
        "uv",
        "multiple of 32",
    ),
    "blocks of a later tensor": (
        raw_gguf(tensors=[tensor("t", [4]), tensor("u", [48, 2, 2], 8, 32)], data=bytes(512)),
        "u",
        "blocks of 32",
    ),
    "dimensions of a later tensor": (
        raw_gguf(tensors=[tensor("t", [4]), tensor("u", [4, 0], offset=32)], data=bytes(64)),
        "u",
        "zero",
    ),
    "overlap": (
        raw_gguf(tensors=[tensor("t", [9]), tensor("u", [1], offset=32)], data=bytes(64)),
        "u",
        "overlaps that of 't'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "field", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files(file: Path, data: bytes, field: str, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError) as caught:
            opened(file, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.field == field
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    if caught.value.offset is not None:
        assert 0 <= caught.value.offset <= len(data)


def test_messages_are_on_record(file: Path) -> None:
    """Every field and offset that a message names."""
    said = {}
    for name, (data, _, _) in HOSTILE.items():
        with pytest.raises(FileFormatError) as caught:
            opened(file, data)
        said[name] = str(caught.value).replace(str(file), "FILE")
    assert differences("hostile_gguf", [said]) == []


def test_big_endian(file: Path) -> None:
    write_gguf(file, endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(FileFormatError, match="big-endian"):
        GGUFFile(file)


def test_booleans_are_0_or_1(file: Path) -> None:
    opened_file = opened(file, raw_gguf([entry("flag", BOOL, b"\2")]))
    with pytest.raises(FileFormatError, match="neither 0 nor 1"):
        opened_file.metadata["flag"]


def test_not_regular_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(FileFormatError, match="regular file"):
        GGUFFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="regular file"):
        GGUFFile(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="cannot be read"):
        GGUFFile("a\0b")


def test_unsupported_tensor_type_is_named_when_used(file: Path) -> None:
    data = raw_gguf(
        tensors=[tensor("nv", [256], kind=40), tensor("unknown", [1], kind=77, offset=256)],
        data=bytes(512),
    )
    opened_file = opened(file, data)
    with pytest.raises(UnsupportedModel, match=r"'nv' has the type NVFP4.*Q6_K"):
        opened_file.stored("nv")
    with pytest.raises(UnsupportedModel, match="number 77"):
        opened_file.stored("unknown")
    with pytest.raises(FileFormatError, match="'absent' is missing"):
        opened_file.stored("absent")


def test_truncated_anywhere(file: Path, tmp_path: Path) -> None:
    metadata = model_metadata() | {"tokenizer.ggml.tokens": [f"t{i}" for i in range(24)]}
    data = write_gguf(file, metadata).read_bytes()
    opened_file = GGUFFile(file)
    end = max(
        info.offset + opened_file.stored(name).data.size
        for name, info in opened_file.tensors.items()
    )
    head = min(info.offset for info in opened_file.tensors.values())
    rng = random.Random(1)
    places = [rng.randrange(end) for _ in range(100)] + [rng.randrange(head) for _ in range(100)]
    for place in [*places, 0, 1, end - 1]:
        with pytest.raises(FileFormatError):
            opened(tmp_path / "cut.gguf", data[:place])
    assert opened(tmp_path / "cut.gguf", data[:end]).tensors.keys() == opened_file.tensors.keys()


def read_all(path: Path) -> None:
    weights = open_weights(path)
    assert weights.gguf is not None
    for key in weights.gguf.metadata:
        assert weights.gguf.metadata[key] is not None
    for name in weights.names():
        weights.floats(name)


def test_mutated_files_open_or_raise_our_errors(file: Path, tmp_path: Path) -> None:
    metadata = model_metadata() | {
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(24)],
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "general.sampling.top_k": 40,
        "flag": True,
    }
    data = write_gguf(file, metadata).read_bytes()
    head = min(info.offset for info in GGUFFile(file).tensors.values())
    mutated, rng = tmp_path / "mutated.gguf", random.Random(2)
    extremes = [0, 1, 127, 128, 255]
    outcomes = {"opened": 0, "refused": 0}
    read_all(file)
    tracemalloc.start()
    try:
        for _ in range(500):
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                place = rng.randrange(head)
                if rng.random() < 0.5:
                    changed[place] ^= 1 << rng.randrange(8)
                else:
                    width = min(rng.choice((1, 4, 8)), head - place)
                    changed[place : place + width] = bytes(
                        rng.choice(extremes) for _ in range(width)
                    )
            mutated.write_bytes(changed)
            try:
                read_all(mutated)
                outcomes["opened"] += 1
            except AleatorError:
                outcomes["refused"] += 1
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 50


def test_strings_in_place(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    texts = [entry("texts", 9, array(8, 2, string("a") + string(end))) for end in ("b", b"\xff")]
    numbers = entry("numbers", 9, array(4, 1, bytes(4)))
    path.write_bytes(raw_gguf([texts[0], numbers, entry("text", 8, string("c"))]))
    found = GGUFFile(path).metadata
    kept = found.strings("texts")
    assert kept is not None
    assert [kept[i] for i in range(len(kept))] == ["a", "b"]
    assert [found.strings(key) for key in ("numbers", "text", "nothing")] == [None] * 3
    path.write_bytes(raw_gguf([texts[1]]))
    with pytest.raises(FileFormatError, match="string 1 is not UTF-8"):
        GGUFFile(path).metadata.strings("texts")
