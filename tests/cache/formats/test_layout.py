"""llama.cpp's layout put together by hand: what is just allowed, and which place is named of what is not."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aleator.cache import KVCache, LayerShape, RecurrentCache, RecurrentShape
from aleator.cache.formats.llama import MAX_TOKENS, SEQUENCE_MAGIC
from aleator.cache.formats.recurrent import write as write_states
from aleator.cache.formats.source import Source
from aleator.cache.kv_cache import HybridCache
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.core.errors import Corrupt, Incompatible

SHAPES = [LayerShape(1, 2, 2), LayerShape(1, 3, 1)]
STATES = [RecurrentShape(2, 1, 2), RecurrentShape(1, 3, 2, inner=2)]
Cells = Sequence[tuple[int, Sequence[int]]]
PLAIN: Cells = [(0, [0]), (1, [0]), (7, [1])]
SHARED: Cells = [(0, [0, 1]), (1, [0]), (2**31 - 2, [0, 1])]


class Layout:
    """The fields of some bytes, by name."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}

    def add(self, name: str, form: str, *values: Any) -> None:
        self.parts[name] = struct.pack(f"<{form}", *values)

    def at(self, name: str) -> int:
        """Where a field begins; "end" is behind all."""
        names = [*self.parts, "end"]
        return sum(len(self.parts[each]) for each in names[: names.index(name)])

    def bytes(self, **changed: bytes) -> bytes:
        """All of it, with other bytes in some fields."""
        return b"".join((self.parts | changed).values())


def head(seq: int | None, name: bytes = b"llama") -> Layout:
    made = Layout()
    if seq is None:
        made.add("length", "I", len(name))
        made.parts["name"] = name
    else:
        made.add("magic", "I", 0xAF143CD8)
        made.add("id", "i", seq)
    return made


def rows(made: Layout, name: str, n: int, width: int) -> None:
    """A side's type, bytes of a row, and rows of numbers that all differ."""
    made.add(f"{name}_type", "i", 0)
    made.add(f"{name}_bytes", "Q", 4 * width)
    first = sum(map(len, made.parts.values()))
    made.parts[name] = np.arange(first, first + n * width, dtype="<f4").tobytes()


def memory(
    made: Layout,
    cells: Cells,
    shapes: Sequence[LayerShape] = SHAPES,
    by_channel: bool = False,
    extras: bool = False,
) -> Layout:
    made.add("streams", "I", 1)
    made.add("cells", "I", len(cells))
    for i, (position, owners) in enumerate(cells):
        made.add(f"cell{i}", "iI", position, len(owners))
        if extras:
            made.add(f"extra{i}", "iii", 10 + i, 20 + i, i - 1)
        made.add(f"owners{i}", f"{len(owners)}i", *owners)
    made.add("v_trans", "I", by_channel)
    made.add("layers", "I", len(shapes))
    for i, shape in enumerate(shapes):
        rows(made, f"k{i}", len(cells), shape.head_dim)
    for i, shape in enumerate(shapes):
        rows(made, f"v{i}", len(cells), shape.head_dim_v)
        if by_channel:
            made.add(f"v{i}_bytes", "II", 4, shape.head_dim_v)
    return made


def states(made: Layout, cells: Cells, one: bool = False) -> Layout:
    made.add("cells", "I", len(cells))
    for i, (position, owners) in enumerate(cells):
        listed = [] if one else owners
        made.add(f"cell{i}", "iI", position, len(listed))
        made.add(f"owners{i}", f"{len(listed)}i", *listed)
    made.add("s_trans", "I", 0)
    made.add("layers", "I", len(STATES))
    for i, shape in enumerate(STATES):
        rows(made, f"conv{i}", len(cells), shape.channels * shape.conv)
    for i, shape in enumerate(STATES):
        rows(made, f"ssm{i}", len(cells), int(np.prod(shape.state_shape)))
    return made


def cache(shapes: Sequence[LayerShape] = SHAPES, n: int = 32, **options: Any) -> KVCache:
    given: dict[str, Any] = {"n_seq_max": 2, "type_k": "f32", "type_v": "f32"}
    return KVCache(shapes, n, **given | {"architecture": "llama"} | options)


def recurrent() -> RecurrentCache:
    return RecurrentCache(STATES, n_seq_max=2, architecture="llama")


def refused(target: Any, blob: bytes, seq: int = -1, method: str = "state_read") -> Any:
    """The error of what is not read, nothing having changed."""
    before = target.state_write()
    with pytest.raises((Corrupt, Incompatible)) as caught:
        getattr(target, method)(blob, seq)
    assert target.state_write() == before
    return caught.value


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("cells", [PLAIN, SHARED, PLAIN[:1]], ids=["plain", "shared", "one"])
@pytest.mark.parametrize("extras", [False, True])
def test_a_whole_state(cells: Cells, by_channel: bool, extras: bool) -> None:
    blob = memory(head(None), cells, by_channel=by_channel, extras=extras).bytes()
    layout, places = "channel" if by_channel else "token", 4 if extras else 1
    target = cache(v_layout=layout, n_pos_per_embd=places)
    assert target.state_read(blob) == len(cells)
    assert target.state_write() == blob
    if extras:
        found = target.cells.extras
        assert found is not None
        assert found[: len(cells)].tolist() == [[20 + i, 10 + i, i - 1] for i in range(len(cells))]


@pytest.mark.parametrize("places", [1, 4])
def test_cells_without_layers(places: int) -> None:
    """Nothing follows the cells but two numbers, so what a cell needs at least is known exactly."""
    cells: Cells = [(i, [i % 2]) for i in range(30)]
    made = memory(head(None), cells, [], extras=places == 4)
    target = cache([], n_pos_per_embd=places)
    assert target.state_read(made.bytes()) == 30
    assert target.state_write() == made.bytes()
    error = refused(target, made.bytes()[:-8])
    assert f"v_trans needs 4 bytes, and 0 are left (offset {made.at('v_trans')})" in str(error)
    error = refused(target, made.bytes()[:-9])
    left = 30 * (12 if places == 1 else 24) - 1
    where = f"bytes left (offset {made.at('cells')})"
    assert f"30 cells do not fit into the {left} {where}" in str(error)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257])
def test_names_of_architectures(length: int) -> None:
    name = b"x" * length
    blob = memory(head(None, name), PLAIN).bytes()
    target = cache(architecture=name.decode())
    if length <= 256:
        assert target.state_read(blob) == 3
        assert target.state_write() == blob
    else:
        error = refused(target, blob)
        assert (type(error), error.offset) == (Corrupt, 0)
        assert "a name of 257 bytes" in str(error)


NAN = struct.pack("<f", float("nan"))
CORRUPT: list[tuple[Cells, str, tuple[Any, ...], str, str]] = [
    (SHARED, "cell0", ("iI", 0, 0), "cell0", "cell 0 has 0 owners"),
    (SHARED, "cell1", ("iI", 1, 2**31), "cell1", "cell 1 has 2147483648 owners"),
    (SHARED, "owners2", ("ii", 1, 1), "cell2", "cell 2 names an owner twice"),
    (SHARED, "cell0", ("iI", -1, 2), "cell0", "position is not in"),
    (SHARED, "cell2", ("iI", 2**31 - 1, 2), "cell0", "position is not in"),
    (PLAIN, "cell0", ("iI", -1, 1), "cell0", "position is not in"),
    (PLAIN, "cell2", ("iI", 2**31 - 1, 1), "cell0", "position is not in"),
    (PLAIN, "v_trans", ("I", 2), "v_trans", "v_trans is 2"),
    (PLAIN, "k0", ("f20x", np.nan), "k0", "k of layer 0 holds NaN or an infinity"),
    (PLAIN, "k1", ("32xf", np.inf), "k1", "k of layer 1 holds NaN or an infinity"),
    (PLAIN, "v0", ("20xf", -np.inf), "v0", "v of layer 0 holds NaN or an infinity"),
    (PLAIN, "v1", ("f8x", np.nan), "v1", "v of layer 1 holds NaN or an infinity"),
    (PLAIN, "v1", ("8x",), "v1", "v of layer 1 needs 12 bytes, and 8 are left"),
    (PLAIN, "v1", ("13x",), "end", "1 bytes follow the end of the state"),
]


def test_damage_is_named_with_its_place() -> None:
    for cells, name, other, place, message in CORRUPT:
        made = memory(head(None), cells)
        error = refused(cache(), made.bytes(**{name: struct.pack("<" + other[0], *other[1:])}))
        assert (type(error), error.offset) == (Corrupt, made.at(place)), message
        assert message in str(error)


@pytest.mark.parametrize("cells", [PLAIN, SHARED])
@pytest.mark.parametrize("place", [0, 2])
def test_the_least_token_of_a_picture(cells: Cells, place: int) -> None:
    made, target = memory(head(None), cells, extras=True), cache(n_pos_per_embd=4)
    for token in (-1, 2**31 - 1):
        assert (
            target.state_read(made.bytes(**{f"extra{place}": struct.pack("<3i", 4, 5, token)})) == 3
        )
        found = target.cells.extras
        assert found is not None
        assert found[place].tolist() == [5, 4, token]
    error = refused(target, made.bytes(**{f"extra{place}": struct.pack("<3i", 4, 5, -2)}))
    assert (type(error), error.offset) == (Corrupt, made.at("cell0"))
    assert "token is below -1" in str(error)


OTHERS: list[tuple[Cells, str, tuple[Any, ...], str, Any, Any]] = [
    (PLAIN, "length", ("I", SEQUENCE_MAGIC), "kind", "the state of one sequence", None),
    (PLAIN, "name", ("5s", b"mamba"), "architecture", "mamba", "llama"),
    (PLAIN, "streams", ("I", 2), "n_stream", 2, 1),
    (PLAIN, "owners0", ("i", 2), "n_seq_max", "a cell of sequence 2", 2),
    (PLAIN, "owners2", ("i", -1), "n_seq_max", "a cell of sequence -1", 2),
    (SHARED, "owners0", ("ii", 0, 2), "n_seq_max", "a cell of sequences (0, 2)", 2),
    (SHARED, "owners2", ("ii", -1, 1), "n_seq_max", "a cell of sequences (-1, 1)", 2),
    (SHARED, "cell1", ("iI", 1, 3), "n_seq_max", "at least 3", 2),
    (PLAIN, "v_trans", ("I", 1), "v_trans", 1, 0),
    (PLAIN, "layers", ("I", 3), "n_layer", 3, 2),
    (PLAIN, "k0_type", ("i", 1), "type_k", 1, 0),
    (PLAIN, "v1_type", ("i", 1), "type_v", 1, 0),
    (PLAIN, "k1_bytes", ("Q", 8), "k row bytes", 8, 12),
    (PLAIN, "v1_bytes", ("Q", 2**40), "v row bytes", 2**40, 4),
]


def test_states_of_another_kind_say_how_they_differ() -> None:
    for cells, name, other, field, have, want in OTHERS:
        made = memory(head(None), cells)
        error = refused(cache(), made.bytes(**{name: struct.pack("<" + other[0], *other[1:])}))
        assert (type(error), error.field, error.have) == (Incompatible, field, have)
        assert want is None or error.want == want


def test_values_by_channel_of_another_shape() -> None:
    made, target = memory(head(None), PLAIN, by_channel=True), cache(v_layout="channel")
    for other, field in (((2, 2), "v element bytes"), ((4, 3), "v channels")):
        error = refused(target, made.bytes(v0_bytes=struct.pack("<II", *other)))
        assert error.field == field


def test_owners_that_just_fit() -> None:
    made = memory(head(None), SHARED)
    most = (made.at("end") - made.at("owners1")) // 4
    for count, kind in ((most, Incompatible), (most + 1, Corrupt)):
        error = refused(cache(), made.bytes(cell1=struct.pack("<iI", 1, count)))
        assert type(error) is kind


def test_states_of_one_sequence() -> None:
    target, made = cache(), memory(head(1), [(0, [1]), (5, [1])])
    assert target.state_read(made.bytes(), 1) == 2
    assert target.state_write(1) == made.bytes()
    two = memory(head(1), [(0, [1]), (5, [0, 1])])
    error = refused(target, two.bytes(), 0)
    assert (type(error), error.offset) == (Corrupt, two.at("cell0"))
    assert "exactly one owner" in str(error)
    error = refused(target, made.bytes(magic=b"\0\0\0\0"), 0)
    assert (type(error), error.offset) == (Corrupt, 0)
    streams = cache(policy="streams")
    parts = (head(0).bytes(), b"\2\0\0\0", memory(Layout(), [(0, [0])]).bytes()[4:])
    blob = b"".join((*parts, parts[-1]))
    error = refused(streams, blob, 0)
    assert (type(error), error.offset) == (Corrupt, sum(map(len, parts)))
    assert "cells in several streams" in str(error)
    whole = b"".join((head(None).bytes(), *parts[1:], b"\0\0\0\0"))
    assert streams.state_read(whole) == 1
    assert streams.state_write() == whole


@pytest.mark.parametrize(("seq", "magic", "version"), [(-1, b"nsgg", 10), (0, b"qsgg", 3)])
def test_session_files(seq: int, magic: bytes, version: int) -> None:
    made = Layout()
    made.parts["magic"] = magic
    made.add("version", "I", version)
    made.add("n_tokens", "I", 2)
    made.add("tokens", "2i", 5, 9)
    made.parts |= (memory(head(None), PLAIN) if seq < 0 else memory(Layout(), PLAIN[:2])).parts
    target = cache()
    assert target.session_read(made.bytes(), seq) == [5, 9]
    assert target.session_write([5, 9], seq) == made.bytes()
    for n, message in ((MAX_TOKENS, "tokens needs"), (MAX_TOKENS + 1, f"{MAX_TOKENS + 1} tokens")):
        error = refused(target, made.bytes(n_tokens=struct.pack("<I", n)), seq, "session_read")
        assert type(error) is Corrupt
        assert message in str(error)
        assert error.offset == made.at("n_tokens" if n > MAX_TOKENS else "tokens")
    error = refused(target, made.bytes(magic=b"GGUF"), seq, "session_read")
    assert (type(error), error.offset) == (Corrupt, 0)
    for other in (version - 1, version + 1):
        blob = made.bytes(version=struct.pack("<I", other))
        error = refused(target, blob, seq, "session_read")
        assert (error.field, error.have, error.want) == ("version", other, version)


BOTH: Cells = [(3, [0]), (2**31 - 2, [1])]


@pytest.mark.parametrize("cells", [BOTH, [(0, [0, 1])], [(4, [1])], []])
def test_recurrent_states(cells: Cells) -> None:
    target, blob = recurrent(), states(head(None), cells).bytes()
    assert target.state_read(blob) == len(cells)
    assert target.state_write() == blob
    for position, owners in cells:
        one = states(head(owners[0]), [(position, owners)], one=True).bytes()
        assert target.state_read(one, owners[0]) == 1
        assert target.state_write(owners[0]) == one
    target.state_read(states(head(0), [], one=True).bytes(), 0)
    assert target.seq_pos_max(0) == -1


STATE_ERRORS: list[tuple[str, tuple[Any, ...], Any]] = [
    ("cells", ("I", 3), ("n_seq_max", "at least 3", 2)),
    ("cell0", ("iI", -1, 1), "cell0"),
    ("cell1", ("iI", 2**31 - 1, 1), "cell1"),
    ("cell0", ("iI", 3, 0), ("n_seq_max", "a state of 0 sequences", 2)),
    ("cell0", ("iI", 3, 3), ("n_seq_max", "a state of 3 sequences", 2)),
    ("owners1", ("i", 2), ("n_seq_max", "a state of sequences (2,)", 2)),
    ("owners0", ("i", -1), ("n_seq_max", "a state of sequences (-1,)", 2)),
    ("owners1", ("i", 0), "cell1"),
    ("s_trans", ("I", 1), "s_trans"),
    ("layers", ("I", 1), ("n_layer", 1, 2)),
    ("conv1_type", ("i", 1), ("type of conv", 1, 0)),
    ("ssm0_type", ("i", 1), ("type of ssm", 1, 0)),
    ("conv0_bytes", ("Q", 4), ("conv row bytes", 4, 8)),
    ("ssm1_bytes", ("Q", 4), ("ssm row bytes", 4, 16)),
    ("conv0", ("f12x", np.nan), "conv1_type"),
    ("ssm1", ("28xf", np.inf), "end"),
]


def test_recurrent_states_that_are_refused() -> None:
    made = states(head(None), BOTH)
    for name, other, expected in STATE_ERRORS:
        error = refused(recurrent(), made.bytes(**{name: struct.pack("<" + other[0], *other[1:])}))
        if isinstance(expected, str):
            assert (type(error), error.offset) == (Corrupt, made.at(expected)), name
        else:
            assert (error.field, error.have, error.want) == expected


def test_recurrent_states_of_one_sequence_that_are_refused() -> None:
    made = states(head(0), BOTH, one=True)
    error = refused(recurrent(), made.bytes(), 0)
    assert (error.field, error.have, error.want) == ("n_seq_max", "at least 2", 1)
    made = states(head(0), BOTH[:1], one=True)
    error = refused(recurrent(), made.bytes(cell0=struct.pack("<iI", 3, 1)), 0)
    assert (type(error), error.offset) == (Corrupt, made.at("cell0"))


def test_a_part_of_a_hybrid_state() -> None:
    """Recurrent states follow cells, and without them they are a checkpoint."""
    pool = RecurrentPool(STATES, n_seq_max=2)
    given: Any = {"n_seq_max": 2, "type_k": "f32", "type_v": "f32", "architecture": "llama"}
    target = HybridCache(SHAPES, 16, recurrent=pool, **given)
    cells: Cells = [(0, [1]), (1, [1]), (2, [1])]
    part = states(Layout(), cells[-1:], one=True).bytes()
    blob = memory(head(1), cells).bytes() + part
    assert target.state_read(blob, 1) == 3
    assert target.state_write(1) == blob
    assert write_states(pool, 1) == part
    assert target.state_write(1, partial=True) == head(1).bytes() + part
    earlier = states(head(1), cells[1:2], one=True).bytes()
    assert target.state_read(earlier, 1, partial=True) == 1
    assert (target.seq_pos_max(1), target.used) == (1, 2)


def test_a_source_reads_to_its_end_and_no_further() -> None:
    source = Source(bytes(range(20)))
    assert bytes(source.take(3, "a")) == b"\0\1\2"
    assert (source.offset, source.left) == (3, 17)
    assert source.u32("b") == 0x06050403
    assert source.u64("c") == 0x0E0D0C0B0A090807
    assert source.rows(1, 2, "d").tolist() == [[15, 16]]
    with pytest.raises(Corrupt, match=r"e needs 4 bytes, and 3 are left \(offset 17\)"):
        source.array("<i4", 1, "e")
    assert bytes(source.take(3, "f")) == b"\x11\x12\x13"
    assert (source.left, bytes(source.take(0, "g"))) == (0, b"")
    with pytest.raises(Corrupt, match=r"h needs 1 bytes, and 0 are left \(offset 20\)"):
        source.take(1, "h")
