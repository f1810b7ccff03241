"""The products of a native step with adapters, bit for bit those of tools/decoder_numerics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_numerics import delta as rules
from decoder_numerics.floats import adapted, convolve, products, relu_squared, rms_norm, sigmoid

from aleator import _native
from aleator.core.threads import pool as thread_pool
from tests.models.native_parts import decoder_step, weight

E, FF, T, EPS = 48, 410, 5, 1e-5
RANKS = (3, 17)
CHOSEN: list[list[tuple[int, float]]] = [[(0, 1.0)], [], [(0, 0.3), (1, -2.0)], [(1, 0.7)], []]
"""The adapters of each token, and their scales."""


def adapt(
    step: _native.DecoderStep, w: Any, number: int, a: Any, b: Any, factor: float, grows: Any = None
) -> None:
    """Gives a matrix W an adapter, with the columns of B as LowRank has them."""
    kind, (rank, n_in) = {"float32": "F32", "float16": "F16"}[a.dtype.name], a.shape
    columns = np.zeros((-(-len(b) // 16), rank, 16), b.dtype)
    for row in range(len(b)):
        columns[row // 16, :, row % 16] = b[row]
    low_a = _native.StoredMatrix(a.view(np.uint8).reshape(-1), kind, rank, n_in, None)
    low_b = columns.view(np.uint8).reshape(-1)
    step.adapt(w.view(np.uint8).reshape(-1), number, low_a, low_b, kind, factor, grows)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("grows", [False, True])
def test_adapted_products_are_the_reference(threads: int, kind: str, grows: bool) -> None:
    """A layer of nothing but a feed-forward part without a gate: up, max(x, 0)^2, down."""
    rng = np.random.default_rng(4)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x, up, down, bias, norm = normal(T, E), normal(FF, E), normal(E, FF), normal(FF), normal(E)
    given, last = weight(up, bias), normal(E)
    step = decoder_step(np.ones(1), True, embedding=[weight(x)], output_norm=last, eps=EPS,
                        attention_scale=1.0, gate="relu_squared")  # fmt: skip
    ffn = SimpleNamespace(gate_up=[given], down=[weight(down)], n_ff=FF, gate="relu_squared")
    step.add_feed_forward(SimpleNamespace(norm=norm, ffn=ffn))
    low = []

    def run(chosen: list[list[tuple[int, float]]]) -> np.ndarray:
        starts = np.cumsum([0, *map(len, chosen)])
        flat = [each for of_token in chosen for each in of_token]
        rows = (
            starts.astype(np.int64),
            np.array([number for number, _ in flat], np.int32),
            np.array([scale for _, scale in flat], np.float32),
        )
        made, none = np.empty((T, E), np.float32), np.zeros(T, np.int64)
        step.run(
            thread_pool(threads), None, x, np.arange(T, dtype=np.int32), none, np.zeros(0, np.int32),
            np.zeros(2, np.int64), none.astype(np.int32), none, None, np.arange(T), made, adapted=rows,
        )  # fmt: skip
        return made

    for number, rank in enumerate(RANKS):
        run([[(number - 1, 1.0)]] * T if number else [[]] * T)  # what it finds is not kept
        a, b, growth = normal(rank, E), normal(FF, rank), normal(FF) if grows else None
        type_of = {"F32": np.float32, "F16": np.float16}[kind]
        a, b, factor = a.astype(type_of), b.astype(type_of), np.float32(2.3)
        adapt(step, up, number, a, b, float(factor), growth)
        low.append((a.astype(np.float32), b.astype(np.float32), factor, growth))
    made = run(CHOSEN)
    taken = rms_norm(x, norm, EPS)
    wide = products(up, taken, bias)
    for t, chosen in enumerate(CHOSEN):
        for number, scale in chosen:
            a, b, factor, growth = low[number]
            by = float(np.float32(scale) * factor)
            wide[t] = adapted(wide[t : t + 1], taken[t : t + 1], a, b, by, growth, bias)[0]
    right = rms_norm(x + products(down, relu_squared(wide)), last, EPS)
    assert made.tobytes() == right.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_last_of_six_products_with_one_input_are_adapted(threads: int) -> None:
    """A delta net with a decay for each channel has so many, and no other layer as many."""
    rng, n, heads, dim, width, rank = np.random.default_rng(5), 64, 2, 12, 3, 17

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / np.float32(4)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    wide = heads * dim
    x, norm, conv = normal(n, E), normal(E), normal(3 * wide, width)
    bias, a = normal(wide), normal(heads)
    outs = {"q": wide, "k": wide, "v": wide, "gate": 7, "beta": heads, "decay": 5}
    w, up = {name: normal(out, E) for name, out in outs.items()}, normal(wide, 5)
    low = {name: (normal(rank, E), normal(outs[name], rank)) for name in ("beta", "decay")}
    net = SimpleNamespace(n_key_heads=heads, n_heads=heads, head_dim=dim, head_dim_v=dim, tiled=False,
                          unit_eps=EPS, channel_decays=True)  # fmt: skip
    layer = SimpleNamespace(
        norm=norm, qkv=[weight(w[name]) for name in "qkv"], gate=[weight(w["gate"])],
        gate_up=[weight(normal(wide, 7))], beta=[weight(w["beta"])], decay=[weight(w["decay"])],
        decay_up=[weight(up)], conv_weight=conv, conv_bias=None, a=a, time_bias=bias, head_norm=normal(dim),
        output=[weight(normal(E, wide))], ffn_norm=None, ffn=None, net=net,
    )  # fmt: skip
    step = decoder_step(np.zeros(0), True, embedding=[weight(x)], output_norm=None, eps=EPS,
                        attention_scale=1.0)  # fmt: skip
    state = zeros(1, wide, dim)
    step.add_state("delta net", layer, zeros(1, 3 * wide, width - 1), state, False)
    for name, pair in low.items():
        adapt(step, w[name], 0, *pair, 1.0)
    none, every = np.zeros(n, np.int64), np.arange(n)
    step.run(
        thread_pool(threads), None, x, every.astype(np.int32), none, np.zeros(0, np.int32),
        np.zeros(2, np.int64), none.astype(np.int32), none, None, none[:0], zeros(0, E),
        recurrent=(np.array([0, n]), np.array([-1]), every, np.where(every == n - 1, 0, -1)),
        adapted=(np.arange(n + 1), none.astype(np.int32), np.ones(n, np.float32)),
    )  # fmt: skip
    taken = rms_norm(x, norm, EPS)
    y = {name: products(w[name], taken) for name in outs}
    y |= {name: adapted(y[name], taken, *pair, 1.0) for name, pair in low.items()}
    joint = np.hstack([y[name] for name in "qkv"])
    u = convolve(joint, zeros(width - 1, 3 * wide), conv.T, zeros(3 * wide))
    _, k, v = np.moveaxis(u.reshape(n, 3, heads, dim), 1, 0)
    decay = products(up, y["decay"]).reshape(n, heads, dim)
    decay = rules.decay_of(decay, bias.reshape(heads, dim), a[:, None])
    k = rules.unit_length(k, EPS)  # in place of queries too, on which no state depends
    _, last = rules.delta_rule(k, k, v, sigmoid(y["beta"]), decay, zeros(heads, dim, dim))
    assert state.tobytes() == last.tobytes()


@pytest.mark.parametrize(
    ("of_a", "of_b", "size", "told"),
    [
        ("Q8_0", "Q8_0", 159, "do not fit"),  # sixteen rows take 32 bytes of scales and 3 * 16
        ("Q8_0", "F32", 160, "do not fit"),
        ("Q8_0", "Q4_0", 160, "not in floats or Q8_0"),
        ("Q4_0", "Q8_0", 160, "not in floats or Q8_0"),
    ],
)
def test_columns_of_another_size_or_type_are_refused(
    of_a: str, of_b: str, size: int, told: str
) -> None:
    w = np.ones((32, 32), np.float32)
    step = decoder_step(np.ones(1), True, embedding=[weight(w)], output_norm=w[0], eps=EPS,
                        attention_scale=1.0)  # fmt: skip
    a = np.zeros(3 * {"Q8_0": 34, "Q4_0": 18}[of_a], np.uint8)
    low_a = _native.StoredMatrix(a, of_a, 3, 32, None)
    b, data = np.zeros(size, np.uint8), w.view(np.uint8).reshape(-1)
    with pytest.raises(ValueError, match=told):
        step.adapt(data, 0, low_a, b, of_b, 1.0)
