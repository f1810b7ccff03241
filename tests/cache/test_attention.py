"""Attention over the cache: types, layouts, who sees what, and cells that must not be read."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_models import SPECS, write_model

from aleator.cache.rows.tensors import CellTensors
from aleator.core.errors import InvalidBatch
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from aleator.models.layers.attention import attend
from tests.cache.caches import decode

Row = tuple[int, int, Sequence[int]]
BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
KINDS = ("f32", "f16", "bf16", *BLOCKS)


@functools.cache
def decoder_of(name: str, head_dim: int = 64, layers: int = 2) -> Decoder:
    spec = replace(
        SPECS[name], n_heads=4, n_kv_heads=2, head_dim=head_dim, n_layers=layers, n_embd=128
    )
    with tempfile.TemporaryDirectory() as folder:
        weights = open_weights(write_model(Path(folder) / "m.gguf", spec))
        return build_decoder(weights)


def context(decoder: Decoder, native: bool, **options: Any) -> Context:
    if not native:
        decoder = build_decoder(decoder.weights, form="torch")
    return Context(decoder, **{"n_ctx": 96, "n_seq_max": 3, **options})


def apart(a: Any, b: Any) -> float:
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / (b.max() - b.min()))


def edited(ctx: Context) -> list[Any]:
    """Logits of a text that is cut, shifted, shared and divided."""
    text = np.random.default_rng(1).integers(0, 64, 60).tolist()
    out = [decode(ctx, *((t, i, [0]) for i, t in enumerate(text[:40])))]
    ctx.cache.seq_rm(0, 3, 12)
    ctx.cache.seq_add(0, 12, -1, -9)
    ctx.cache.seq_cp(0, 1)
    out.append(decode(ctx, (5, 31, [0]), (8, 31, [1]), (7, 0, [2])))
    ctx.cache.seq_rm(1, 20, -1)
    ctx.cache.seq_add(0, 25, -1, 4)
    out.append(decode(ctx, *((t, 36 + i, [0]) for i, t in enumerate(text[40:52]))))
    ctx.cache.seq_div(0, 4, 20, 3)
    out.append(decode(ctx, (2, 48, [0]), (6, 1, [2])))
    return out


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "dim"), [("llama", 64), ("llama-yarn", 128), ("qwen3", 32)])
def test_native_and_torch_layers_agree(name: str, dim: int, kind: str, flash_attn: bool) -> None:
    types: dict[str, Any] = {"type_k": kind, "type_v": kind, "flash_attn": flash_attn}
    decoder = decoder_of(name, dim)
    native, layers = context(decoder, True, **types), context(decoder, False, **types)
    blocks = kind in BLOCKS
    assert native.cache.values.by_channel == (not flash_attn and not blocks)
    # Rounding to the cache's type may go the other way where float32 sums differ in their last bit.
    limit = {"f32": 1e-5, "f16": 5e-4, "bf16": 4e-3, "q8_0": 5e-3, "q5_0": 0.03, "q5_1": 0.03}.get(
        kind, 0.06
    )
    for a, b in zip(edited(native), edited(layers), strict=True):
        assert apart(a, b) < limit


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("native", [True, False])
def test_raw_keys_give_the_same(native: bool, kind: str) -> None:
    decoder = decoder_of("llama-yarn")
    types: dict[str, Any] = {"type_k": kind, "type_v": "f32"}
    rotated = edited(context(decoder, native, **types))
    raw = edited(context(decoder, native, k_storage="raw", **types))
    for a, b in zip(raw, rotated, strict=True):
        assert apart(a, b) < {"f32": 1e-5, "f16": 1e-3, "q8_0": 0.02}[kind]


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False])
def test_rubbish_in_free_cells_is_never_read(native: bool, kind: str, flash_attn: bool) -> None:
    """Study S9: free cells hold NaN, or random bytes."""

    def run(poison: bool) -> list[Any]:
        ctx = context(
            decoder_of("llama"), native, n_ubatch=4, flash_attn=flash_attn, type_k=kind, type_v=kind
        )
        out = []

        def step(*rows: Row) -> None:
            if poison:
                free = np.flatnonzero(ctx.cache.cells.positions < 0)
                for part in ctx.cache.keys.parts + ctx.cache.values.parts:
                    held = part.bytes_of(free)
                    part.put_bytes(free, np.full_like(held, 255))  # NaN, or a scale of NaN
            out.append(decode(ctx, *rows))

        step(*((3 + i, i, [0]) for i in range(9)))
        step((1, 0, [1]), (2, 1, [1]), (3, 9, [0]))
        ctx.cache.seq_rm(0, 2, 6)
        ctx.cache.seq_add(0, 6, -1, -4)
        step((4, 6, [0]))
        step((5, 7, [0]), (6, 2, [1]), (7, 0, [2]))
        ctx.cache.seq_rm(1)
        step((8, 1, [2]))
        ctx.cache.clear(data=False)
        step((8, 0, [2]))
        return out

    for clean, poisoned in zip(run(False), run(True), strict=True):
        assert np.array_equal(clean, poisoned)


# Who sees what

# study T24: positions and owners of eight cells, in order.
T24: list[tuple[int, list[int]] | None] = [
    (0, [0, 1]),
    (1, [0, 1]),
    None,
    (2, [0]),
    (2, [1]),
    (3, [0]),
    (4, [0]),
    (3, [1]),
]


def t24(causal: bool) -> tuple[Context, list[list[int]]]:
    """Visible cells of queries A (sequence 0 at 4), B (1 at 3) and C (0 at 3), which are stored too."""
    ctx = context(decoder_of("llama", layers=1), False)
    ctx.decode(Batch.one([1], 40, seq=2))  # keeps cell 0, so that all others are one further
    bits = [None if c is None else (c[0], sum(1 << s for s in c[1])) for c in T24]
    seen: list[list[int]] = []
    with ctx.cache.step() as step:
        for each in bits:
            pos, owners = each or (0, 4)
            step.place(
                np.array([pos], np.int32), np.zeros(1, np.int32), np.array([[owners]], np.uint64)
            )
    ctx.cache.seq_rm(2)
    with ctx.cache.step() as step:
        ctx.cache.cells.find(1)
        for seq, pos in ((0, 4), (1, 3), (0, 3)):
            batch = step.place(
                np.array([pos], np.int32),
                np.array([seq], np.int32),
                np.array([[4]], np.uint64),  # owned by a third sequence: it adds nothing
                causal,
            )
            a, b = batch.seen.start[batch.seen.list[0]], batch.seen.counts[0]
            seen.append(sorted(batch.seen.cells[a : a + b].tolist()))
    return ctx, seen


@pytest.mark.parametrize(
    ("causal", "expected"),
    [(True, ("11010110", "11001001", "11010100")), (False, ("11010110", "11001001", "11010110"))],
)
def test_the_cells_a_query_sees(causal: bool, expected: tuple[str, ...]) -> None:
    _, seen = t24(causal)
    assert seen == [[i + 1 for i, bit in enumerate(bits) if bit == "1"] for bits in expected]


def test_random_caches_against_a_double_loop() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        ctx = context(decoder_of("llama", layers=1), False, n_ctx=24, n_seq_max=70)
        cache = ctx.cache
        n = int(rng.integers(1, 20))
        owners = np.zeros((n, 2), np.uint64)
        for i in range(n):
            for s in rng.choice(70, int(rng.integers(1, 4)), replace=False).tolist():
                owners[i, s // 64] |= np.uint64(1 << (s % 64))
        positions = rng.integers(0, 12, n).astype(np.int32)
        t = int(rng.integers(1, 5))
        at, seqs = rng.integers(0, 12, t).astype(np.int32), rng.integers(0, 70, t).astype(np.int32)
        causal = bool(rng.integers(2))
        with cache.step() as step:
            step.place(positions, np.zeros(n, np.int32), owners)
            own = np.zeros((t, 2), np.uint64)
            own[np.arange(t), seqs // 64] = np.uint64(1) << (seqs % 64).astype(np.uint64)
            batch = step.place(at, seqs, own, causal)
            tensors = CellTensors(cache.cells, cache.first.rows, batch.cell_ids, batch.seen)
            mask = tensors.mask(0)
            rows = np.asarray(tensors._index)
            words, held = cache.cells.owners, cache.cells.positions
            for i in range(t):
                bit = words[:, seqs[i] // 64] >> np.uint64(seqs[i] % 64) & np.uint64(1)
                visible = (bit == 1) & ((held <= at[i]) | (not causal))
                expected = set(np.flatnonzero(visible).tolist())
                first = batch.seen.start[batch.seen.list[i]]
                listed = batch.seen.cells[first : first + batch.seen.counts[i]].tolist()
                assert set(listed) == expected
                assert held[listed].tolist() == sorted(held[listed].tolist())
                if mask is not None:
                    assert set(rows[mask[i].numpy() == 0].tolist()) == expected
                elif tensors.causal:
                    assert set(rows[: i + 1].tolist()) == expected
                else:
                    assert set(rows.tolist()) == expected


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("n_blind", [1, 3])
def test_a_query_that_sees_nothing_gives_zeros(fused: bool, n_blind: int) -> None:
    ctx = context(decoder_of("llama", layers=1), False)
    q = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(0))
    with ctx.cache.step() as step:
        # Sequence 1's tokens see only themselves; those asked for sequence 2 see nothing.
        seqs = np.array([1, 1, 1], np.int32)
        seqs[:n_blind] = 2
        own = np.full((3, 1), 2, np.uint64)
        batch = step.place(np.arange(3, dtype=np.int32), seqs, own)
        tensors = batch.tensors()
        tensors.write(0, torch.randn(3, 2, 64), torch.randn(3, 2, 64))
        out = attend(q, 0, tensors, 0.125, fused)
    assert not out[:n_blind].any()
    assert out[n_blind:].isfinite().all()
    assert out[n_blind:].any(1).all()


def test_one_unbroken_text_needs_no_mask_and_no_copy() -> None:
    ctx = context(decoder_of("llama", layers=1), False)
    with ctx.cache.step() as step:
        own = np.ones((5, 1), np.uint64)
        tensors = step.place(np.arange(5, dtype=np.int32), np.zeros(5, np.int32), own).tensors()
        assert tensors.causal
        assert tensors.mask(0) is None
        k, v = tensors.read(0)
        assert k.data_ptr() == ctx.cache.keys.parts[0].address
        assert v.data_ptr() == ctx.cache.values.parts[0].address
        one = step.place(np.array([5], np.int32), np.zeros(1, np.int32), own[:1]).tensors()
        assert (one.mask(0), one.n) == (None, 6)


def test_only_a_sequences_own_cells_are_read() -> None:
    ctx = context(decoder_of("llama", layers=1), False)
    decode(ctx, *((1, i, [0]) for i in range(60)))
    decode(ctx, *((1, i, [1]) for i in range(4)))
    with ctx.cache.step() as step:
        one = np.array([[2]], np.uint64)
        tensors = step.place(np.array([4], np.int32), np.array([1], np.int32), one).tensors()
        assert tensors.n == 5
        assert tensors.read(0)[0].shape[0] == 5


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_non_causal_tokens_see_each_other(native: bool, flash_attn: bool) -> None:
    decoder = decoder_of("llama")
    f32: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": flash_attn}
    ctx = context(decoder, native, causal_attn=False, **f32)
    rows = decode(ctx, *((3 + i, i, [0]) for i in range(7)), (5, 0, [1]))
    causal = context(decoder, native, **f32)
    plain = decode(causal, *((3 + i, i, [0]) for i in range(7)), (5, 0, [1]))
    assert apart(rows[7], plain[7]) < 1e-5  # alone in its sequence
    assert apart(rows[0], plain[0]) > 1e-2
    # A later token does not change what is stored, and sees all of it, as a causal one does.
    expected = decode(ctx, (9, 7, [0]))
    again = context(decoder, not native, causal_attn=False, **f32)
    other = decode(again, *((3 + i, i, [0]) for i in range(7)), (5, 0, [1]))
    assert apart(other, rows) < 1e-5
    assert apart(decode(again, (9, 7, [0])), expected) < 1e-5


def test_non_causal_batches_are_computed_at_once_or_not_at_all() -> None:
    ctx = context(decoder_of("llama"), True, causal_attn=False, n_ubatch=4)
    with pytest.raises(InvalidBatch, match=r"5 tokens that see each other .* larger n_ubatch"):
        ctx.decode(Batch.one([1, 2, 3, 4, 5], 0))
    assert ctx.cache.used == 0
    ctx.decode(Batch.one([1, 2, 3, 4], 0))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_do_not_depend_on_where_cells_are(kind: str) -> None:
    """The native step sums in the order of the text, so a scattered one gives the same bits."""
    decoder = decoder_of("llama")
    types: dict[str, Any] = {"type_k": kind, "type_v": kind, "flash_attn": True}
    text = np.random.default_rng(3).integers(0, 64, 20).tolist()
    plain, scattered = context(decoder, True, **types), context(decoder, True, **types)
    for i, t in enumerate(text[:10]):
        a = decode(plain, (t, i, [0]))
        assert np.array_equal(a, decode(scattered, (t, i, [0]), (1, i, [1]))[:1])
    scattered.cache.seq_rm(1)
    for i, t in enumerate(text[10:], 10):  # into the holes, from the first
        assert np.array_equal(decode(plain, (t, i, [0])), decode(scattered, (t, i, [0])))
    assert scattered.cache.cells.positions[:4].tolist() == [0, 10, 1, 11]
