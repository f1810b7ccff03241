"""Bounds against hostile files: what is just allowed, and what is just too much."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import FileFormatError
from aleator.models import index
from aleator.models.config import ModelConfig
from aleator.models.files import fields
from aleator.models.files.fields import Fields, read_json
from aleator.models.files.gguf import GGUFFile
from aleator.models.state_space import checked_inner
from tests.models.builders import (
    array,
    entry,
    model_json,
    model_metadata,
    raw_gguf,
    string,
    tensor,
    write_gguf,
)

U32, U64, ARRAY = 4, 10, 9


def from_gguf(folder: Path, architecture: Any = "llama", **changes: Any) -> ModelConfig:
    """The configuration of a file without tensors; a dot in a field is written as two underscores."""
    metadata = model_metadata(architecture) | {f"{architecture}.vocab_size": 24}
    metadata |= {f"{architecture}.{key.replace('__', '.')}": v for key, v in changes.items()}
    file = GGUFFile(write_gguf(folder / "m.gguf", metadata, {}, architecture=architecture))
    return index.read_gguf(file)[1]


def from_json(**changes: Any) -> ModelConfig:
    return index.read_json(Fields("config.json", model_json(**changes)))[1]


WIDTH, HEAD, LENGTH = 1 << 24, 1 << 16, (1 << 31) - 1
SIZES = {"attention__key_length": 8, "attention__value_length": 8}
GGUF_LIMITS = {
    "layers": ("block_count", 1, 4096, {}),
    "vocabulary": ("vocab_size", 1, LENGTH, {}),
    "heads": ("attention__head_count", 1, WIDTH, SIZES | {"attention__head_count_kv": 1}),
    "head": ("attention__key_length", 2, HEAD, {"rope__dimension_count": 2}),
    "rotated": ("rope__dimension_count", 2, 8, {}),
}


@pytest.mark.parametrize("case", GGUF_LIMITS)
def test_sizes_in_gguf(tmp_path: Path, case: str) -> None:
    key, low, high, more = GGUF_LIMITS[case]
    for value in (low, high):
        from_gguf(tmp_path, **more | {key: value})
    for value in (0, high + 1):
        with pytest.raises(FileFormatError) as caught:
            from_gguf(tmp_path, **more | {key: value})
        assert caught.value.field == f"llama.{key.replace('__', '.')}"


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("rope__freq_base", 1.0, 1e30),
    ],
)
def test_numbers_in_gguf(tmp_path: Path, key: Any, low: float, high: float) -> None:
    # GGUF holds float32: a bit below the high bound, which no float32 may be.
    for value in (low, high * (1 - 1e-6)):
        from_gguf(tmp_path, **{key: value})
    for value in (low - 1e-3, high * 1.001):
        with pytest.raises(FileFormatError, match="between"):
            from_gguf(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("num_hidden_layers", 1, 4096),
        ("head_dim", 2, HEAD),
        ("rms_norm_eps", 0.0, 1.0),
    ],
)
def test_sizes_in_json(key: str, low: float, high: float) -> None:
    for value in (low, high):
        from_json(**{key: value})
    step = 1 if isinstance(low, int) else 1e-3
    for value in (low - step, high + step if high == 1.0 or step == 1 else high * 1.001):
        with pytest.raises(FileFormatError):
            from_json(**{key: value})


def test_rotary_scaling_in_json() -> None:
    def scaled(**values: float) -> ModelConfig:
        # Of an architecture that may rotate a share of the channels.
        scaling = {"rope_type": "linear", "factor": 2.0} | values
        return from_json(model_type="phi3", rope_scaling=scaling)

    assert scaled(factor=1.0).rope.factor == 1.0
    assert scaled(factor=1e6).rope.factor == 1e6
    assert scaled(partial_rotary_factor=0.25).rope.dim == 2
    for wrong in ({"factor": 0.999}, {"factor": 1e6 + 1}, {"partial_rotary_factor": 1.01},
                  {"partial_rotary_factor": 0.2}):  # fmt: skip
        with pytest.raises(FileFormatError):
            scaled(**wrong)
    yarn = {"rope_type": "yarn", "factor": 1.0, "beta_fast": 2.0, "beta_slow": 1.99}
    assert from_json(rope_scaling=yarn).rope.scaling == "yarn"
    with pytest.raises(FileFormatError, match="must exceed"):
        from_json(rope_scaling=yarn | {"beta_slow": 2.0})
    llama3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 1.1}
    assert from_json(rope_scaling=llama3).rope.scaling == "llama3"
    with pytest.raises(FileFormatError, match="must exceed"):
        from_json(rope_scaling=llama3 | {"high_freq_factor": 1.0})


def test_experts(tmp_path: Path) -> None:
    assert not from_gguf(tmp_path, expert_count=0).experts
    assert from_gguf(tmp_path, expert_count=2, expert_used_count=2).experts
    for wrong in ({}, {"expert_used_count": 0}, {"expert_used_count": 3}):
        with pytest.raises(FileFormatError, match="expert_used_count"):
            from_gguf(tmp_path, expert_count=2, **wrong)


def test_length_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fields._MAX_JSON == 1 << 26
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": "b"}))
    monkeypatch.setattr(fields, "_MAX_JSON", path.stat().st_size)
    assert read_json(path).values == {"a": "b"}
    path.write_text(json.dumps({"a": "bc"}))
    with pytest.raises(FileFormatError, match="bytes; at most"):
        read_json(path)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_value_of_another_type_is_shown_up_to_60_characters(extra: int) -> None:
    text = "x" * (58 + extra)  # and two quotation marks
    with pytest.raises(FileFormatError) as caught:
        Fields("config.json", {"n": text}).integer("n", 0, 1)
    shown = f"not '{'x' * 56}..." if extra else f"not '{text}'"
    assert str(caught.value).count(shown) == 1
    assert not extra or "x" * 57 not in str(caught.value)


@pytest.mark.parametrize(("value", "fits"), [(-1, False), (0, True), (9, True), (10, False)])
def test_both_ends_of_a_range(value: int, fits: bool) -> None:
    given = Fields("config.json", {"n": value})
    for ask in (given.integer, given.number):
        if fits:
            assert ask("n", 0, 9) == value
            continue
        with pytest.raises(FileFormatError, match="it must be between 0 and 9"):
            ask("n", 0, 9)


def opened(folder: Path, data: bytes) -> GGUFFile:
    (folder / "f.gguf").write_bytes(data)
    return GGUFFile(folder / "f.gguf")


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


@pytest.mark.parametrize(
    ("value", "fits"), [(0, False), (1, True), (24, False), (1 << 30, True), (1 << 31, False)]
)
def test_alignment(tmp_path: Path, value: int, fits: bool) -> None:
    data = raw_gguf([entry("general.alignment", U32, u32(value))])
    if fits:
        assert opened(tmp_path, data).alignment == value
        return
    with pytest.raises(FileFormatError) as caught:
        opened(tmp_path, data)
    assert caught.value.field == "general.alignment"


@pytest.mark.parametrize(("n", "fits"), [(0, False), (1, True), (4, True), (5, False)])
def test_dimensions(tmp_path: Path, n: int, fits: bool) -> None:
    data = raw_gguf(tensors=[tensor("t", [2] * n, n_dims=n)], data=bytes(4 * 2**n))
    if fits:
        assert opened(tmp_path, data).tensors["t"].shape == (2,) * n
        return
    with pytest.raises(FileFormatError, match="dimensions; 1 to 4"):
        opened(tmp_path, data)


def test_elements(tmp_path: Path) -> None:
    # Of an unknown type, so that nothing is known of its bytes.
    most = [1 << 31, (1 << 31) - 1]
    assert opened(tmp_path, raw_gguf(tensors=[tensor("t", most, kind=99)])).tensors["t"].shape
    for dims in ([1 << 31, 1 << 31], [0, 4]):
        with pytest.raises(FileFormatError, match="zero or too large"):
            opened(tmp_path, raw_gguf(tensors=[tensor("t", dims, kind=99)]))


def test_tensors_side_by_side(tmp_path: Path) -> None:
    pair = [tensor("a", [8], offset=0), tensor("b", [8], offset=32)]
    data = raw_gguf(tensors=pair, data=bytes(64))
    assert opened(tmp_path, data).stored("b").data.size == 32
    with pytest.raises(FileFormatError, match="cut short"):
        opened(tmp_path, data[:-1])
    with pytest.raises(FileFormatError, match="overlaps that of 'a'"):
        opened(tmp_path, raw_gguf(tensors=[tensor("a", [9]), pair[1]], data=bytes(96)))
    with pytest.raises(FileFormatError, match="not a multiple of 32"):
        opened(tmp_path, raw_gguf(tensors=[tensor("a", [8], offset=16)], data=bytes(96)))


def test_counts_are_compared_with_what_is_left(tmp_path: Path) -> None:
    def numbers(count: int, there: int) -> bytes:
        return raw_gguf([entry("n", ARRAY, array(U32, count, bytes(4 * there)))], alignment=1)

    assert opened(tmp_path, numbers(5, 5)).metadata["n"] == [0] * 5
    with pytest.raises(FileFormatError, match="claims 6 entries"):
        opened(tmp_path, numbers(6, 5))
    # Forty of the smallest entries, and of the smallest tensors, that there are.
    entries = [entry(chr(48 + i), 0, b"\1") for i in range(40)]
    assert len(opened(tmp_path, raw_gguf(entries, alignment=1)).metadata) == 40
    with pytest.raises(FileFormatError, match="claims 41 entries"):
        opened(tmp_path, raw_gguf(entries, n_entries=41, alignment=1))
    tensors = [string(chr(48 + i)) + u32(1) + struct.pack("<QIQ", 1, 99, 0) for i in range(40)]
    assert len(opened(tmp_path, raw_gguf(tensors=tensors)).tensors) == 40
    with pytest.raises(FileFormatError, match="claims 41 entries"):
        opened(tmp_path, raw_gguf(tensors=tensors, n_tensors=41))
    with pytest.raises(FileFormatError, match="is empty"):
        opened(tmp_path, raw_gguf([entry("", U32, u32(1))]))


@pytest.mark.parametrize(
    ("inner", "allowed"), [(0, False), (1, True), (WIDTH, True), (WIDTH + 1, False)]
)
def test_inner_channels_of_states(inner: int, allowed: bool) -> None:
    some = Fields("config.json", {"expand": 2})
    if allowed:
        assert checked_inner(some, inner) == inner
        return
    with pytest.raises(FileFormatError, match="inner channels; they must be 1 to"):
        checked_inner(some, inner)
