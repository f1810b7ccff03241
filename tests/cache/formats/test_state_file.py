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
from aleator.core.errors import FileFormatError, ParameterError

HEADER = {"model": "f00", "text": "zwölf", "numbers": [1, 2.5, None]}
SECTIONS = {"tokens": b"\1\2\3", "rows": bytes(range(256)) * 5, "empty": b""}


def packed(**changes: Any) -> bytes:
    return b"".join(pack_state({**HEADER, **changes}, SECTIONS))


def header_of(data: bytes) -> Any:
    """The header with the table of sections."""
    return json.loads(data[16 : 16 + int.from_bytes(data[12:16], "little")])


def resealed(change: Any) -> bytes:
    """A file whose header was changed by someone who knows how to make its checksum."""
    data = packed()
    text = json.dumps(change(header_of(data)), ensure_ascii=False, separators=(",", ":")).encode()
    head = data[:12] + len(text).to_bytes(4, "little") + text
    head += state_file._checksum(head)
    start = -(-(16 + int.from_bytes(data[12:16], "little") + 8) // 64) * 64
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


def test_the_header_is_utf8_and_has_finite_numbers(tmp_path: Path) -> None:
    assert "zwölf".encode() in packed()
    write_state_file(tmp_path / "a", HEADER, SECTIONS)
    assert read_state_file(tmp_path / "a", mapped=False) == read_state_file(tmp_path / "a")
    with pytest.raises(ValueError, match="JSON"):
        pack_state({"x": float("nan")}, {})


def test_a_file_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        write_state_file(tmp_path / "a", HEADER, SECTIONS)


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


FIRST: dict[str, Any] = header_of(packed())["sections"][0]
"""Where the first section is, and what it is called."""
PLACE, OVERLAP = FIRST["offset"], "the sections overlap or are out of order"
WRONG = "the header is not what it should be"


@pytest.mark.parametrize(
    ("change", "message", "field", "offset"),
    [
        (lambda h: [h], WRONG, "header", 16),
        (lambda h: {**h, "sections": None}, WRONG, "header", 16),
        (lambda h: {**h, "sections": [{}]}, WRONG, "header", 16),
        (lambda h: {**h, "sections": [{**FIRST, "size": 2**40}]}, "cut short", "tokens", PLACE),
        (lambda h: {**h, "sections": [{**FIRST, "size": -1}]}, OVERLAP, "tokens", PLACE),
        (lambda h: {**h, "sections": [{**FIRST, "offset": 0}]}, OVERLAP, "tokens", 0),
        (lambda h: {**h, "sections": [{**FIRST, "offset": -64}]}, OVERLAP, "tokens", -64),
        (lambda h: {**h, "sections": [{**FIRST, "offset": PLACE + 3}]}, OVERLAP, "tokens", PLACE + 3),
        (lambda h: {**h, "sections": [FIRST] * 2}, OVERLAP, "tokens", PLACE),
        (lambda h: {**h, "sections": [{**FIRST, "offset": "x"}]}, WRONG, "header", 16),
        (lambda h: {**h, "sections": [{**FIRST, "size": 2}]}, "section is damaged", "tokens", PLACE),
        (lambda h: {**h, "sections": h["sections"][:1]}, "something follows", "sections", PLACE + 64),
        (
            lambda h: {**h, "sections": h["sections"][1:]},
            "the padding before the section is not zero",
            "rows",
            None,
        ),
    ],
)  # fmt: skip
def test_a_hostile_header_is_refused(
    change: Any, message: str, field: str, offset: int | None
) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        read_state_file(resealed(change))
    assert caught.value.field == field
    assert offset is None or caught.value.offset == offset


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_files_of_every_length_of_the_header(size: int, n: int) -> None:
    """Sections begin at multiples of 64, at most 20 bytes for each behind the header; and they are read."""
    sections = {str(i): bytes([1 + i]) * size for i in range(n)}
    for length in range(70):
        header = {"name": "x" * length}
        data = b"".join(pack_state(header, sections))
        state = read_state_file(data)
        assert (state.header, len(data) % 64) == (header, 0)
        assert {name: bytes(each) for name, each in state.sections.items()} == sections
        end = 16 + int.from_bytes(data[12:16], "little") + 8
        begun = [each["offset"] for each in header_of(data)["sections"]]
        assert begun == [(begun or [0])[0] + i * -(-size // 64) * 64 for i in range(n)]
        digits = sum(len(str(offset)) - 1 for offset in begun)
        expected = -(-(end - digits + 20 * n) // 64) * 64
        assert (begun or [expected])[0] == expected
        assert len(data) == expected + n * -(-size // 64) * 64


def test_cuts_are_named_with_their_places() -> None:
    data = packed()
    end = 16 + int.from_bytes(data[12:16], "little") + 8
    for length, message, field, offset in (
        (0, "not a state file of Aleator", "magic", 0),
        (7, "not a state file of Aleator", "magic", 0),
        (8, "the file is cut short", "version", 8),
        (15, "the file is cut short", "version", 8),
        (16, "does not fit into the file", "header", 12),
        (end - 1, "does not fit into the file", "header", 12),
        (end, "cut short: ", "tokens", PLACE),
        (PLACE + 2, "cut short: 1 bytes are missing", "tokens", PLACE),
        (len(data) - 3, "cut short", "rows", PLACE + 64),
    ):
        with pytest.raises(FileFormatError, match=message) as caught:
            read_state_file(data[:length])
        assert (caught.value.field, caught.value.offset) == (field, offset)
    padded = b"".join(pack_state({}, {"rows": b"\1"}))
    for wrong, message, offset in (
        (padded[:-5], "cut short: 5 bytes are missing", len(padded) - 63),
        (padded + b"\0", "something follows", len(padded)),
        (padded[:-63] + b"\1" + padded[-62:], "padding after", len(padded) - 63),
    ):
        with pytest.raises(FileFormatError, match=message) as caught:
            read_state_file(wrong)
        assert (caught.value.field, caught.value.offset) == ("sections", offset)


def test_the_largest_header(monkeypatch: pytest.MonkeyPatch) -> None:
    size = int.from_bytes(packed()[12:16], "little")
    for most in (size, size - 1):
        monkeypatch.setattr(state_file, "MAX_HEADER", most)
        if most == size:
            assert read_state_file(packed()).header == HEADER
        else:
            with pytest.raises(FileFormatError, match=f"a header of {size} bytes does not fit"):
                read_state_file(packed())


def test_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="empty"):
        read_state_file(path)
    path.write_bytes(b"GGUF" * 10)
    with pytest.raises(FileFormatError, match=r"a\.state: not a state file.*magic.*offset 0"):
        read_state_file(path)
    for version in (1, 3, 2 + 256):
        later = bytearray(packed())
        later[8:10] = version.to_bytes(2, "little")
        with pytest.raises(FileFormatError, match=f"version {version} is not supported, only 2"):
            read_state_file(later)
    long = bytearray(packed())
    long[12:16] = b"\xff" * 4
    with pytest.raises(FileFormatError, match="does not fit"):
        read_state_file(long)


def test_only_a_file_is_replaced(tmp_path: Path) -> None:
    device = tmp_path / "device"
    os.mkfifo(device)
    with pytest.raises(ParameterError, match=r"is no file, and is not replaced"):
        write_state_file(device, HEADER, SECTIONS)
    assert device.is_fifo()
    assert list(tmp_path.iterdir()) == [device]


def test_errors_name_the_file_whatever_names_it(tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> str:
            return str(tmp_path / "file")

    for data, message in ((b"", "the file is empty"), (b"x" * 100, "not a state file")):
        (tmp_path / "file").write_bytes(data)
        for mapped in (True, False):
            with pytest.raises(FileFormatError, match=f"^{tmp_path / 'file'}: {message}"):
                read_state_file(Named(), mapped=mapped)
