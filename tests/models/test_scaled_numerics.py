"""Products with FP8 and NF4 against the contract's reference, bit for bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoder_numerics.blocks import Bytes
from decoder_numerics.floats import products
from decoder_numerics.scaled import NF4, e4m3, values

from aleator import _native
from aleator.core.threads import pool as thread_pool
from aleator.models.files.tensor_types import SCALED_TYPES, TENSOR_TYPES, StoredTensor

Floats = npt.NDArray[np.float32]
SHAPES = ((1, 64), (4, 192), (9, 128), (67, 1536), (130, 2880))


def random_rows(kind: str, out: int, n: int) -> Bytes:
    """Any codes but NaN, after scales of moderate size, one of them 0."""
    rng = np.random.default_rng([out, n])
    data = rng.integers(0, 256, (out * n // 64, SCALED_TYPES[kind].size), dtype=np.uint8)
    data[:, 4:][data[:, 4:] & 127 == 127] = 5 if kind == "F8_E4M3" else 127
    scales = rng.normal(0, 0.1, (len(data), 1)).astype(np.float32)
    scales[-1] = 0
    data[:, :4] = scales.view(np.uint8)
    return data.reshape(out, -1)


def matrix(kind: str, data: Bytes, n: int, bias: Floats | None = None) -> _native.StoredMatrix:
    return _native.StoredMatrix(data.reshape(-1), kind, len(data), n, bias)


def native(of: _native.StoredMatrix, x: Floats, threads: int = 1) -> Floats:
    y = np.full((len(x), of.shape[0]), np.nan, np.float32)
    _native.linear(thread_pool(threads), of, x, y)
    return y


@pytest.mark.parametrize("kind", SCALED_TYPES)
def test_products_are_the_reference_for_any_tokens_and_threads(kind: str) -> None:
    for out, n in SHAPES:
        data, rng = random_rows(kind, out, n), np.random.default_rng(1)
        x = rng.standard_normal((70, n)).astype(np.float32)
        bias = rng.standard_normal(out).astype(np.float32)
        expected = products(values(kind, data), x, bias)
        for tokens in (*range(1, 14), 16, 17, 33, 70):
            got = native(matrix(kind, data, n, bias), x[:tokens], 1 + tokens % 2)
            assert got.tobytes() == expected[:tokens].tobytes(), (out, n, tokens)


@pytest.mark.parametrize("kind", SCALED_TYPES)
def test_rows_are_read_as_the_reference_reads_them(kind: str) -> None:
    data = random_rows(kind, 5, 192)
    y = np.empty((5, 192), np.float32)
    _native.read_rows(thread_pool(1), matrix(kind, data, 192), np.arange(5), y)
    assert y.tobytes() == values(kind, data).tobytes()


@pytest.mark.parametrize("kind", SCALED_TYPES)
def test_what_is_not_finite_is_found(kind: str) -> None:
    data = random_rows(kind, 3, 128)
    assert StoredTensor(kind, (3, 128), data.reshape(-1)).first_nonfinite()[0] is None
    data.reshape(-1, SCALED_TYPES[kind].size)[3, :4] = np.full(1, np.inf, np.float32).view(np.uint8)
    assert StoredTensor(kind, (3, 128), data.reshape(-1)).first_nonfinite()[0] == 3 * 64


def test_codes_of_float8_are_those_of_torch() -> None:
    codes = torch.arange(256).to(torch.uint8)
    theirs = codes.view(torch.float8_e4m3fn).float().numpy()
    assert np.isnan(theirs[[127, 255]]).all()
    some = np.setdiff1d(np.arange(256), [127, 255])
    np.testing.assert_array_equal(e4m3()[some], theirs[some])


def test_codes_of_nf4_rise_from_minus_one_to_one() -> None:
    assert (np.diff(NF4) > 0).all()
    assert NF4[[0, 7, 15]].tolist() == [-1, 0, 1]


@pytest.mark.parametrize("kind", SCALED_TYPES)
def test_rows_are_whole_blocks(kind: str) -> None:
    with pytest.raises(ValueError, match=f"a {kind} row has a multiple of 64 elements, not 96"):
        _native.StoredMatrix(np.zeros(96, np.uint8), kind, 1, 96)
    with pytest.raises(ValueError, match=f"{kind}.*does not take 70 bytes"):
        _native.StoredMatrix(np.zeros(70, np.uint8), kind, 1, 64)


@pytest.mark.parametrize("kind", SCALED_TYPES)
def test_no_cache_and_no_adapter_is_of_these_types(kind: str) -> None:
    size = SCALED_TYPES[kind].size
    with pytest.raises(ValueError, match=f"a cache of {kind}"):
        _native.CacheMemory(np.zeros(4 * size, np.uint8), kind, 4, 1, 64, False, 0)


def test_gguf_files_do_not_have_them() -> None:
    assert not SCALED_TYPES.keys() & TENSOR_TYPES.keys()
