"""States of llama.cpp that are refused, with nothing changed: of other caches, damaged, or hostile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aleator.cache import KVCache
from aleator.cache.storage.layer import HostLayer
from aleator.core.errors import AleatorError, CacheFull, Corrupt, Incompatible, ParameterError
from aleator.generate import Context
from tests.cache.caches import decode
from tests.cache.formats.test_llama import BLOCKS, CASES, context, golden, snapshot, text_of


def unchanged(ctx: Context, error: type[AleatorError], call: Callable[[], object]) -> Any:
    """The error that the call raises, nothing having changed."""
    before = snapshot(ctx)
    with pytest.raises(error) as caught:
        call()
    assert snapshot(ctx) == before
    ctx.cache.cells.check()
    return caught.value


def test_more_cells_than_there_are() -> None:  # study T15
    big = context(n_ctx=512)
    decode(big, *((1, i, [0]) for i in range(350)))
    ctx = context()
    decode(ctx, *((1, i, [0]) for i in range(10)))
    decode(ctx, *((1, i, [1]) for i in range(10)))
    unchanged(ctx, CacheFull, lambda: ctx.state_read(big.state_write()))
    unchanged(ctx, CacheFull, lambda: ctx.cache.state_read(big.cache.state_write(0), seq=1))
    big.cache.seq_rm(0, 100, -1)
    blob = big.cache.state_write(0)
    decode(ctx, *((1, i, [1]) for i in range(10, 186)))
    error = unchanged(ctx, CacheFull, lambda: ctx.cache.state_read(blob, seq=0))
    assert (error.needed, error.free) == (100, 70)
    assert big.state_read(ctx.state_write()) == 196  # a larger cache takes it


def test_states_of_other_models_and_kinds() -> None:
    ctx = context()
    whole, one = golden(CASES[0], "whole"), golden(CASES[0], "sequence")

    def refused(error: type[AleatorError], blob: bytes, seq: int = -1) -> Any:
        return unchanged(ctx, error, lambda: ctx.state_read(blob, seq))

    assert refused(Incompatible, whole.replace(b"llama", b"mamba")).field == "architecture"
    assert refused(Incompatible, one).field == "kind"
    assert refused(Corrupt, whole, 1).offset == 0
    streams = whole[:9] + struct.pack("<I", 4) + whole[13:]
    assert refused(Incompatible, streams).field == "n_stream"
    wide = golden(CASES[4], "whole")
    ctx = context({**CASES[0], "type_k": "q8_0", "type_v": "f16", "flash": False})
    assert refused(Incompatible, wide).field == "k row bytes"
    with pytest.raises(ParameterError, match="seq must lie in"):
        ctx.state_read(one, 4)
    with pytest.raises(ParameterError, match="format must be"):
        ctx.state_write(format="json")
    session, file = golden(CASES[0], "session"), golden(CASES[0], "sequence file")
    ctx = context()
    for data, seq in ((session, 0), (file, -1)):
        with pytest.raises(Incompatible, match="kind"):
            ctx.cache.session_read(data, seq)
    old = session[:4] + struct.pack("<I", 9) + session[8:]
    with pytest.raises(Incompatible, match="version is 9, not 10"):
        ctx.cache.session_read(old)
    with pytest.raises(Corrupt, match="tokens"):
        ctx.cache.session_read(session[:8] + b"\xff\xff\xff\x0f" + session[12:])


def test_damaged_states_at_every_byte_of_the_head_and_cut_anywhere() -> None:
    case = CASES[2]
    ctx = context(case)
    decode(ctx, *((t, i, [0]) for i, t in enumerate(text_of(5))))
    whole, one = golden(case, "whole"), golden(case, "sequence")
    before = snapshot(ctx)
    for blob, seq in ((whole, -1), (one, 1)):
        for end in [*range(200), *range(200, len(blob), 37), len(blob) - 1]:
            with pytest.raises((Corrupt, Incompatible)):
                ctx.state_read(blob[:end], seq)
        with pytest.raises(Corrupt, match="1 bytes follow"):
            ctx.state_read(blob + b"\0", seq)
    assert snapshot(ctx) == before
    rng = np.random.default_rng(0)
    refused = 0
    for i in range(1500):
        blob, seq = ((whole, -1), (one, 1))[i % 2]
        damaged = bytearray(blob)
        for _ in range(int(rng.integers(1, 4))):
            damaged[int(rng.integers(0, 260))] = int(rng.choice([0, 1, 127, 128, 255]))
        try:
            ctx.state_read(bytes(damaged), seq)
        except (Corrupt, Incompatible, CacheFull):
            refused += 1
            assert snapshot(ctx) == before
        else:  # damage that is another sound state: an owner, a position, a stored value
            ctx.cache.cells.check()
            ctx.cache.clear()
            decode(ctx, *((t, i, [0]) for i, t in enumerate(text_of(5))))
            before = snapshot(ctx)
    assert refused > 700


FLOATS: list[tuple[str, npt.DTypeLike]] = [("f32", "<f4"), ("f16", "<f2"), ("bf16", "<u2")]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [*(name for name, _ in FLOATS), *BLOCKS])
@pytest.mark.parametrize("by_channel", [False, True])
def test_rows_that_are_not_finite_are_refused(kind: str, bad: float, by_channel: bool) -> None:
    if by_channel and kind in BLOCKS:
        pytest.skip("blocks lie along a token's channels")
    options: dict[str, Any] = {"type_k": kind, "type_v": kind, "flash_attn": not by_channel}
    arch = {"arch": "llama", "head_dim": 64, **options, "flash": not by_channel}
    ctx = context(arch, **options)
    decode(ctx, *((t, i, [0]) for i, t in enumerate(text_of(5))))
    cells, cache = np.array([3]), ctx.cache
    number = np.array([bad], "<f4")
    half = number.astype("<f2").view(np.uint8)
    raw = {"f32": number.view(np.uint8), "bf16": number.view(np.uint8)[2:]}.get(kind, half)
    for name, side in (("k", cache.keys), ("v", cache.values)):
        for layer in range(len(cache.shapes)):
            size = side.type.block_bytes
            for offset in side.type.scales:
                sound = side.parts[layer].bytes_of(cells)
                broken = sound.copy()
                flat = broken.reshape(-1)
                at = len(flat) - size + offset  # in the last block
                flat[at : at + len(raw)] = raw
                side.parts[layer].put_bytes(cells, broken)
                whole, one = cache.state_write(), cache.state_write(seq=0)
                session = cache.session_write([1, 2], 0)
                side.parts[layer].put_bytes(cells, sound)
                match = f"{name} of layer {layer} holds NaN or an infinity"
                for read in (
                    partial(cache.state_read, whole),
                    partial(cache.state_read, one, 1),
                    partial(cache.session_read, session, 1),
                ):
                    assert match in str(unchanged(ctx, Corrupt, read))
    assert cache.state_read(cache.state_write()) == 5


@pytest.mark.parametrize("seq", [-1, 1])
def test_a_failure_in_the_middle_changes_nothing(seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[1]
    blob = golden(case, "whole" if seq < 0 else "sequence")
    original = HostLayer.put_bytes
    for call in range(1, 5):
        for error in (MemoryError, KeyboardInterrupt):
            ctx = context(case)
            decode(ctx, *((t, i, [1]) for i, t in enumerate([3, 1, 4, 1])))
            count = 0

            def put(self: HostLayer, *args: Any, e: Any = error, at: int = call) -> None:
                nonlocal count
                count += 1
                if count == at:
                    raise e
                original(self, *args)

            before = snapshot(ctx)
            with monkeypatch.context() as patch:
                patch.setattr(HostLayer, "put_bytes", put)
                with pytest.raises(error):
                    ctx.state_read(blob, seq)
            assert snapshot(ctx) == before
            ctx.cache.cells.check()
            ctx.state_read(blob, seq)


@pytest.mark.parametrize(
    ("position", "sound"), [(100, True), (2**31 - 2, True), (2**31 - 1, False)]
)
def test_positions_of_a_state_are_bounded(position: int, sound: bool) -> None:
    cache, other = (KVCache([], 8, n_seq_max=2) for _ in range(2))
    with cache.step() as step:
        step.place(np.array([77], np.int32), np.zeros(1, np.int32), np.ones((1, 1), np.uint64))
    blob = cache.state_write(0)
    changed = blob.replace(struct.pack("<i", 77), struct.pack("<i", position))
    assert changed != blob
    if sound:
        other.state_read(changed, 0)
        assert other.seq_pos_max(0) == position
    else:
        with pytest.raises(Corrupt, match="position"):
            other.state_read(changed, 0)


def test_a_whole_state_with_more_sequences_is_refused() -> None:
    two, one = KVCache([], 8, n_seq_max=2), KVCache([], 8)
    with two.step() as step:
        step.place(np.zeros(1, np.int32), np.ones(1, np.int32), np.full((1, 1), 2, np.uint64))
    with pytest.raises(Incompatible) as error:
        one.state_read(two.state_write())
    assert (error.value.field, error.value.want) == ("n_seq_max", 1)
