"""Attention over compressed keys in native code against the contract's reference, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from decoder_numerics.blocks import Floats
from decoder_numerics.floats import rms_norm
from decoder_numerics.latent import LatentTensors, latent_attention

from aleator import _native
from aleator.core.threads import pool as thread_pool
from tests.models.native_parts import attention, decoder_step, weight
from tests.models.test_adapter_numerics import adapt

T, E, HEADS, PLAIN, PAIRS, DIM_V, RANK, Q_RANK, EPS = 21, 40, 3, 13, 4, 11, 26, 18, 1e-5


def tensors(compressed: bool, low: bool, adapts: bool) -> LatentTensors:
    rng = np.random.default_rng(5)

    def matrix(*shape: int) -> Floats:
        values: Floats = (rng.standard_normal(shape) * 2 / shape[-1] ** 0.5).astype(np.float32)
        return values

    def pairs(out: int, n_in: int) -> list[tuple[Floats, Floats]]:
        return [(matrix(17, n_in), matrix(out, 17)) for _ in range(HEADS)]

    dim = PLAIN + 2 * PAIRS
    return LatentTensors(
        query=matrix(Q_RANK if low else HEADS * dim, E),
        compress=matrix(RANK + 2 * PAIRS, E),
        norm=matrix(RANK) + np.float32(1),
        output=matrix(E, HEADS * DIM_V),
        query_norm=matrix(Q_RANK) + np.float32(1) if low else None,
        query_up=matrix(HEADS * dim, Q_RANK) if low else None,
        expand=None if compressed else matrix(HEADS * (PLAIN + DIM_V), RANK),
        key_up=matrix(HEADS, RANK, PLAIN) if compressed else None,
        value_up=matrix(HEADS, DIM_V, RANK) if compressed else None,
        low=(pairs(RANK, PLAIN), pairs(DIM_V, RANK)) if adapts else None,
    )


def memory(heads: int, dim: int) -> _native.CacheMemory:
    return _native.CacheMemory(np.zeros(T * heads * dim * 4, np.uint8), "F32", T, heads, dim)


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize(("compressed", "adapts"), [(False, False), (True, False), (True, True)])
def test_against_the_reference(compressed: bool, low: bool, adapts: bool) -> None:
    t = tensors(compressed, low, adapts)
    rng = np.random.default_rng(6)
    x = rng.standard_normal((T, E)).astype(np.float32)
    norm, last = (rng.standard_normal(E).astype(np.float32) for _ in range(2))
    positions = np.arange(T, dtype=np.int32) * 3
    frequencies = 50.0 ** (-np.arange(PAIRS) / PAIRS)
    angles = np.empty((T, PAIRS, 2), np.float32)
    _native.rotary_angles(frequencies, positions, 1.0, angles)
    added = latent_attention(rms_norm(x, norm, EPS), t, angles, HEADS, PLAIN, EPS)
    right = rms_norm(x + added, last, EPS)

    offset = RANK if compressed else PLAIN
    dim = offset + 2 * PAIRS
    results = []
    for sizes, threads in (([T], 1), ([T], 3), ([1, 5, T - 6], 2)):
        step = decoder_step(
            frequencies,
            True,
            offset,
            embedding=[weight(x)],
            output_norm=last,
            eps=EPS,
            attention_scale=(PLAIN + 2 * PAIRS) ** -0.5,
        )
        latent = SimpleNamespace(
            config=SimpleNamespace(rank=RANK, head_dim=PLAIN + 2 * PAIRS, head_dim_v=DIM_V),
            rotated=2 * PAIRS,
            query=[weight(t.query)],
            query_norm=t.query_norm,
            query_up=None if t.query_up is None else [weight(t.query_up)],
            compress=[weight(t.compress)],
            norm=t.norm,
            expand=None if t.expand is None else [weight(t.expand)],
            key_up=[] if t.key_up is None else [[weight(m)] for m in t.key_up],
            value_up=[] if t.value_up is None else [[weight(m)] for m in t.value_up],
        )
        block = attention(
            n_heads=HEADS, latent=latent, output=[weight(t.output)], attn_norm=norm, ffn_norm=norm
        )
        values = None if compressed else memory(HEADS, DIM_V)
        step.add_attention(block, memory(1 if compressed else HEADS, dim), values)
        for side, matrices in enumerate((t.key_up, t.value_up)):
            if matrices is not None and t.low is not None:
                for w, (low_a, low_b) in zip(matrices, t.low[side], strict=True):
                    adapt(step, w, 0, low_a, low_b, 1.0)
        made, at = np.empty((T, E), np.float32), 0
        for n in sizes:
            to = np.arange(at, at + n)
            step.run(
                thread_pool(threads),
                None,
                x[at : at + n],
                positions[at : at + n],
                to,
                np.arange(at + n, dtype=np.int32),
                np.array([0, at + n]),
                np.zeros(n, np.int32),
                to + 1,
                None,
                np.arange(n),
                made[at : at + n],
                adapted=(np.arange(n + 1), np.zeros(n, np.int32), np.ones(n, np.float32))
                if adapts
                else None,
            )
            at += n
        results.append(made)
    for made in results:
        assert made.tobytes() == right.tobytes()
