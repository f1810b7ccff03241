"""Session files whose sections were damaged and signed again: refused, or sound, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aleator import AleatorError, FileFormatError, Session
from aleator.cache import PrefixConfig
from aleator.cache.formats.state_file import read_state_file, write_state_file
from aleator.generate import Batch, Context
from aleator.generate.session import _session, load_session, save_session
from aleator.models.fingerprint import ModelIdentity
from tests.cache.decoders import decoder_of

MODEL = ModelIdentity("0" * 32, "m", "m.gguf")
TEXT = tuple(int(t) for t in np.random.default_rng(2).integers(0, 64, 40))


def context(name: str) -> Context:
    prefix = PrefixConfig(block=8, spacing=8)
    return Context(decoder_of(name), n_ctx=96, n_seq_max=2, type_v="f32", prefix=prefix)


def saved(name: str, path: Path) -> None:
    ctx = context(name)
    ctx.decode(Batch.one(TEXT))
    assert ctx.cache.keep(0, TEXT)
    ctx.cache.seq_rm(0)
    assert save_session(path, ctx, Session((*TEXT, 1), 30), MODEL) == len(TEXT)


def damaged(rng: np.random.Generator, data: bytes) -> bytes:
    kind = int(rng.integers(5))
    if kind == 0:
        return data[: int(rng.integers(len(data) + 1))]
    if kind == 1:
        return data + rng.bytes(int(rng.integers(1, 64)))
    if kind == 2:
        return rng.bytes(int(rng.integers(1, 12)))
    words = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        end = len(words) if kind == 3 else min(300, len(words))
        at = int(rng.integers(max(1, end // 4))) * 4  # numbers are aligned
        words[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\0\0\x80\x7f", b"\0\0\0\0"])
    return bytes(words)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "jamba"])
def test_damaged_sections_signed_again(name: str, tmp_path: Path) -> None:
    path, other = tmp_path / "a.state", tmp_path / "b.state"
    saved(name, path)
    state = read_state_file(path)
    sections: dict[str, Any] = {key: bytes(data) for key, data in state.sections.items()}
    rng = np.random.default_rng(4)
    outcomes = {"refused": 0, "computed anew": 0, "restored": 0}
    for trial in range(120):
        which = str(rng.choice(list(sections)))
        write_state_file(other, state.header, {**sections, which: damaged(rng, sections[which])})
        ctx = context(name)
        try:
            session = load_session(other, ctx, MODEL)
        except AleatorError:
            outcomes["refused"] += 1
            assert ctx.cache.used == 0
            continue
        outcomes["restored" if session.restored else "computed anew"] += 1
        ctx.cache.check()
        held = ctx.cache.reuse(0, session.tokens)
        rows = ctx.decode(Batch.one(session.tokens[held:]))
        assert np.isfinite(rows).all(), (trial, which)
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_rotations_of_no_cells(name: str, tmp_path: Path) -> None:
    """A model of states alone has no keys that could be rotated."""
    path = tmp_path / "a.state"
    saved(name, path)
    state = read_state_file(path)
    sections: dict[str, Any] = {key: bytes(data) for key, data in state.sections.items()}
    write_state_file(path, state.header, {**sections, "turned": b"\1\2\3\4"})
    session = load_session(path, context(name), MODEL)
    assert session.restored == 0
    assert "rotated to does not fit" in session.why_not


def test_a_save_that_is_broken_off_leaves_rotations_and_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context("llama")
    ctx.decode(Batch.one(TEXT))
    left = [*TEXT[:4], *TEXT[12:]]
    ctx.cache.seq_rm(0, 4, 12)
    ctx.cache.seq_add(0, 12, -1, -8)
    ctx.cache.keep(0, left)
    ctx.cache.seq_rm(0)
    before = ctx.cache.key_positions.copy()
    assert (before != ctx.cache.cells.positions).any()

    def interrupted(*_: Any, **__: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("aleator.generate.session.llama.write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_session(tmp_path / "s", ctx, Session(tuple(left), 10, 1), MODEL)
    np.testing.assert_array_equal(ctx.cache.key_positions, before)
    assert ctx.cache.seq_pos_max(0) == -1
    assert ctx.cache.journal.current is None
    monkeypatch.undo()
    assert save_session(tmp_path / "s", ctx, Session(tuple(left), 10, 1), MODEL) == len(left)
    np.testing.assert_array_equal(ctx.cache.key_positions, before)


SOUND: dict[str, Any] = {"kind": "session", "format": 2, "held": 3, "n_prompt": 2, "extra": {}}


def read(tokens: list[int] | bytes, **header: Any) -> Session:
    """What is read of a file with three tokens or others, of a vocabulary of ten."""
    data = tokens if isinstance(tokens, bytes) else np.array(tokens, "<i4").tobytes()
    state: Any = SimpleNamespace(
        name="s", header=SOUND | header, sections={"tokens": data, "rows": b"", "chain": b"c"}
    )
    return _session(state, 10)


def test_just_what_a_file_may_say() -> None:
    made = read([0, 9, 0], seed=None, forgotten=[])
    assert made == Session((0, 9, 0), 2, chain=b"c")
    adapted = read([1, 2, 3], format=3, adapters={"a": 0.5}).adapters
    assert [each[:2] for each in adapted] == [("a", 0.5)]
    headers: list[dict[str, Any]] = [
        {"held": 0}, {"n_prompt": 0}, {"n_prompt": 3}, {"seed": 0}, {"seed": 2**64 - 1},
        {"forgotten": [[0, 1]], "held": 2}, {"forgotten": [[0, 2], [0, 1]], "held": 0},
        {"forgotten": [[2, 1]], "held": 2}, {"forgotten": [[1, 2]], "held": 1},
    ]  # fmt: skip
    for header in headers:
        told = read([1, 2, 3], **header)
        assert (told.n_prompt, told.seed) == (header.get("n_prompt", 2), header.get("seed"))
        assert told.forgotten == tuple(map(tuple, header.get("forgotten", [])))
    assert read([], held=0, n_prompt=0).tokens == ()


@pytest.mark.parametrize(
    ("tokens", "header", "field", "said"),
    [
        ([0, 10], {}, "tokens", "outside the vocabulary of 10"),
        (b"12345", {}, "tokens", "end within a number"),
        ([1, 2, 3], {"held": 4}, "held", "held is 4, with 3 tokens"),
        ([1, 2, 3], {"n_prompt": 4}, "n_prompt", "n_prompt is 4, with 3 tokens"),
        ([1, 2, 3], {"n_prompt": True}, "n_prompt", "n_prompt is True"),
        ([1, 2, 3], {"seed": 2**64}, "seed", "seed is"),
        ([1, 2, 3], {"seed": True}, "seed", "seed is True"),
        ([1, 2, 3], {"forgotten": [[0, 1]]}, "held", "held is 3, with 2 tokens"),
        ([1, 2, 3], {"forgotten": [[0, 4]]}, "forgotten", "with 3 tokens"),
        ([1, 2, 3], {"forgotten": [[3, 1]]}, "forgotten", "with 3 tokens"),
        ([1, 2, 3], {"forgotten": [[0, 2], [0, 2]]}, "forgotten", "with 3 tokens"),
        ([1, 2, 3], {"forgotten": [[0, 0]]}, "forgotten", "with 3 tokens"),
        ([1, 2, 3], {"forgotten": [[0, 1.0]]}, "forgotten", "with 3 tokens"),
        ([1, 2, 3], {"extra": None}, "extra", "is not an object"),
        ([1, 2, 3], {"format": 4}, "format", "is of format 4, and this version reads 2"),
        ([1, 2, 3], {"kind": "state"}, "kind", "is not a session"),
        ([1, 2, 3], {"adapters": {"a": "b"}}, "adapters", "adapters"),
    ],
)
def test_just_what_a_file_may_not_say(
    tokens: Any, header: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(FileFormatError, match=said) as refused:
        read(tokens, **header)
    assert refused.value.field == field
