"""Products in Triton, under its interpreter: the contract's bits, for every type of weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from decoder_numerics import floats as reference
from decoder_numerics.blocks import FORMATS, Floats
from decoder_numerics.blocks import product as reference_product
from decoder_numerics.blocks import round_rows as reference_rounding
from triton.runtime import interpreter

from aleator import _native
from aleator.core.threads import pool
from aleator.models.kernels import planes as planes_module
from aleator.models.kernels import product as kernels
from aleator.models.kernels.planes import FLOATS, FORMS, Planes, planes, stack
from tests.models.bits import equal
from tests.models.test_block_numerics import random_rows

LARGER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
pytestmark = pytest.mark.usefixtures("small_programs")


def activations(n: int, n_in: int, seed: int = 1) -> Floats:
    """Rows of many magnitudes, and from the sixth on rows with special values."""
    x = np.random.default_rng([seed, n_in]).standard_normal((n, n_in)).astype(np.float32)
    x[1::7] *= np.float32(1e-20)
    x[2::7] *= np.float32(1e20)
    for i, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-101, 1e-45, 2.0**-100)):
        x[5 + i : 6 + i, i % n_in] = value
        if i > 2:
            x[5 + i : 6 + i] = value
    return x


def matrix(kind: str, n_out: int, n_in: int, bias: Floats | None = None, seed: int = 0) -> Planes:
    data = torch.from_numpy(random_rows(kind, n_out, n_in, seed))
    return planes(data, kind, n_out, n_in, None if bias is None else torch.from_numpy(bias))


def test_every_type_has_a_form() -> None:
    assert FORMS.keys() == FORMATS.keys()


@pytest.mark.parametrize("kind", FORMATS)
def test_products_are_the_reference(kind: str) -> None:
    n_out, n_in = 19, 3 * FORMATS[kind][0]
    data = random_rows(kind, n_out, n_in)
    x = activations(17, n_in)
    expected = reference_product(kind, data, x)
    own = matrix(kind, n_out, n_in)
    for n in (6, 17):
        assert equal(kernels.product(own, torch.from_numpy(x[:n])), expected[:n]), n
    native = np.empty_like(expected)
    stored = _native.StoredMatrix(data.reshape(-1), kind, n_out, n_in)
    _native.linear(pool(1), stored, x, native)
    assert equal(torch.from_numpy(native), expected)


def test_every_value_of_a_table() -> None:
    x = activations(2, 64)
    for kind in ("MXFP4", "IQ4_NL"):
        size = FORMATS[kind][1]
        data = random_rows(kind, 8, 64)
        data.reshape(8, 2, size)[:, :, -16:] = np.arange(16) * 16 + np.arange(15, -1, -1)
        expected = reference_product(kind, data, x)
        own = planes(torch.from_numpy(data), kind, 8, 64)
        assert equal(kernels.product(own, torch.from_numpy(x)), expected)


def test_every_exponent_of_mxfp4() -> None:
    data = random_rows("MXFP4", 8, 1024)
    data.reshape(256, 17)[:, 0] = np.arange(256)
    expected = np.empty((8, 1024), np.float32)
    stored = _native.StoredMatrix(data.reshape(-1), "MXFP4", 8, 1024)
    _native.read_rows(pool(1), stored, np.arange(8), expected)
    own = planes(torch.from_numpy(data), "MXFP4", 8, 1024)
    assert equal(kernels.read_rows(own, torch.arange(8)), expected)
    x = activations(1, 1024)
    assert equal(kernels.product(own, torch.from_numpy(x)), reference_product("MXFP4", data, x))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q2_K", "Q5_1", "MXFP4"])
def test_matrices_are_laid_out_some_rows_at_a_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To need little memory beside the planes, which are the same."""
    data = random_rows(kind, 7, 512)
    whole = planes(torch.from_numpy(data), kind, 7, 512).tensors
    laid, taken = planes_module._laid_out, list[int]()

    def noted(part: torch.Tensor, *given: Any) -> Any:
        taken.append(len(part))
        return laid(part, *given)

    monkeypatch.setattr(planes_module, "_laid_out", noted)
    for elements, sizes in ((1, [1] * 7), (3 * 512, [3, 3, 1]), (7 * 512, [7])):
        monkeypatch.setattr(planes_module, "_AT_ONCE", elements)
        taken.clear()
        parts = planes(torch.from_numpy(data), kind, 7, 512).tensors
        assert taken == sizes
        assert parts.keys() == whole.keys()
        assert all(torch.equal(parts[name], whole[name]) for name in whole)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_those_of_native_code(kind: str) -> None:
    n_out, n_in = 5, 3 * FORMATS[kind][0]
    data = random_rows(kind, n_out, n_in)
    ids = np.array([4, 0, 4, 2])
    expected = np.empty((4, n_in), np.float32)
    stored = _native.StoredMatrix(data.reshape(-1), kind, n_out, n_in)
    _native.read_rows(pool(1), stored, ids, expected)
    own = planes(torch.from_numpy(data), kind, n_out, n_in)
    assert equal(kernels.read_rows(own, torch.from_numpy(ids)), expected)


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K", "Q2_K", "IQ4_XS", "IQ1_M"])
def test_extreme_bytes(kind: str) -> None:
    """Blocks of equal bytes with the largest activations."""
    block, size, _ = FORMATS[kind]
    x = np.ones((17, 2 * block), np.float32)
    x[1, ::2] = -1
    x[2] = -1
    data = np.repeat(np.array([0x00, 0x7F, 0x80, 0xFF], np.uint8)[:, None], 2 * size, 1)
    expected = reference_product(kind, data, x)
    own = planes(torch.from_numpy(data), kind, 4, 2 * block)
    for n in (3, 17):
        assert equal(kernels.product(own, torch.from_numpy(x[:n])), expected[:n])


@pytest.mark.parametrize("kind", ["Q5_1", "Q4_K"])
def test_rows_longer_than_a_tile(kind: str) -> None:
    data, x = random_rows(kind, 37, 2304), activations(2, 2304)
    own = planes(torch.from_numpy(data), kind, 37, 2304)
    assert equal(kernels.product(own, torch.from_numpy(x)), reference_product(kind, data, x))


@pytest.mark.parametrize("kind", ["Q2_K", "Q5_1"])
def test_several_tiles_each_way(kind: str) -> None:
    for n, n_out, n_in in ((6, 11, 2304), (66, 67, 512)):
        data, x = random_rows(kind, n_out, n_in), activations(n, n_in)
        own = planes(torch.from_numpy(data), kind, n_out, n_in)
        got = kernels.product(own, torch.from_numpy(x))
        assert equal(got, reference_product(kind, data, x)), n


def test_the_instruction_for_four_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On NVIDIA's GPUs the products of four bytes are one instruction, which the interpreter does not have."""

    def of_four(self: Any, asm: str, constraints: str, values: Any, *_: Any) -> SimpleNamespace:
        assert (asm, constraints) == ("dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r")
        *both, added = (np.ascontiguousarray(each.data) for each in values)
        a, b = (x.view(np.int8).reshape(*x.shape, 4).astype(np.int32) for x in both)
        made = interpreter.TensorHandle((a * b).sum(-1, dtype=np.int32) + added, tl.int32)
        return SimpleNamespace(get_result=[made].__getitem__)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", of_four)
    monkeypatch.setattr(kernels, "has_dp4a", lambda x: True)
    for kind, n_in in (("Q2_K", 768), ("Q8_0", 96), ("Q6_K", 512)):
        data, x = random_rows(kind, 11, n_in), activations(6, n_in)
        own = planes(torch.from_numpy(data), kind, 11, n_in)
        assert equal(kernels.product(own, torch.from_numpy(x)), reference_product(kind, data, x))


@pytest.mark.parametrize("block", [32, 256])
def test_rounding_is_the_reference(block: int) -> None:
    x = activations(14, 3 * block)
    x[13, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    expected = reference_rounding(x, block)
    rows = kernels.round_rows(torch.from_numpy(x), block, in_words=False)
    assert np.array_equal(rows.q.numpy(), expected.q)
    assert equal(rows.d, expected.d)
    words = kernels.round_rows(torch.from_numpy(x), block, in_words=True)
    q = words.q.numpy().transpose(0, 2, 1, 3).reshape(len(x), -1)
    assert np.array_equal(q, expected.q)
    sums = expected.q.reshape(len(x), -1, 2, 16).sum(-1).transpose(0, 2, 1)
    assert np.array_equal(rows.sums.numpy(), sums)
    assert np.array_equal(words.sums.numpy(), sums)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("n_out", "n_in"), [(1, 1), (5, 7), (9, 40), (37, 300), (67, 256), (3, 1280)]
)
def test_floats_are_the_reference(kind: str, n_out: int, n_in: int) -> None:
    """Also of several tiles each way, and of whole chunks, of which some are read at a time."""
    rng = np.random.default_rng([n_out, n_in])
    w = torch.from_numpy(rng.standard_normal((n_out, n_in)).astype(np.float32)).to(FLOATS[kind])
    w[0, 0] = -0.0
    definition = reference.paired_products if kind == "BF16" else reference.products
    bias = rng.standard_normal(n_out).astype(np.float32)
    x = activations(17, max(n_in, 7))[:, :n_in]
    own = planes(w.view(torch.uint8), kind, n_out, n_in, torch.from_numpy(bias))
    bare = planes(w.view(torch.uint8), kind, n_out, n_in)
    for n in (1, 3, 17):
        part = x[:n].copy()
        assert equal(
            kernels.product(own, torch.from_numpy(part)),
            definition(w.float().numpy(), part, bias),
        )
        assert equal(
            kernels.product(bare, torch.from_numpy(part)),
            definition(w.float().numpy(), part),
        )
    ids = torch.tensor([n_out - 1, 0])
    assert equal(kernels.read_rows(own, ids), w.float()[ids].numpy())


def test_least_numbers_of_bfloat16() -> None:
    """Activations about 2^-52, ties, the largest ones; weights whose products round to zeros of either sign."""
    rng, n_in = np.random.default_rng(4), 96
    edges = (127 - 52 << 23) + np.arange(-0x8003, 0x8003, 0x5555)
    ties = 0x3F808000 + np.arange(-1, 0x18002, 0x8000)
    largest = np.array([0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF])
    words = np.concatenate((edges, ties, largest)).astype(np.uint32)
    x = np.resize(np.concatenate((words, words | 1 << 31)), (17, n_in)).view(np.float32)
    x[16] = 2.0**-52
    w = rng.integers(0, 2**16, (9, n_in)).astype(np.uint16)
    w[:3] &= 0x80FF  # below 2^-125
    w[0] |= 0x8001
    own = planes(torch.from_numpy(w.view(np.uint8)), "BF16", 9, n_in)
    expected = reference.paired_products((w.astype(np.uint32) << 16).view(np.float32), x)
    for n in (3, 17):  # the interpreter's sums of few rows make -0 to +0
        assert equal(kernels.product(own, torch.from_numpy(x[:n])), expected[:n]), n
    assert expected[16, 0] == 0.0
    assert np.signbit(expected[16, 0])


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_K", "MXFP4", "BF16"])
@pytest.mark.parametrize("n", [2, 17])
def test_bias_residual_and_scale(kind: str, n: int) -> None:
    n_out, n_in = 11, 512
    rng = np.random.default_rng(n)
    bias = rng.standard_normal(n_out).astype(np.float32)
    if kind == "BF16":
        w = torch.from_numpy(rng.standard_normal((n_out, n_in)).astype(np.float32)).bfloat16()
        own = planes(w.view(torch.uint8), kind, n_out, n_in, torch.from_numpy(bias))
    else:
        own = matrix(kind, n_out, n_in, bias)
    x = torch.from_numpy(activations(n, n_in)[:n])
    plain = kernels.product(own, x).numpy()
    if kind != "BF16":
        expected = reference_product(kind, random_rows(kind, n_out, n_in), x.numpy()) + bias
        assert equal(torch.from_numpy(plain), expected)
    residual = torch.from_numpy(rng.standard_normal((n, n_out + 5)).astype(np.float32))
    part = residual[:, 2 : 2 + n_out]
    expected = part.numpy() + np.float32(0.3) * plain
    given = x if kind == "BF16" else kernels.round_rows(x, own.block)
    assert kernels.product(own, given, out=part, residual=part, scale=0.3) is part
    assert equal(part.contiguous(), expected)


@pytest.mark.parametrize("kind", ["Q5_0", "Q4_K", "Q2_K", "MXFP4", "F16"])
def test_each_row_with_its_own_expert(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_out, n_in = 9, 256
    rng = np.random.default_rng(3)
    biases = rng.standard_normal((3, n_out)).astype(np.float32)
    if kind == "F16":
        w = torch.from_numpy(rng.standard_normal((3, n_out, n_in)).astype(np.float16))
        each = [
            planes(
                w[i].contiguous().view(torch.uint8), kind, n_out, n_in, torch.from_numpy(biases[i])
            )
            for i in range(3)
        ]
    else:
        each = [matrix(kind, n_out, n_in, biases[i], seed=i) for i in range(3)]
    x = torch.from_numpy(activations(7, n_in))
    expert = torch.tensor([2, 0, 1, 1, 2, 0, 0], dtype=torch.int32)
    every = [kernels.product(one, x).numpy() for one in each]
    expected = np.stack([every[e][i] for i, e in enumerate(expert.tolist())])
    all_of_them = stack(each)
    assert all_of_them.nbytes == sum(one.nbytes for one in each)
    assert equal(kernels.product(all_of_them, x, expert=expert), expected)
    monkeypatch.setattr(kernels, "SUMS", 1)  # a launch for each row
    assert equal(kernels.product(all_of_them, x[:2], expert=expert[:2]), expected[:2])


def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(1, 256)
    with pytest.raises(ValueError, match="not rounded for Q4_K"):
        kernels.product(matrix("Q4_K", 2, 256), kernels.round_rows(x, 32))
    with pytest.raises(ValueError, match="differ in type or shape"):
        stack([matrix("Q4_K", 2, 256), matrix("Q4_K", 3, 256)])
    with pytest.raises(ValueError, match="some have none"):
        stack([matrix("Q4_K", 2, 256), matrix("Q4_K", 2, 256, np.zeros(2, np.float32))])


def test_no_rows() -> None:
    own = matrix("Q8_0", 4, 64)
    assert kernels.product(own, torch.zeros(0, 64)).shape == (0, 4)
    assert kernels.read_rows(own, torch.zeros(0, dtype=torch.int64)).shape == (0, 64)


def test_planes_are_about_as_large_as_what_is_stored() -> None:
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", *LARGER, "IQ4_XS"):
        stored = random_rows(kind, 4, 512).nbytes
        assert matrix(kind, 4, 512).nbytes <= stored * 1.04, kind
