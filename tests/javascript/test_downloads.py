"""Models by URL in the npm package: ranges, what servers do wrong, and what the browser keeps."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import aleator
from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import Refuses, Run

PATH = bundled_model()
SIZE = PATH.stat().st_size
PART = 1 << 20
PARTS = -(-SIZE // PART)
FIRST = f"bytes=0-{PART - 1}"
WHOLE = [SIZE, SIZE]


@pytest.fixture
def loads(run: Run) -> Any:
    """Loads the model so often, each time with these options of server and package."""

    def loads(*each: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
        [told] = run("downloads", [{"path": str(PATH), "loads": each, **given}])
        assert isinstance(told, list), told
        assert all(one["grows"] for one in told)
        return told

    return loads


@pytest.fixture(scope="module")
def text() -> str:
    return aleator.load().generate("ROMEO:", seed=4, max_tokens=8).text


def test_a_model_comes_in_ranges(loads: Any, text: str) -> None:
    [told] = loads({})
    assert told["text"] == text
    assert told["last"] == WHOLE
    ranges = [f"bytes={at}-{min(at + PART, SIZE) - 1}" for at in range(0, SIZE, PART)]
    assert told["asked"][0] == FIRST
    assert sorted(told["asked"][1:]) == sorted(ranges[1:])


@pytest.mark.parametrize(
    "server",
    [
        {"ranges": False},
        {"ranges": False, "length": False},
        {"contentRanges": {"0": ""}},
        {"contentRanges": {"0": f"bytes 0-{PART - 1}/*"}},
        {"etag": None},
        {"etag": 'W/"weak"'},
        {"gzip": True},
        {"gzip": True, "ranges": False},
    ],
    ids=str,
)
def test_other_servers_give_it_too(loads: Any, text: str, server: dict[str, Any]) -> None:
    [told] = loads({"server": server})
    assert (told["text"], told["last"]) == (text, WHOLE)


def test_what_breaks_is_asked_for_again_from_there(loads: Any, text: str) -> None:
    server = {"breaks": {"0": 1000, "2": 5}, "statuses": {"1": 503}}
    [told] = loads({"server": server})
    assert (told["text"], told["last"]) == (text, WHOLE)
    assert told["asked"][:3] == [FIRST, f"bytes=1000-{PART - 1}", f"bytes=1000-{PART - 1}"]
    assert told["asked"][3] == f"bytes=1005-{PART - 1}"


DISK = {"disk": 10 * SIZE}
STALL = {"stallTimeout": 200}


@pytest.mark.parametrize("number", ["0", "2"])
@pytest.mark.parametrize("bytes_before", [-1, 0, 1000])
def test_what_stalls_is_asked_for_again_from_there(
    loads: Any, text: str, number: str, bytes_before: int
) -> None:
    [told] = loads({"server": {"stalls": {number: bytes_before}}, **STALL})
    assert (told["text"], told["last"]) == (text, WHOLE)
    begin = int(told["asked"][int(number)].split("=")[1].split("-")[0]) + max(0, bytes_before)
    assert any(each.startswith(f"bytes={begin}-") for each in told["asked"][int(number) + 1 :])


def test_a_server_that_stalls_for_ever_is_named(loads: Any) -> None:
    ever = dict(zip(map(str, range(9)), [0] * 9, strict=True))
    [told] = loads({"server": {"stalls": ever}, **STALL})
    assert told["error"] == "DownloadError"
    assert told["message"] == (
        "URL cannot be read, tried 6 times: nothing came for 200 ms: load it again, or give a larger "
        "stallTimeout"
    )
    [told] = loads({"server": {"ranges": False, "stalls": {"0": 5}}, **STALL})
    assert told["error"] == "DownloadError"
    assert told["message"].startswith(f"URL: nothing came for 200 ms after 5 of {SIZE} bytes, and ")
    assert told["message"].endswith("load it again, or give a larger stallTimeout")


def test_a_server_that_says_nothing_is_named(loads: Any) -> None:
    [told] = loads({"server": {"stalls": dict.fromkeys("012", -1)}, **STALL})
    assert (told["error"], len(told["asked"])) == ("DownloadError", 3)


@pytest.mark.parametrize("bytes_before", [-1, 0, 1000])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_signal_ends_what_stalls(loads: Any, ranges: bool, bytes_before: int) -> None:
    [told] = loads({"server": {"ranges": ranges, "stalls": {"0": bytes_before}, "cancels": True}})
    assert (told["error"], len(told["asked"])) == ("AbortError", 1)


def test_what_stalled_goes_on_with_what_is_kept(loads: Any, text: str) -> None:
    ever = dict(zip(map(str, range(1, 99)), [1000] * 98, strict=True))
    first, second = loads({"server": {"stalls": ever}, **STALL}, {}, **DISK)
    assert (first["error"], first["kept"]) == ("DownloadError", [[SIZE, PART]])
    assert (second["text"], second["kept"]) == (text, [WHOLE])
    assert len(set(second["asked"])) == PARTS  # the first again: is it the same file?


DATE = "Sat, 28 Nov 2026 10:00:00 GMT"
PAUSES = [("2", [2000]), ("Sat, 28 Nov 2026 10:00:07 GMT", [7000]), ("soon", []), ("-5", [])]


@pytest.mark.parametrize(("pause", "waits"), PAUSES)
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_is_not_asked_before_it_says(
    loads: Any, text: str, status: int, pause: str, waits: list[int]
) -> None:
    for number in "02":
        server = {"statuses": {number: status}, "pauses": {number: pause}, "date": DATE}
        [told] = loads({"server": server}, hurry=30_000)
        assert (told["text"], told["waits"]) == (text, waits)


def test_a_server_that_asks_for_too_long_a_pause_is_named(loads: Any, text: str) -> None:
    server = {"statuses": {"0": 429}, "pauses": {"0": "61"}}
    told, more = loads(
        {"server": server}, {"server": server, "maxRetryAfter": 61_000}, hurry=30_000
    )
    assert (told["error"], told["waits"], len(told["asked"])) == ("DownloadError", [], 1)
    assert told["message"] == (
        "URL cannot be read now: 429 Too Many Requests; the server asks for 61000 ms of patience "
        "(Retry-After), more than maxRetryAfter=60000: load it again after that, or give a larger maxRetryAfter"
    )
    assert (more["text"], more["waits"]) == (text, [61_000])


def test_a_signal_ends_a_pause(loads: Any) -> None:
    server = {"statuses": {"0": 503}, "pauses": {"0": "50"}, "cancels": True}
    [told] = loads({"server": server})
    assert (told["error"], len(told["asked"])) == ("AbortError", 1)


@pytest.mark.parametrize(
    ("option", "value", "low"),
    [
        ("stallTimeout", "0", 1),
        ("stallTimeout", "2 ** 31", 1),
        ("maxRetryAfter", "-1", 0),
        ("maxRetryAfter", "'5'", 0),
    ],
)
def test_waits_out_of_range_are_refused_by_name(
    refuses: Refuses, option: str, value: str, low: int
) -> None:
    shown = {"2 ** 31": 2**31, "'5'": 5}.get(value, value)
    said = f"{option}={shown}: give a whole number from {low} to 2147483647"
    refuses({f"load('missing.gguf', {{ {option}: {value} }})": said})


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"statuses": {"0": 404}}, "ModelNotFound", "404 Not Found"),
    ({"statuses": dict.fromkeys("012", 503)}, "DownloadError", "tried 3 times: 503"),
    ({"breaks": dict.fromkeys("012345", 0)}, "DownloadError", "tried 6 times"),
    ({"etags": {"2": '"second"'}}, "DownloadError", "changed while it was loaded"),
    ({"etag": None, "etags": {"2": '"second"'}}, "DownloadError", "changed while"),
    ({"contentRanges": {"0": "bytes 5-9/100"}}, "DownloadError", "Content-Range bytes 5-9/100"),
    ({"contentRanges": {"0": f"bytes 0-{PART}/{SIZE}"}}, "DownloadError", "asked for bytes 0 to"),
    ({"contentRanges": {"0": "bytes none"}}, "DownloadError", "Content-Range bytes none"),
    ({"contentRanges": {"1": f"bytes 0-9/{SIZE}"}}, "DownloadError", "Content-Range bytes 0-9"),
    ({"contentRanges": {"1": f"bytes {PART}-{PART + 9}/{SIZE}"}}, "DownloadError", "sends more bytes"),
    ({"contentRanges": {"1": f"bytes {PART}-{PART}/9"}}, "DownloadError", "changed while"),
    ({"contentRanges": {"0": "bytes 0-9/9999999999"}}, "MemoryError", "at most 4 GiB"),
    ({"ranges": False, "breaks": {"0": 99}}, "DownloadError", "gives no ranges of it"),
]  # fmt: skip


@pytest.mark.parametrize(("server", "error", "said"), WRONG, ids=str)
def test_what_a_server_does_wrong_is_named(
    loads: Any, server: dict[str, Any], error: str, said: str
) -> None:
    [told] = loads({"server": server})
    assert told["error"] == error
    assert said in told["message"]


def test_a_file_of_unknown_length_has_a_bound(loads: Any) -> None:
    server = {"ranges": False, "length": False}
    [told] = loads({"server": server}, sizes={"unknown": SIZE - 1})
    assert (told["error"], len(told["asked"])) == ("MemoryError", 1)
    assert f"more than {SIZE - 1} bytes came" in told["message"]


def test_a_wrong_file_is_refused_by_its_first_bytes(loads: Any) -> None:
    data = bytearray(PATH.read_bytes())
    data[:4] = b"GGML"
    junk = base64.b64encode(data).decode()
    for server in ({}, {"ranges": False}):
        [told] = loads({"server": server}, file=junk)
        assert (told["error"], len(told["asked"])) == ("FileFormatError", 1)
        assert told["last"][0] <= PART


def test_an_architecture_that_is_not_supported_is_refused_by_the_first_bytes(loads: Any) -> None:
    data = PATH.read_bytes().replace(b"llama", b"lamas", 1)
    [told] = loads({}, file=base64.b64encode(data).decode())
    assert (told["error"], len(told["asked"])) == ("UnsupportedModel", 1)


def test_metadata_may_be_longer_than_a_part(loads: Any, text: str) -> None:
    small = 1 << 14
    [told] = loads({}, sizes={"part": small})
    assert (told["text"], told["last"]) == (text, WHOLE)
    [told] = loads({}, sizes={"part": small, "metadata": 2 * small})
    assert told["error"] == "FileFormatError"
    assert f"its metadata take more than {2 * small} bytes" in told["message"]
    assert told["last"] == [2 * small, SIZE]


@pytest.mark.parametrize("file", [b"", b"GG"])
def test_files_of_few_bytes(loads: Any, file: bytes) -> None:
    [told] = loads({}, file=base64.b64encode(file).decode())
    assert told["error"] == "FileFormatError"
    assert "not a GGUF file" in told["message"]


@pytest.mark.parametrize("at", [0, PART // 2, PART + 1, SIZE])
def test_a_signal_ends_it(loads: Any, at: int) -> None:
    for server in ({}, {"ranges": False}):
        told, again = loads({"cancelAt": at, "server": server}, {"server": server})
        assert told["error"] == "AbortError"
        assert at == SIZE or at <= told["last"][0] < SIZE
        assert "text" in again


def test_a_model_is_kept(loads: Any, text: str) -> None:
    first, second, away = loads({}, {}, {"server": {"away": True}}, **DISK)
    assert [told["text"] for told in (first, second, away)] == [text] * 3
    assert [told["last"] for told in (first, second, away)] == [WHOLE] * 3
    assert (len(first["asked"]), second["asked"], away["asked"]) == (PARTS, [FIRST], [])
    assert first["kept"] == [WHOLE]


def test_what_a_server_gives_without_ranges_is_kept_too(loads: Any, text: str) -> None:
    server = {"ranges": False}
    first, second, third = loads(
        {"server": server, "cancelAt": 2 * PART}, {"server": server}, {}, **DISK
    )
    assert (second["text"], third["text"]) == (text, text)
    assert 0 < first["kept"][0][1] < SIZE
    assert third["asked"] == [FIRST]


def test_a_download_that_was_ended_goes_on(loads: Any, text: str) -> None:
    first, second = loads({"cancelAt": 2 * PART}, {}, **DISK)
    [[size, kept]] = first["kept"]
    assert size == SIZE
    assert PART <= kept < SIZE
    assert second["text"] == text
    asked = set(second["asked"])  # with requests of the first that came late
    assert FIRST in asked  # is it the same file?
    assert len(asked) == PARTS - kept // PART + 1
    assert second["kept"] == [WHOLE]


def test_another_version_replaces_what_is_kept(loads: Any, text: str) -> None:
    server = {"etag": '"second"'}
    _, second = loads({}, {"server": server}, **DISK)
    assert (second["text"], len(second["asked"]), second["kept"]) == (text, PARTS, [WHOLE])


def test_what_is_not_kept(loads: Any) -> None:
    off, unnamed, forgotten = loads(
        {"keep": False}, {"server": {"etag": None}}, {"forget": True, "keep": False}, **DISK
    )
    assert (off["kept"], unnamed["kept"], forgotten["kept"]) == ([], [], [])


def test_a_full_disk_keeps_nothing_and_harms_nothing(loads: Any, text: str) -> None:
    [told] = loads({}, disk=2 * PART)
    assert (told["text"], told["kept"]) == (text, [])


BEGIN = """
const begin = (version) => Kept.ofFile({ url: 'https://a/b', version, size: 9 }, 5)
const a = await begin('1')
const [part, large] = [Buffer.alloc(5), Buffer.alloc(999)]
"""
LEFT: dict[str, tuple[str, list[list[int]]]] = {
    "full while another part is written": ("await Promise.all([a.put(0, part), a.put(1, large)])", []),
    "another version": (
        "const b = await begin('2'); await b.put(0, part); await a.put(0, large)",
        [[9, 5]],
    ),
    "half a part": (
        "const half = await a.inside.getFileHandle('0.crswap', { create: true });"
        "half.content = new Blob([part])",
        [[9, 0]],
    ),
    "removed meanwhile": (
        "a.inside.entries = async function* () { throw new DOMException('', 'NotFoundError') }",
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "left"), LEFT.values(), ids=LEFT)
def test_what_stays_on_the_disk(run: Run, code: str, left: list[list[int]]) -> None:
    assert run("kept", [{"code": BEGIN + code, "disk": 900}]) == [left]


def test_a_file_of_no_use_is_not_kept(loads: Any) -> None:
    [told] = loads({}, file=base64.b64encode(b"<html>").decode(), **DISK)
    assert (told["error"], told["kept"]) == ("FileFormatError", [])
