"""Products in one launch with what is before and after them: the bits of the launches one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.models.kernels import floats, fused, norms, recurrent_parts
from aleator.models.kernels.fused import product_of_few
from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.operand import Operand
from aleator.models.kernels.own_steps import OwnSteps
from aleator.models.kernels.planes import FLOATS, Planes, joined, planes
from aleator.models.kernels.product import product
from aleator.models.kernels.recurrent_parts import Convolution, PartNorm
from tests.models.bits import equal
from tests.models.kernels import test_product as of_product
from tests.models.kernels import test_recurrent as recurrent
from tests.models.kernels.test_product import activations

pytestmark = pytest.mark.usefixtures("small_programs")


def vector(n: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(n).astype(np.float32))


def alone(each: Planes, x: torch.Tensor, expert: torch.Tensor | None = None) -> torch.Tensor:
    """A product by itself, in wide programs, which are quick here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(floats, "INTERPRETED", True)
        return product(each, x, expert=expert)


def matrix(kind: str, n_out: int, n_in: int, biased: bool, seed: int = 0) -> Planes:
    bias = vector(n_out, seed)
    if kind not in FLOATS:
        return of_product.matrix(kind, n_out, n_in, bias.numpy() if biased else None, seed)
    data = vector(n_out * n_in, seed).to(FLOATS[kind]).view(torch.uint8)
    return planes(data, kind, n_out, n_in, bias if biased else None)


@pytest.mark.parametrize("n", [6, 1])
@pytest.mark.parametrize(
    ("kinds", "n_in", "kind"),
    [
        (["Q4_K", "Q4_K", "Q6_K"], 512, "layer"), (["Q3_K", "Q3_K", "Q5_K"], 256, "rms"),
        (["Q8_0", "Q3_K"], 512, ""), (["Q4_0"], 96, "rms"), (["F16", "Q5_1"], 160, "layer"),
        (["BF16", "BF16", "F32"], 37, ""), (["MXFP4", "Q2_K"], 256, ""), (["F32", "BF16"], 37, "layer"),
    ],
)  # fmt: skip
def test_several_matrices(kinds: list[str], n_in: int, kind: str, n: int) -> None:
    listed = [
        matrix(of, 11 - 2 * i, n_in, i + 1 == len(kinds), seed=i) for i, of in enumerate(kinds)
    ]
    x = torch.from_numpy(activations(12, n_in))[12 - n :]
    norm, normed = None, x
    if kind:
        bias = vector(n_in, 8) if kind == "layer" else None
        norm = RowNorm(kind, vector(n_in, 7), bias, 1e-6)
        normed = norm(x)
    expected = torch.cat([alone(each, normed) for each in listed], -1)
    matrices = listed if kind else joined(listed)
    assert len(matrices) == len(set(kinds)) or kind
    assert equal(product_of_few(matrices, x, norm), expected.numpy())


@pytest.mark.parametrize(
    ("kind", "activation"), [("Q4_K", "gelu_rounded"), ("Q5_0", "silu"), ("F32", "silu")]
)
def test_activations_and_residuals(kind: str, activation: str) -> None:
    n_in, n_ff = 256, 11
    both = matrix(kind, 2 * n_ff, n_in, True)
    x = torch.from_numpy(activations(6, n_in))
    norm = RowNorm("rms", vector(n_in, 7), None, 1e-5)
    y = alone(both, norm(x))
    expected = norms.activate(activation, y[:, :n_ff], y[:, n_ff:])
    assert equal(product_of_few([both], x, norm, activation, True), expected.numpy())
    expected = norms.activate(activation, y)
    assert equal(product_of_few([both], x, norm, activation), expected.numpy())
    residual = torch.from_numpy(activations(6, 2 * n_ff, 3))
    expected = product(both, x, None, residual, 0.25)
    assert equal(product_of_few([both], x, residual=residual, scale=0.25), expected.numpy())


@pytest.mark.parametrize("n", [6, 1])
@pytest.mark.parametrize(
    ("kinds", "size", "each", "gate"),
    [
        (["Q4_K", "Q8_0"], 16, False, "silu"), (["F32"], 24, False, "sigmoid"), (["Q5_0"], 96, True, ""),
        (["BF16"], 8, None, "sigmoid"), (["Q8_0"], 1280, True, "silu"),
        (["Q8_0"], 256, None, "gelu_rounded"),
    ],
)  # fmt: skip
def test_parts_are_normalised_first(
    kinds: list[str], size: int, each: bool | None, gate: str, n: int
) -> None:
    """``each``: parts have weights of their own; None: there are none, only gates, which lie apart."""
    n_in = {24: 72, 96: 192, 1280: 1280}.get(size, 256)
    listed = [matrix(kind, 9, n_in, True, seed=i) for i, kind in enumerate(kinds)]
    x = torch.from_numpy(activations(6, n_in))[:n]
    gates = vector(6 * 2 * n_in, 4).view(6, -1, 2, size)[:n, :, 1] if gate else None
    weight = None if each is None else vector(n_in if each else size, 5)
    parts = PartNorm(size, weight, 1e-5, gates, gate or "silu")
    expected = torch.cat([alone(of, parts(x)) for of in listed], -1)
    assert equal(product_of_few(listed, x, parts=[parts]), expected.numpy())
    norm = RowNorm("rms", vector(n_in, 7), None, 1e-6)
    expected = torch.cat([alone(of, norm(parts(x))) for of in listed], -1)
    assert equal(product_of_few(listed, x, norm, parts=[parts]), expected.numpy())


@pytest.mark.parametrize("n", [5, 1])
@pytest.mark.parametrize(
    ("kinds", "n_in"), [(["BF16", "Q8_0"], 96), (["F16", "BF16"], 96), (["Q4_K"], 256)]
)
def test_sums_are_made_first(kinds: list[str], n_in: int, n: int) -> None:
    """What is added to x after a norm, and kept; matrices take this sum's own norm."""
    listed = [matrix(kind, 19 - 6 * i, n_in, True, seed=i) for i, kind in enumerate(kinds)]
    x, residual = torch.from_numpy(activations(n, n_in)), vector(n * n_in, 5).view(n, n_in)
    before, norm = (RowNorm("rms", vector(n_in, seed), None, 1e-6) for seed in (7, 8))
    kept = torch.empty_like(x)
    parts = PartNorm(n_in, before.weight, before.eps, None, "", residual, 0.5, None, kept)
    total = norms.normalised(x, before, residual, 0.5)
    expected = torch.cat([alone(each, norm(total)) for each in listed], -1)
    assert equal(product_of_few(listed, x, norm, parts=[parts]), expected.numpy())
    assert equal(kept, total.numpy())


@pytest.mark.parametrize("n", [5, 1])
@pytest.mark.parametrize(("kinds", "n_in"), [(["F16", "BF16"], 96), (["Q4_K", "F32"], 256)])
def test_sums_of_sums_are_made_first(kinds: list[str], n_in: int, n: int) -> None:
    """Of a dense part and experts, after the norm of each, and of all; the second matrix is a router's."""
    gate_up, router = (matrix(kind, 18, n_in, False, seed=i) for i, kind in enumerate(kinds))
    dense, mixed, x = (vector(n * n_in, seed).view(n, n_in) for seed in (3, 4, 5))
    a, b, c, own, of = (RowNorm("rms", vector(n_in, seed), None, 1e-6) for seed in range(6, 11))
    kept, whole = torch.empty_like(x), torch.tensor([0.75])
    parts = [
        PartNorm(n_in, a.weight, a.eps),
        PartNorm(n_in, b.weight, b.eps, takes=mixed),
        PartNorm(n_in, c.weight, c.eps, None, "", x, 0.5, whole, kept),
    ]
    total = norms.normalised(norms.normalised(mixed, b, a(dense)), c, x, 0.5) * whole
    y = alone(gate_up, own(total))
    inner = norms.activate("gelu", y[:, :9], y[:, 9:])
    made = product_of_few(
        [gate_up, router], dense, own, "gelu", True, parts=parts, second=Operand(dense, of, parts)
    )
    assert equal(kept, total.numpy())
    assert equal(made, torch.cat([inner, alone(router, of(total))], -1).numpy())


def test_programs_take_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are not full."""
    monkeypatch.setattr(fused, "PROGRAMS", 4)
    listed = [matrix("Q4_K", 22, 512, False), matrix("Q6_K", 18, 512, True)]
    x = torch.from_numpy(activations(6, 512))
    norm = RowNorm("rms", vector(512, 7), None, 1e-6)
    expected = [alone(each, norm(x)) for each in listed]
    assert equal(product_of_few(listed, x, norm), torch.cat(expected, -1).numpy())
    made = product_of_few(listed[:1], x, norm, "silu", True)
    y = expected[0]
    assert equal(made, norms.activate("silu", y[:, :11], y[:, 11:]).numpy())


@pytest.mark.parametrize(("name", "n", "multiplied"), [("mixed", 70, 5), ("in place", 5, 16)])
def test_convolutions_beside_products(name: str, n: int, multiplied: int) -> None:
    """What is convolved while other rows are multiplied; programs there are more than chains need."""
    batch = recurrent.batch_of(name)
    runs, rng = recurrent.runs_of(batch, n > 5), np.random.default_rng(7)
    x, weight = (
        recurrent.strided(recurrent.numbers(rng, len(batch.order), n, special=True)),
        torch.from_numpy(recurrent.numbers(rng, n, 4)),
    )
    before = torch.from_numpy(recurrent.numbers(rng, recurrent.ROWS, n, 3, special=True))
    kept, of = before.clone(), (runs, True)
    expected = recurrent.convolve(x, weight, None, before, *of)
    y, work = recurrent_parts.convolving(x, weight, None, kept, *of)
    matrices = [matrix(kind, 9, 32, False) for kind in ("Q8_0", "BF16")]
    one, other = (torch.from_numpy(recurrent.numbers(rng, multiplied, 32)) for _ in range(2))
    made = product_of_few(matrices, one, second=Operand(other), beside=work)
    assert equal(y, expected.numpy())
    assert equal(kept, before.numpy())
    both = [product(of, rows).numpy() for of, rows in zip(matrices, (one, other), strict=True)]
    assert equal(made, np.concatenate(both, 1))


@pytest.mark.parametrize(
    ("name", "kind", "normed"),
    [
        ("few", "Q8_0", True), ("few", "BF16", False), ("few", "F32", True), ("in place", "F32", False),
        ("three", "Q5_1", False),
    ],
)  # fmt: skip
def test_states_of_few_tokens(name: str, kind: str, normed: bool) -> None:
    """What two launches make and keep is what a convolution, two products and a scan do."""
    inner, rank, n = 64, 32, 16
    batch = recurrent.batch_of(name)
    runs, t = recurrent.runs_of(batch, name == "few"), len(batch.order)
    rng = np.random.default_rng([t, normed])

    def numbers(*shape: int, special: bool = False) -> torch.Tensor:
        return torch.from_numpy(recurrent.numbers(rng, *shape, special=special))

    select = matrix(kind, rank + 2 * n, inner, False)
    last = matrix(kind, inner, rank, True)
    x, gate = numbers(t, 2 * inner, special=True).chunk(2, 1)
    weight, bias, a, d = numbers(inner, 4), numbers(inner), numbers(inner, n), numbers(inner)
    norm = RowNorm("rms", numbers(rank), None, 1e-5) if normed else None
    of_both = (numbers(2, n), 1e-5) if normed else None
    apart = numbers(recurrent.ROWS, inner, 3), numbers(recurrent.ROWS, inner, n)
    conv, kept = (each.clone() for each in apart)

    def scanned(u: torch.Tensor, selected: torch.Tensor, step: Any, kept: torch.Tensor) -> Any:
        b, c = selected[:, rank:].chunk(2, 1)
        return recurrent.scan(u, step, a, b, c, d, gate, kept, runs, normed=of_both)

    u = recurrent.convolve(x, weight, bias, apart[0], runs, True)
    selected = product_of_few([select], u)
    steps = product_of_few([last], selected[:, :rank], norm)
    expected = scanned(u, selected, steps, apart[1])
    taken = Convolution(weight, bias, conv, runs, torch.empty(t, inner))
    selected = product_of_few([select], x, parts=[taken])
    own = OwnSteps(last, Operand(selected[:, :rank], norm), x, taken)
    assert equal(scanned(taken.y, selected, own, kept), expected.numpy())
    assert equal(taken.y, u.numpy())
    for made, before in zip((conv, kept), apart, strict=True):
        assert equal(made, before.numpy())
