"""The container: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from aleator.cache.formats import state_file
from aleator.cache.formats.state_file import pack_state, read_state_file, write_state_file
from aleator.core.errors import FileFormatError

HEADER = {"model": "f00", "text": "zwölf", "numbers": [1, 2.5, None]}
SECTIONS = {"tokens": b"\1\2\3", "rows": bytes(range(256)) * 5, "empty": b""}


def packed(**changes: Any) -> bytes:
    return b"".join(pack_state({**HEADER, **changes}, SECTIONS))


def resealed(change: Any) -> bytes:
    """A file whose header was changed by someone who knows how to make its checksum."""
    data = packed()
    size = int.from_bytes(data[12:16], "little")
    header = json.loads(data[16 : 16 + size])
    text = json.dumps(change(header)).encode()
    head = data[:12] + len(text).to_bytes(4, "little") + text
    head += state_file._checksum(head)
    start = -(-(16 + size + 8) // 64) * 64
    return head + bytes(max(0, start - len(head))) + data[start:]


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    write_state_file(path, HEADER, SECTIONS)
    assert path.read_bytes() == packed()
    for source in (path, str(path), packed(), bytearray(packed()), memoryview(packed())):
        state = read_state_file(source)
        assert state.header == HEADER
        assert {name: bytes(view) for name, view in state.sections.items()} == SECTIONS
    assert [p.name for p in tmp_path.iterdir()] == ["a.state"]


def test_without_sections() -> None:
    assert read_state_file(b"".join(pack_state({}, {}))).sections == {}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.state"
    write_state_file(path, HEADER, SECTIONS)
    before = path.read_bytes()

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_state_file(path, {}, {})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.state"]


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = packed()
    padding = [i for i in range(len(data)) if data[i] == 0]
    used = [i for i in range(len(data)) if data[i]]
    assert len(padding) > 150
    for i in (*padding, *random.Random(1).sample(used, 300)):
        damaged = bytearray(data)
        damaged[i] ^= 1 << (i % 8)
        with pytest.raises(FileFormatError):
            read_state_file(damaged)
    for length in (*range(0, 40), *random.Random(2).sample(range(40, len(data)), 100)):
        with pytest.raises(FileFormatError):
            read_state_file(data[:length])
    with pytest.raises(FileFormatError, match="follows"):
        read_state_file(data + b"x")
    padded = b"".join(pack_state(HEADER, {"rows": b"\1\2\3"}))
    with pytest.raises(FileFormatError, match="cut short: 1 bytes are missing"):
        read_state_file(padded[:-1])
    with pytest.raises(FileFormatError, match="padding after the last section is not zero"):
        read_state_file(padded[:-1] + b"\1")


@pytest.mark.parametrize(
    "change",
    [
        lambda h: [h],
        lambda h: {**h, "sections": None},
        lambda h: {**h, "sections": [{}]},
        lambda h: {**h, "sections": [{**h["sections"][0], "size": 2**70}]},
        lambda h: {**h, "sections": [{**h["sections"][0], "size": -1}]},
        lambda h: {**h, "sections": [{**h["sections"][0], "offset": 0}]},
        lambda h: {**h, "sections": [{**h["sections"][0], "offset": -64}]},
        lambda h: {**h, "sections": [h["sections"][0]] * 2},
        lambda h: {**h, "sections": [{**h["sections"][0], "offset": "x"}]},
    ],
)
def test_a_hostile_header_is_refused(change: Any) -> None:
    with pytest.raises(FileFormatError):
        read_state_file(resealed(change))


def test_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="empty"):
        read_state_file(path)
    path.write_bytes(b"GGUF" * 10)
    with pytest.raises(FileFormatError, match=r"a\.state: not a state file.*magic.*offset 0"):
        read_state_file(path)
    later = bytearray(packed())
    later[8] = 3
    with pytest.raises(FileFormatError, match="version 3 is not supported"):
        read_state_file(later)
    long = bytearray(packed())
    long[12:16] = b"\xff" * 4
    with pytest.raises(FileFormatError, match="does not fit"):
        read_state_file(long)
