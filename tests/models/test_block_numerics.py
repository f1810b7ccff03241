"""Products with ggml's blocks: native code against the contract's reference, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from decoder_numerics.blocks import FORMATS, Bytes, Floats, fused, product, round_rows

from aleator import _native
from aleator.core.threads import pool as thread_pool
from aleator.models.files.tensor_types import TENSOR_TYPES

HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)} | {
    "Q4_K": (0, 2), "Q5_K": (0, 2), "IQ1_M": (), "TQ1_0": (52,), "TQ2_0": (64,)
}  # fmt: skip
CODEBOOKS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"]


def random_rows(kind: str, out: int, n: int, seed: int = 0) -> Bytes:
    """Any bytes, the float16 numbers among them finite and of moderate size."""
    elements, size, _ = FORMATS[kind]
    rng = np.random.default_rng([seed, out, n])
    data = rng.integers(0, 256, (out * n // elements, size), dtype=np.uint8)
    if kind == "MXFP4":  # exponents, the two least and the largest among them
        data[:, 0] = rng.integers(110, 128, len(data))
        data[::7, 0], data[1::7, 0] = 0, 1
        return data.reshape(out, -1)
    for at in HALVES.get(kind, (0,)):
        scales = rng.normal(0, 0.01, len(data)).astype(np.float16)
        data[:, at : at + 2] = scales[:, None].view(np.uint8)
    if kind == "IQ1_M":
        _put_iq1_m(data, rng.normal(0, 0.01, len(data)).astype(np.float16))
    return data.reshape(out, -1)


def _put_iq1_m(data: Bytes, scales: npt.NDArray[np.float16]) -> None:
    """Four bits of the scale are the highest of each of four words."""
    words = data[:, 48:].copy().view(np.uint16) & 0x0FFF
    bits = scales.view(np.uint16)[:, None] >> 4 * np.arange(4, dtype=np.uint16) & 15
    data[:, 48:] = (words | bits << 12).view(np.uint8)


def native(kind: str, data: Bytes, n: int, x: Floats, threads: int = 1) -> Floats:
    matrix = _native.StoredMatrix(data.reshape(-1), kind, len(data), n)
    y = np.full((len(x), len(data)), np.nan, np.float32)
    _native.linear(thread_pool(threads), matrix, x, y)
    return y


def shapes(kind: str) -> list[tuple[int, int]]:
    block = FORMATS[kind][0]
    if kind in (*CODEBOOKS, "IQ1_M", "TQ1_0", "TQ2_0"):  # they have the products of other types
        return [(9, 3 * block), (37, 1280)]
    return [(1, block), (9, 3 * block), (37, 1312 if block == 32 else 1280), (130, 2 * block)]


def test_every_type_in_blocks_has_a_format() -> None:
    assert set(FORMATS) == {t.name for t in TENSOR_TYPES.values() if t.block > 1}
    for name, (elements, size, _) in FORMATS.items():
        assert (TENSOR_TYPES[name].block, TENSOR_TYPES[name].size) == (elements, size)


@pytest.mark.parametrize("kind", FORMATS)
def test_native_products_are_the_reference_for_any_tokens_and_threads(kind: str) -> None:
    for out, n in shapes(kind):
        data = random_rows(kind, out, n)
        x = np.random.default_rng(1).standard_normal((41, n)).astype(np.float32)
        x[3] *= 1e-20
        x[5] *= 1e20
        expected = product(kind, data, x)
        for tokens in (1, 2, 3, 4, 6, 7, 8, 12, 13, 14, 41):
            for threads in (1, 2):
                got = native(kind, data, n, x[:tokens], threads)
                assert got.tobytes() == expected[:tokens].tobytes(), (out, n, tokens)


@pytest.mark.parametrize("kind", FORMATS)
def test_extreme_bytes(kind: str) -> None:
    """Blocks of equal bytes with the largest activations: the sums that could overflow 16 bits."""
    elements, size, _ = FORMATS[kind]
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        data = np.full((3, 2 * size), byte, np.uint8)
        if kind == "MXFP4":
            data[:, [0, size]] = 128  # 1
        for at in () if kind == "MXFP4" else HALVES.get(kind, (0,)):
            for start in (at, size + at):
                data[:, start : start + 2] = np.array([1.0], np.float16).view(np.uint8)
        if kind == "IQ1_M":
            _put_iq1_m(data.reshape(6, size), np.ones(6, np.float16))
        for sign in (1, -1):
            x = np.full((14, 2 * elements), sign, np.float32)
            x[4, ::2] *= -1
            expected = product(kind, data, x)
            for tokens in (1, 2, 3, 9, 14):
                got = native(kind, data, 2 * elements, x[:tokens])
                assert got.tobytes() == expected[:tokens].tobytes(), (byte, sign, tokens)


def test_every_exponent_of_mxfp4() -> None:
    data = np.full((256, 17), 0x17, np.uint8)
    data[:, 0] = np.arange(256)
    x = np.full((4, 32), 1e-20, np.float32)
    with np.errstate(over="ignore"):
        expected = product("MXFP4", data, x)
    for tokens in (1, 4):
        assert native("MXFP4", data, 32, x[:tokens]).tobytes() == expected[:tokens].tobytes()


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_read_as_ggml_reads_them(kind: str) -> None:
    elements = FORMATS[kind][0]
    data = random_rows(kind, 5, 3 * elements)
    matrix = _native.StoredMatrix(data.reshape(-1), kind, 5, 3 * elements)
    y = np.empty((5, 3 * elements), np.float32)
    _native.read_rows(thread_pool(1), matrix, np.arange(5), y)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kind", CODEBOOKS)
def test_codebooks_are_those_of_gguf(kind: str) -> None:
    theirs = getattr(gguf.quants, kind)
    theirs.init_grid()
    ours = np.asarray(_native.codebook(kind)).astype(np.float32)
    if kind == "IQ1_S":
        ours = ((ours - 9) / 8).astype(np.float32)
    assert np.array_equal(ours, theirs.grid.reshape(theirs.grid_shape))


def test_no_other_type_has_a_codebook() -> None:
    with pytest.raises(ValueError, match="no codebook of Q4_K"):
        _native.codebook("Q4_K")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_products_are_near_the_exact_ones(kind: str) -> None:
    """Rounding to int8 is off by at most half of a 127th of a block's largest element."""
    elements = FORMATS[kind][0]
    data = random_rows(kind, 20, 4 * elements)
    x = np.random.default_rng(2).standard_normal((8, 4 * elements)).astype(np.float32)
    w = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    largest = np.abs(x.reshape(8, 4, elements)).max(-1).repeat(elements, 1)
    allowed = (largest / 254) @ np.abs(w).T * 1.001
    assert (np.abs(product(kind, data, x) - x @ w.T) <= allowed).all()


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_broken_and_empty_activations(kind: str) -> None:
    elements = FORMATS[kind][0]
    data = random_rows(kind, 4, 2 * elements)
    x = np.ones((14, 2 * elements), np.float32)
    x[1, 5], x[2, -1], x[3, 0] = np.nan, np.inf, -np.inf
    x[4] = 0
    x[5] = 2.0**-101
    for tokens in (6, 9, 14):
        y = native(kind, data, 2 * elements, x[:tokens])
        assert np.isnan(y[1:4]).all()
        assert np.isfinite(y[[0, 4, 5]]).all()
        assert not y[4:6].any()


def test_fused_rounds_once() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (
        (rng.standard_normal(20_000) * 2.0 ** rng.integers(-20, 20, 20_000)).astype(np.float32)
        for _ in range(3)
    )
    c[:10_000] = -(a * b)[:10_000]  # the rest of a rounded product, exactly
    exact = np.array(
        [float(np.longdouble(x) * y + z) for x, y, z in zip(a, b, c, strict=True)], np.float64
    )
    got = fused(a, b, c)
    np.testing.assert_array_equal(got[:10_000], exact[:10_000].astype(np.float32))
    assert (np.abs(got - exact) <= np.spacing(np.abs(got)) / 2 * 1.0000001).all()


def test_rounding_ties_go_to_even() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    rounded = round_rows(x, 32)
    assert rounded.d[0, 0] == 1
    assert rounded.q[0, :6].tolist() == [127, 0, 2, 2, 0, -2]
