"""The products of a native step with adapters, bit for bit those of tools/decoder_numerics."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from decoder_numerics.floats import adapted, products, relu_squared, rms_norm

from aleator import _native
from aleator.core.threads import pool as thread_pool
from tests.models.native_parts import decoder_step, weight

E, FF, T, EPS = 48, 410, 5, 1e-5
RANKS = (3, 17)
CHOSEN: list[list[tuple[int, float]]] = [[(0, 1.0)], [], [(0, 0.3), (1, -2.0)], [(1, 0.7)], []]
"""The adapters of each token, and their scales."""


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
        columns = np.zeros((-(-FF // 16), rank, 16), type_of)
        for row in range(FF):
            columns[row // 16, :, row % 16] = b[row]
        matrix = _native.StoredMatrix
        low_a = matrix(a.view(np.uint8).reshape(-1), kind, rank, E, None)
        low_b = matrix(columns.view(np.uint8).reshape(-1), kind, columns.size // 16, 16, None)
        data = up.view(np.uint8).reshape(-1)
        step.adapt(data, number, low_a, low_b, float(factor), growth)
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
