from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from aleator import _native
from aleator.models.files.tensor_types import TENSOR_TYPES, StoredTensor

FLOATS = ("F32", "F16", "BF16")
BLOCKS = [name for name in TENSOR_TYPES if name not in FLOATS]
COLUMNS = 512


def random_blocks(name: str, rows: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of COLUMNS numbers in random blocks whose scales are finite: uint8 [rows, bytes]."""
    kind, rng = TENSOR_TYPES[name], np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, COLUMNS // kind.block, kind.size), np.uint8)
    if name == "MXFP4":
        raw[:, :, 0] = rng.integers(100, 130, raw.shape[:2])
        return raw.reshape(rows, -1)
    for offset in kind.exponents:
        scales = rng.uniform(-0.1, 0.1, raw.shape[:2]).astype("<f2")
        raw[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def dequantised(name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    quants: Any = gguf.quants
    out: NDArray[np.float32] = quants.dequantize(raw, GGMLQuantizationType[name])
    return out


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_sizes_are_ggml_s(name: str) -> None:
    kind = TENSOR_TYPES[name]
    assert GGMLQuantizationType[name].value == kind.id
    assert GGML_QUANT_SIZES[GGMLQuantizationType[name]] == (kind.block, kind.size)


@pytest.mark.parametrize("name", BLOCKS)
def test_dequantises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(name, 20)
    expected = dequantised(name, raw)
    stored = StoredTensor(name, (4, 5, COLUMNS), raw.reshape(-1))
    assert stored.floats().shape == (4, 5, COLUMNS)
    np.testing.assert_array_equal(stored.floats().reshape(expected.shape), expected)
    # In parts that do not divide the rows.
    monkeypatch.setattr("aleator.models.files.tensor_types._READ_AT_ONCE", 3 * COLUMNS)
    assert [first for first, _ in stored.pieces()] == list(range(0, 20, 3))
    np.testing.assert_array_equal(stored.floats().reshape(expected.shape), expected)


@pytest.mark.parametrize("name", ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_dequantised_weights_are_near_the_originals(name: str) -> None:
    weights = np.random.default_rng(3).standard_normal((7, COLUMNS), np.float32)
    quants: Any = gguf.quants
    raw = quants.quantize(weights, GGMLQuantizationType[name])
    out = StoredTensor(name, weights.shape, raw.reshape(-1)).floats()
    # Half a step of b bits over the range of about +-3.5 of a block, with some slack.
    assert np.abs(out - weights).max() < 4.5 / 2 ** (int(name[1]) - 1)
    assert np.abs(out).max() > 2.5


def test_a_q8_0_block_by_hand() -> None:
    numbers = np.arange(-16, 16, dtype=np.int8)
    raw = np.concatenate([np.array([0.25], "<f2").view(np.uint8), numbers.view(np.uint8)])
    out = StoredTensor("Q8_0", (32,), raw).floats()
    np.testing.assert_array_equal(out, numbers * np.float32(0.25))


@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_every_width(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
    values = torch.randn(3, 5).to(dtype)
    data = values.view(-1).view(torch.uint8).numpy().copy()
    data.flags.writeable = False
    out = StoredTensor(name, (3, 5), data).floats()
    assert np.array_equal(out, values.float().numpy())
    out.fill(0)  # a copy: the stored bytes stay
    assert data.any()


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_finds_what_is_not_finite(name: str) -> None:
    kind = TENSOR_TYPES[name]
    if name in FLOATS:
        rows = np.random.default_rng(1).integers(0, 1 << 14, 10_000 * kind.size // 2, np.uint16)
        raw = rows.view(np.uint8)  # small exponents in every word, whatever its width
    else:
        raw = random_blocks(name, 50).reshape(-1)
    n = raw.size // kind.size * kind.block
    assert StoredTensor(name, (n,), raw).first_nonfinite() == (None, raw.size)
    for place, sign in ((0, 0), (raw.size // kind.size - 1, 1), (123 % (raw.size // kind.size), 0)):
        for offset in kind.exponents:
            for mantissa in (2, 3) if name == "MXFP4" else (0, 1):  # infinity, NaN
                sign = 0 if name == "MXFP4" else sign
                bits = kind.mask | mantissa | sign << (kind.width * 8 - 1)
                bad = raw.copy()
                start = place * kind.size + offset
                bad[start : start + kind.width] = np.frombuffer(
                    bits.to_bytes(kind.width, "little"), np.uint8
                )
                stored = StoredTensor(name, (n,), bad)
                assert stored.first_nonfinite()[0] == place * kind.block
                with np.errstate(all="ignore"):
                    assert not np.isfinite(stored.floats()).all()


@pytest.mark.parametrize("name", BLOCKS)
def test_finite_scales_make_finite_weights(name: str) -> None:
    kind = TENSOR_TYPES[name]
    raw = np.random.default_rng(4).integers(
        0, 256, (64, COLUMNS // kind.block * kind.size), np.uint8
    )
    if name == "MXFP4":  # 252 and 253 are finite or not as their elements are
        scales = raw.reshape(-1, kind.size)[:, 0]
        scales[(scales == 252) | (scales == 253)] = 251
    stored = StoredTensor(name, (64, COLUMNS), raw.reshape(-1))
    with np.errstate(all="ignore"):
        finite = np.isfinite(dequantised(name, raw)).reshape(-1)
    first, _ = stored.first_nonfinite()
    expected = None if finite.all() else int(np.argmin(finite)) // kind.block * kind.block
    assert first == expected


def test_find_nonfinite_refuses_words_outside_the_data() -> None:
    data = np.zeros(12, np.uint8)
    assert _native.find_nonfinite(data, 0, 4, 4, 0x7F800000) == -1
    for arguments in ((0, 5, 4), (2, 4, 4), (-1, 4, 2), (0, 4, 3), (0, 0, 2)):
        with pytest.raises(ValueError, match="inside blocks"):
            _native.find_nonfinite(data, *arguments, 0x7C00)
