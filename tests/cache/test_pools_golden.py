"""Window and recurrent caches against llama.cpp: positions, answers, logits, states (tools/golden_cache.py)."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, Spec, write_model

from aleator.core.errors import CannotRewind, Corrupt, Incompatible
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden_pools.npz", allow_pickle=False)
GEMMA3 = replace(
    SPECS["gemma3"], n_layers=2, pattern=2, n_heads=2, n_kv_heads=1, head_dim=8, context=1024
)
MAMBA = replace(SPECS["mamba"], n_embd=16, d_state=4, d_conv=3, dt_rank=2)
TEXT = [int(t) for t in np.random.default_rng(7).integers(0, 64, 304)]
TOLERANCE = 1e-4  # of the range; see tests/models/test_golden.py


def context(folder: Path, spec: Spec) -> Any:
    path = write_model(folder / "m.gguf", spec)
    return Context(
        build_decoder(open_weights(path)),
        n_ctx=1024,
        n_ubatch=16,
        n_seq_max=4,
        type_k="f32",
        type_v="f32",
        flash_attn=False,
    )


def golden(name: str) -> bytes:
    return bytes(GOLDEN[name].tobytes())


def close(ours: Any, name: str) -> bool:
    theirs = GOLDEN[name]
    return bool(np.abs(ours - theirs).max() < TOLERANCE * np.ptp(theirs))


def test_window_positions_and_logits(tmp_path: Path) -> None:
    ctx, at, ranges = context(tmp_path, GEMMA3), 0, []
    for end in (16, 240, 256, 257, 260, 300):
        while at < end:
            n = min(16, end - at)
            logits = ctx.decode(Batch.one(TEXT[at : at + n], at))
            at += n
        ranges.append([ctx.cache.seq_pos_min(0), ctx.cache.seq_pos_max(0)])
    assert ranges == GOLDEN["gemma3/ranges"].tolist()
    assert close(logits, "gemma3/logits")
    ours = ctx.cache.state_write(0), ctx.cache.state_write()
    theirs = golden("gemma3/sequence"), golden("gemma3/whole")
    for a, b in zip(ours, theirs, strict=True):
        assert len(a) == len(b)
        assert _without_floats(a) == _without_floats(b)
    ctx.cache.seq_rm(0, 290, -1)
    assert close(ctx.decode(Batch.one([TEXT[300]], 290)), "gemma3/rewound")


def _without_floats(blob: bytes) -> list[int]:
    """What is not a key or a value: numbers below a million at places where no float of this size lies."""
    words = np.frombuffer(blob[len(blob) % 4 :], "<u4")
    return [int(w) for w in words if w < 1_000_000]


@pytest.mark.parametrize("seq", [0, -1])
def test_window_states_are_read_and_written_alike(tmp_path: Path, seq: int) -> None:
    ctx = context(tmp_path, GEMMA3)
    blob = golden("gemma3/whole" if seq < 0 else "gemma3/sequence")
    assert ctx.cache.state_read(blob, seq) == 300
    assert ctx.cache.state_write(seq) == blob
    ctx.cache.check()
    ctx.cache.seq_rm(0, 299, -1)  # the window then begins at 292, which a sequence's state has
    assert close(ctx.decode(Batch.one([TEXT[299]], 299)), "gemma3/logits")


def test_partial_states_are_checkpoints(tmp_path: Path) -> None:
    """A sequence's state less its first part is what llama.cpp writes with PARTIAL_ONLY."""
    ctx = context(tmp_path, GEMMA3)
    blob = golden("gemma3/sequence")
    ctx.cache.state_read(blob, 0)
    part = ctx.cache.state_write(0, partial=True)
    assert part[:8] == blob[:8]
    assert blob.endswith(part[8:])
    assert len(part) * 10 < len(blob)
    for _ in range(20):
        ctx.decode(Batch.one(TEXT[:16], None, 0))
    with pytest.raises(CannotRewind):
        ctx.cache.seq_rm(0, 299, -1)
    assert ctx.cache.state_read(part, 0, partial=True) == 8
    ctx.cache.check()
    assert (ctx.cache.seq_pos_min(0), ctx.cache.seq_pos_max(0)) == (292, 299)
    assert ctx.cache.used == 300
    ctx.cache.seq_rm(0, 299, -1)
    assert close(ctx.decode(Batch.one([TEXT[299]], 299)), "gemma3/logits")
    before = ctx.cache.state_write()
    with pytest.raises(CannotRewind, match="does not hold position 299"):
        ctx.cache.state_read(part, 1, partial=True)
    for cut in range(0, len(part), 37):
        with pytest.raises((Corrupt, Incompatible)):
            ctx.cache.state_read(part[:cut], 0, partial=True)
    assert ctx.cache.state_write() == before


def test_a_restored_window_rewinds_as_far_as_it_holds(tmp_path: Path) -> None:
    ctx = context(tmp_path, GEMMA3)
    ctx.cache.state_read(golden("gemma3/sequence"), 2)
    with pytest.raises(CannotRewind) as caught:
        ctx.cache.seq_rm(2, 250, -1)
    assert caught.value.oldest_legal == 299


def test_recurrent_truth_table(tmp_path: Path) -> None:
    ctx, ranges = context(tmp_path, MAMBA), []
    cache = ctx.cache

    def note() -> None:
        ranges.append([[cache.seq_pos_min(s), cache.seq_pos_max(s)] for s in range(4)])

    ctx.decode(Batch.one(TEXT[:10]))
    ctx.decode(Batch.one(TEXT[10:14], seq=1))
    assert cache.state_write() != golden("mamba/whole")  # rounding; but the same to a float's end:
    for blob, name in ((cache.state_write(), "whole"), (cache.state_write(0), "sequence")):
        ours, theirs = (np.frombuffer(b, np.uint8) for b in (blob, golden(f"mamba/{name}")))
        assert len(ours) == len(theirs)
    answers = []
    for p0, p1 in ((0, 5), (3, 6), (5, -1), (9, -1), (10, -1)):
        try:
            answers.append(cache.seq_rm(0, p0, p1))
        except CannotRewind:
            answers.append(False)
        note()
    cache.seq_cp(0, 2)
    cache.seq_cp(0, 3)
    note()
    cache.seq_add(0, 0, -1, -4)
    note()
    assert close(ctx.decode(Batch.one([TEXT[20]], 6, 2)), "mamba/diverged")
    note()
    cache.seq_keep(2)
    note()
    assert answers == GOLDEN["mamba/answers"].tolist()
    assert ranges == GOLDEN["mamba/ranges"].tolist()


@pytest.mark.parametrize("seq", [0, -1])
def test_recurrent_states_are_read_and_written_alike(tmp_path: Path, seq: int) -> None:
    ctx = context(tmp_path, MAMBA)
    blob = golden("mamba/whole" if seq < 0 else "mamba/sequence")
    assert ctx.cache.state_read(blob, seq) == (2 if seq < 0 else 1)
    assert ctx.cache.state_write(seq) == blob
    ctx.cache.check()
    ctx.cache.seq_add(0, 0, -1, -4)
    assert close(ctx.decode(Batch.one([TEXT[20]], 6, 0)), "mamba/diverged")
    if seq == 0:
        assert ctx.cache.state_write(0, partial=True) == ctx.cache.state_write(0)
    session = ctx.cache.session_write(TEXT[:10], seq)
    assert ctx.cache.session_read(session, seq) == TEXT[:10]


def test_windows_freed_and_used_again_in_a_block_come_back(tmp_path: Path) -> None:
    ctx = context(tmp_path, GEMMA3)
    for start in range(0, 304, 16):
        ctx.decode(Batch.one(TEXT[start : start + 16], start))
    before = ctx.cache.state_write()
    with ctx.cache.step() as step:
        ctx.cache.seq_rm(0)
        for start in range(0, 288, 16):
            ctx.decode(Batch.one(TEXT[start : start + 16], start, 1))
        assert ctx.cache.state_write() != before
        step.cancel()
    assert ctx.cache.state_write() == before
    ctx.cache.check()


def test_shared_cells_do_not_keep_the_pool_full(tmp_path: Path) -> None:  # [L≠] study T10 (b)
    # llama.cpp uses cells of several sequences never again: it has no room for the last batch here, and has
    # by then dropped positions 0 to 99 of sequence 0.
    ctx = context(tmp_path, GEMMA3)

    def feed(seqs: list[int], start: int, end: int) -> Any:
        batch = Batch()
        for i in range(start, end):
            batch.add(TEXT[i % 300], i, seqs)
        return ctx.decode(batch)

    feed([1, 2], 0, 100)
    feed([0], 0, 100)
    feed([3], 0, 10)
    feed([0], 100, 146)
    ctx.cache.seq_rm(3)
    batch = Batch()
    for i in range(146, 162):
        batch.add(TEXT[i], i, [0])
    for i in range(100, 340):
        batch.add(TEXT[i % 300], i, [1, 2])
    row = ctx.decode(batch)
    ctx.cache.check()
    assert [ctx.cache.cells.seq_cells(s) for s in range(4)] == [162, 340, 340, 0]
    assert [ctx.cache.seq_pos_max(s) for s in range(4)] == [161, 339, 339, -1]
    fresh = context(tmp_path, GEMMA3)
    for start in range(0, 340, 16):
        texts = [TEXT[i % 300] for i in range(start, min(start + 16, 340))]
        expected = fresh.decode(Batch.one(texts, start))
    assert np.abs(row - expected).max() < TOLERANCE * float(np.ptp(expected))


@pytest.mark.parametrize("name", ["gemma3", "mamba"])
def test_empty_states_do_what_they_do_there(tmp_path: Path, name: str) -> None:
    ctx = context(tmp_path, GEMMA3 if name == "gemma3" else MAMBA)
    cache = ctx.cache
    one, whole = golden(f"{name}/empty sequence"), golden(f"{name}/empty whole")
    assert cache.state_write(1) == one
    assert cache.state_write() == whole
    for seq in (0, 1):
        ctx.decode(Batch.one([1] * 4, seq=seq))
    ranges = []
    for blob, seq in ((one, 1), (whole, -1)):
        cache.state_read(blob, seq)
        cache.check()
        ranges.append([[cache.seq_pos_min(s), cache.seq_pos_max(s)] for s in range(4)])
    assert ranges == GOLDEN[f"{name}/empty ranges"].tolist()


def test_a_state_whose_window_is_ahead_of_the_rest(tmp_path: Path) -> None:
    ctx = context(tmp_path, GEMMA3)
    ctx.decode(Batch.one(TEXT[:5]))
    short = ctx.cache.state_write(0)
    ctx.decode(Batch.one(TEXT[5:7]))
    long = ctx.cache.state_write(0)
    # The first memory of one, the window of the other: each is the whole of what it says it is.
    cells = [struct.unpack_from("<I", b, 12)[0] for b in (short, long)]
    assert cells == [5, 7]
    ends = [len(b) // 2 + 4 for b in (short, long)]  # the head is 8 bytes, the halves alike
    for mixed in (short[: ends[0]] + long[ends[1] :], long[: ends[1]] + short[ends[0] :]):
        with pytest.raises(Corrupt, match="window"):
            ctx.cache.state_read(mixed, 1)
    nothing = golden("gemma3/empty sequence")
    with pytest.raises(Corrupt, match="window"):
        ctx.cache.state_read(nothing[:16] + long[ends[1] :], 1)
    assert ctx.cache.state_write(0) == long
    assert ctx.cache.seq_pos_max(1) == -1
    ctx.cache.check()


@pytest.mark.parametrize("name", ["gemma3", "mamba"])
def test_damaged_states_change_nothing(tmp_path: Path, name: str) -> None:
    ctx = context(tmp_path, GEMMA3 if name == "gemma3" else MAMBA)
    ctx.decode(Batch.one(TEXT[:20], seq=0))
    before = ctx.cache.state_write()
    blob = golden(f"{name}/sequence")
    rng = np.random.default_rng(1)
    cuts = [*range(0, 200, 7), *rng.integers(0, len(blob), 40).tolist()]
    for cut in cuts:
        with pytest.raises((Corrupt, Incompatible)):
            ctx.cache.state_read(blob[:cut], 1)
    for bad in (blob + b"\0", b"\0" * len(blob), blob[:8] + struct.pack("<I", 2**31) + blob[12:]):
        with pytest.raises((Corrupt, Incompatible)):
            ctx.cache.state_read(bad, 1)
    for at in rng.integers(0, 200, 200).tolist():
        changed = bytearray(blob)
        changed[at] ^= int(rng.integers(1, 256))
        try:
            ctx.cache.state_read(bytes(changed), 1)
        except (Corrupt, Incompatible, CannotRewind):
            pass
        else:
            ctx.cache.seq_rm(1)
        ctx.cache.check()
    assert ctx.cache.state_write() == before
