"""Products with weights in F32, F16 and BF16 against the contract's reference, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from decoder_numerics.floats import paired_products, products, rounded
from make_models import SPECS, write_model

from aleator import _native
from aleator.core.errors import FileFormatError
from aleator.core.threads import pool as thread_pool
from aleator.models import open_weights
from aleator.models.layers.stored import stored_weight
from tests.models.bits import equal

TYPES = ("F32", "F16", "BF16")
SHAPES = (
    (1, 32),
    (3, 64),
    (4, 96),
    (67, 96),
    (70, 256),
    (130, 768),
    (9, 1600),
    (244, 1100),
    (35, 2500),
)
ODD_SHAPES = ((5, 1), (2, 7), (9, 33), (66, 101))
Floats = npt.NDArray[np.float32]


def stored(values: Floats, kind: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    """The bytes of a matrix in a stored type, and exactly what they stand for."""
    quantised = gguf.GGMLQuantizationType[kind]
    data = np.ascontiguousarray(gguf.quants.quantize(values, quantised)).view(np.uint8)
    back = gguf.quants.dequantize(data, quantised).astype(np.float64)
    return data.reshape(-1), back.reshape(values.shape)


def product(matrix: Any, x: Floats, threads: int = 1) -> Floats:
    y = np.full((len(x), matrix.shape[0]), np.nan, np.float32)
    _native.linear(thread_pool(threads), matrix, x, y)
    return y


def make(kind: str, out: int, n: int, seed: int = 0) -> tuple[Any, npt.NDArray[np.float64], Floats]:
    rng = np.random.default_rng([seed, out, n])
    data, exact = stored(rng.standard_normal((out, n)).astype(np.float32), kind)
    bias = rng.standard_normal(out).astype(np.float32)
    return _native.StoredMatrix(data, kind, out, n, bias), exact, bias


def cases() -> list[tuple[str, int, int]]:
    return [(kind, *shape) for kind in TYPES for shape in SHAPES + ODD_SHAPES]


def expected_product(
    kind: str, w: npt.NDArray[Any], x: Floats, bias: Floats | None = None
) -> Floats:
    """By the contract."""
    of = paired_products if kind == "BF16" else products
    return of(w.astype(np.float32), x, bias)


@pytest.mark.parametrize(("kind", "out", "n"), cases())
def test_products_are_the_reference_for_any_tokens_and_threads(kind: str, out: int, n: int) -> None:
    matrix, exact, bias = make(kind, out, n)
    x = np.random.default_rng(1).standard_normal((259, n)).astype(np.float32)
    expected = expected_product(kind, exact, x, bias)
    if kind == "BF16":
        x = rounded(x)
    # Float32 sums of n terms: a few units in the last place of the sum of magnitudes.
    tolerance = 1e-6 * (np.abs(x) @ np.abs(exact).T + np.abs(bias))
    assert (np.abs(expected - (x @ exact.T + bias)) <= tolerance).all()
    for tokens in (*range(1, 14), 16, 17, 33, 70, 259):
        assert equal(product(matrix, x[:tokens], 1 + tokens % 4), expected[:tokens]), tokens


@pytest.mark.parametrize("kind", TYPES)
def test_products_do_not_depend_on_whether_caches_hold_x(kind: str) -> None:
    matrix, _, _ = make(kind, 35, 5003)
    x = np.random.default_rng(2).standard_normal((450, 5003)).astype(np.float32)  # 8.6 MiB
    assert equal(
        product(matrix, x), np.concatenate([product(matrix, x[:200]), product(matrix, x[200:])])
    )


@pytest.mark.parametrize("n", [1, 16, 17, 50])
@pytest.mark.parametrize("kind", TYPES)
def test_products_of_special_numbers_are_the_reference(kind: str, n: int) -> None:
    """Infinities, NaN, zeros of both signs, subnormal numbers, and sums that cancel or overflow."""
    rng = np.random.default_rng(n)
    special = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 6e-8, -6e-8, 3e38, -6e4, 6e4, 1, -1],
        np.float32,
    )
    values = rng.choice(special, (40, n), p=[0.15, 0.15, *[0.02] * 3, *[0.64 / 9] * 9])
    x = rng.choice(special, (259, n), p=[0.2, 0.2, *[0.01] * 3, *[0.57 / 9] * 9])
    with np.errstate(all="ignore"):
        data, exact = stored(values, kind)
        expected = expected_product(kind, exact, x)
    matrix = _native.StoredMatrix(data, kind, 40, n)
    for tokens in (1, 2, 7, 23, 49, 259):
        assert equal(product(matrix, x[:tokens]), expected[:tokens]), tokens


def test_a_product_is_rounded_with_its_addend_at_once() -> None:
    """Element 16 meets the sum of element 0, which is a rounded product's negative, or near it."""
    rng = np.random.default_rng(4)
    a = (rng.standard_normal(4000) * 2.0 ** rng.integers(-20, 20, 4000)).astype(np.float32)
    b = np.float32(1 / 3)
    c = -(a * b)
    c[1::3] = np.nextafter(c[1::3], np.float32(0))
    c[2::3] *= np.float32(1.5)
    w, x = np.zeros((4000, 17), np.float32), np.zeros((1, 17), np.float32)
    w[:, 0], w[:, 16], x[0, 0], x[0, 16] = c, a, 1, b
    got = product(_native.StoredMatrix(w.view(np.uint8).reshape(-1), "F32", 4000, 17), x)[0]
    assert equal(got, products(w, x)[0])
    exact = [
        Fraction(float(p)) * Fraction(float(b)) + Fraction(float(q))
        for p, q in zip(a, c, strict=True)
    ]
    for y, sum_ in zip(got, exact, strict=True):
        assert abs(Fraction(float(y)) - sum_) <= Fraction(float(np.spacing(abs(y)))) / 2


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_every_16_bit_value_is_read_exactly(kind: str) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    expected = wide if kind == "BF16" else bits.view(np.float16).astype(np.float32)
    matrix = _native.StoredMatrix(bits.view(np.uint8), kind, 1024, 64)
    single = np.empty((1024, 64), np.float32)
    _native.read_rows(thread_pool(2), matrix, np.arange(1024), single)
    np.testing.assert_array_equal(single.ravel(), expected)
    # The vector form: each column times 1 by itself.
    finite = np.isfinite(expected).reshape(1024, 64).all(1)
    for column in (0, 1, 17, 63):
        unit = np.zeros((1, 64), np.float32)
        unit[0, column] = 1
        np.testing.assert_array_equal(product(matrix, unit)[0][finite], single[finite, column])


def test_q8_0_is_read_as_scale_times_integer() -> None:
    rng = np.random.default_rng(3)
    blocks = np.zeros((12, 34), np.uint8)
    scales = rng.standard_normal(12).astype(np.float16)
    quants = rng.integers(-128, 128, (12, 32)).astype(np.int8)
    blocks[:, :2] = scales[:, None].view(np.uint8)
    blocks[:, 2:] = quants.view(np.uint8)
    matrix = _native.StoredMatrix(blocks.ravel(), "Q8_0", 4, 96)
    y = np.empty((3, 96), np.float32)
    _native.read_rows(thread_pool(1), matrix, np.array([3, 0, 3]), y)
    exact = (scales[:, None].astype(np.float64) * quants).reshape(4, 96)
    np.testing.assert_array_equal(y, exact[[3, 0, 3]])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_rows_that_are_not_whole_vectors(kind: str) -> None:
    matrix, exact, _ = make(kind, 5, 101)
    y = np.empty((5, 101), np.float32)
    _native.read_rows(thread_pool(1), matrix, np.arange(5), y)
    np.testing.assert_array_equal(y, exact)


def test_infinite_and_nan_inputs_come_through() -> None:
    matrix, _, _ = make("F32", 6, 40)
    x = np.ones((3, 40), np.float32)
    x[0, 7], x[1, 39] = np.nan, np.inf
    y = product(matrix, x)
    assert np.isnan(y[0]).all()
    assert np.isinf(y[1]).all()
    assert np.isfinite(y[2]).all()


@pytest.mark.parametrize(
    ("size", "kind", "out", "n", "match"),
    [
        (96, "F32", 3, 9, "does not take 96 bytes"),
        (96, "Q4_9", 1, 32, "Q4_9 is not one of F32, F16, .*Q4_K"),
        (143, "Q4_K", 1, 256, "does not take 143 bytes"),
        (144, "Q4_K", 1, 288, "multiple of 256"),
        (34, "Q8_0", 1, 31, "multiple of 32"),
        (0, "F32", 0, 8, "does not take"),
        (64, "F32", -1, 8, "does not take"),
        (64, "F32", 2, 0, "0 elements"),
        (64, "F16", 1 << 61, 32, "does not take"),
    ],
)
def test_matrix_of_the_wrong_size(size: int, kind: str, out: int, n: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        _native.StoredMatrix(np.zeros(size, np.uint8), kind, out, n)


def test_arguments_of_the_wrong_size() -> None:
    matrix, _, _ = make("F32", 6, 40)
    pool = thread_pool(1)
    for x, y in (((2, 39), (2, 6)), ((2, 40), (2, 5)), ((2, 40), (3, 6))):
        with pytest.raises(ValueError, match="tokens"):
            _native.linear(pool, matrix, np.zeros(x, np.float32), np.zeros(y, np.float32))
    for row in (-1, 6):
        with pytest.raises(ValueError, match=f"row {row}"):
            _native.read_rows(pool, matrix, np.array([row]), np.zeros((1, 40), np.float32))
    with pytest.raises(ValueError, match="bias"):
        _native.StoredMatrix(np.zeros(64, np.uint8), "F32", 2, 8, np.zeros(3, np.float32))


@pytest.mark.parametrize("kind", [*TYPES, "Q8_0", "Q4_0"])
@pytest.mark.parametrize("tokens", [1, 33])
def test_linear_over_a_file(tmp_path: Path, kind: str, tokens: int) -> None:
    torch = pytest.importorskip("torch")
    from aleator.models.layers.linear import StoredLinear

    spec = replace(SPECS["llama-bias"], type=kind)
    weights = open_weights(write_model(tmp_path / "m.gguf", spec))
    layer = StoredLinear(
        [
            stored_weight(weights, name, n, 64, bias=True)
            for name, n in (("blk.1.attn_q", 64), ("blk.1.attn_k", 32))
        ]
    )
    x = np.random.default_rng(2).standard_normal((tokens, 64)).astype(np.float32)
    expected = []
    for name in ("blk.1.attn_q", "blk.1.attn_k"):
        w = weights.floats(f"{name}.weight").astype(np.float64)
        expected.append(x @ w.T + weights.floats(f"{name}.bias").astype(np.float64))
    got = layer(torch.from_numpy(x)).numpy()
    # Blocks meet activations in int8 (test_block_numerics.py has their exact bits), BF16 in bfloat16.
    atol = 2e-2 if kind not in TYPES else 4e-3 if kind == "BF16" else 2e-6
    exact = np.concatenate(expected, 1)
    np.testing.assert_allclose(got, exact, rtol=0, atol=atol * np.abs(exact).max())


def test_stored_weights_are_not_copied() -> None:
    values = np.ones((4, 32), np.float32)
    matrix = _native.StoredMatrix(values.view(np.uint8).reshape(-1), "F32", 4, 32)
    values[2] = 3
    assert product(matrix, np.ones((1, 32), np.float32)).tolist() == [[32, 32, 96, 32]]


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    tensors = dict(SPECS["llama"].each_tensor())
    tensors["blk.0.attn_k.weight"][3, 5] = np.nan
    weights = open_weights(write_model(tmp_path / "m.gguf", SPECS["llama"], tensors))
    with pytest.raises(FileFormatError, match=r"blk\.0\.attn_k\.weight"):
        stored_weight(weights, "blk.0.attn_k", 32, 64, bias=False)


@pytest.mark.parametrize("kind", TYPES)
def test_of_no_tokens_nothing_is_written(kind: str) -> None:
    matrix, _, _ = make(kind, 70, 96)
    x, y = np.ones((6, 96), np.float32), np.full((6, 70), 7, np.float32)
    _native.linear(thread_pool(1), matrix, x[:0], y[:0])
    assert (y == 7).all()


@pytest.mark.parametrize("kind", TYPES)
def test_each_of_many_tokens_is_as_it_is_alone(kind: str) -> None:
    """More than are ever near a row of the matrix, with rows of whole groups and with others."""
    for out, n in ((9, 64), (6, 47), (50, 64), (50, 47)):
        matrix, _, _ = make(kind, out, n)
        x = np.random.default_rng(3).standard_normal((400, n)).astype(np.float32)
        alone = np.concatenate([product(matrix, x[i : i + 1]) for i in range(len(x))])
        assert equal(product(matrix, x), alone)


@pytest.mark.parametrize(
    ("kind", "n"), [*((kind, 544) for kind in TYPES), ("F16", 4128), ("F16", 6176), ("BF16", 6176)]
)
def test_a_token_of_a_matrix_from_memory_is_the_reference(kind: str, n: int) -> None:
    """Rows of four quarters together, of eighths (6,176 columns), and (4,128 columns) others."""
    matrix, exact, bias = make(kind, 520, n)
    x = np.random.default_rng(2).standard_normal((1, n)).astype(np.float32)
    expected = expected_product(kind, exact, x, bias)
    for threads in (1, 2, 3):
        assert equal(product(matrix, x, threads), expected)
