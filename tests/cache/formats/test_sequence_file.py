"""Sequences saved and loaded by their handles."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from aleator import LanguageModel
from aleator.cache import PrefixConfig
from aleator.cache.formats.state_file import pack_state, read_state_file, write_state_file
from aleator.core.errors import CacheFull, FileFormatError, Incompatible, ParameterError
from aleator.generate import Batch, Context

TOKENS = [5, 9, 14, 3, 200, 7]


def context(model: LanguageModel, n_ctx: int = 64, type_k: str = "f16") -> Context:
    return Context(model, n_ctx=n_ctx, n_seq_max=3, type_k=type_k, prefix=PrefixConfig(4, 4))


@pytest.fixture
def saved(model: LanguageModel) -> bytes:
    ctx = context(model)
    text = ctx.cache.sequence()
    ctx.decode(Batch.one(TOKENS, seq=text.id))
    data = text.save(tokens=TOKENS, model="m")
    assert data is not None
    return data


def test_what_is_loaded_goes_on_alike(model: LanguageModel, saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text.state"
    path.write_bytes(saved)
    fresh = context(model)
    fresh.decode(Batch.one([1, 2], seq=0))
    expected = fresh.decode(Batch.one([*TOKENS, 8], seq=1)).copy()
    for source in (saved, path, str(path)):
        ctx = context(model)
        ctx.decode(Batch.one([1, 2, 3], seq=2))
        text = ctx.cache.sequence()
        assert text.load(source, model="m") == (tuple(TOKENS), len(TOKENS))
        assert text.save(tokens=TOKENS, model="m") == saved
        rows = ctx.decode(Batch.one([8], seq=text.id))
        assert np.abs(rows - expected).max() < 1e-3 * np.ptp(expected)
        assert ctx.cache.seq_pos_max(2) == 2


def test_a_handle_keeps_and_adopts(model: LanguageModel) -> None:
    ctx = context(model)
    with ctx.cache.sequence() as text:
        ctx.decode(Batch.one(TOKENS, seq=text.id))
        assert text.keep(TOKENS)
    other = ctx.cache.sequence()
    match = other.match([*TOKENS, 1])
    assert match.length == len(TOKENS)
    other.reuse_prefix(match)
    assert len(other) == len(TOKENS)


def test_what_does_not_fit_changes_nothing(
    model: LanguageModel, saved: bytes, tmp_path: Path
) -> None:
    ctx = context(model)
    text = ctx.cache.sequence()
    ctx.decode(Batch.one([4, 4, 4], seq=text.id))
    before = text.save()
    with pytest.raises(Incompatible, match="model"):
        text.load(saved, model="other")
    for damaged in (saved[:-70], saved[:200], b"", b"GGUF", bytes(len(saved))):
        with pytest.raises(FileFormatError):
            text.load(damaged)
    state = read_state_file(saved)
    sections = {name: bytes(view) for name, view in state.sections.items()}
    for header, change in (
        ({"next": 4}, {"tokens": b""}),
        ({"next": 3}, {"tokens": b"", "rows": struct.pack("<IiII", 0xAF143CD8, 0, 1, 0)}),
        ({"next": "x"}, {}),
        ({"kind": "session"}, {}),
        ({}, {"tokens": b"1234"}),
        ({}, {"tokens": b"\xff" * 24}),
    ):
        name = tmp_path / "x"
        write_state_file(name, {**state.header, **header}, {**sections, **change})
        with pytest.raises(FileFormatError):
            text.load(name)
    assert text.save() == before
    f32 = context(model, type_k="f32").cache.sequence()
    with pytest.raises(Incompatible, match="type"):
        f32.load(saved)
    small = context(model, n_ctx=4).cache.sequence()
    with pytest.raises(CacheFull):
        small.load(saved)


def test_keys_of_another_arithmetic_are_refused(model: LanguageModel, saved: bytes) -> None:
    state = read_state_file(saved)
    older = {name: value for name, value in state.header.items() if name != "arithmetic"}
    for data in (saved, b"".join(pack_state(older, state.sections))):
        ctx = context(model)
        assert ctx.cache.sequence().load(data).usable == len(TOKENS)
        ctx.cache.arithmetic = 3
        with pytest.raises(Incompatible, match="version 2 of the decoder's arithmetic, this is 3"):
            ctx.cache.sequence().load(data)
        assert ctx.cache.seq_pos_max(1) == -1


def test_refuses_to_save(model: LanguageModel) -> None:
    ctx = context(model)
    text = ctx.cache.sequence()
    with pytest.raises(ParameterError, match="empty"):
        text.save()
    ctx.decode(Batch.one([4, 4, 4], seq=text.id))
    with pytest.raises(ParameterError, match="all or none"):
        text.save(tokens=[1])
