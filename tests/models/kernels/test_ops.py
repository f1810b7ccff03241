"""Operations of layers in Triton: few rows and many have the bits of the launches one by one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aleator.models.config import ExpertsConfig
from aleator.models.kernels import fused, norms, routing, works
from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.product import product
from aleator.models.layers.norms import as_it_is
from aleator.models.layers.operands import Factors, Residual, Sum
from aleator.models.layers.ops import TORCH
from aleator.models.layers.parts import FeedForward
from aleator.models.triton import attention, ops, stacks
from aleator.models.triton.ops import TritonOps
from aleator.models.triton.stacks import Stacked, TritonLinear
from tests.models.kernels.test_fused import matrix, vector

OPS = TritonOps()
WIDE = 64
FEW = 2  # up to which rows are few, here
COUNTS = (FEW, FEW + 1)
NORM = RowNorm("rms", vector(WIDE, 7), None, 1e-5)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, ops, stacks):
        monkeypatch.setattr(module, "FEW", FEW)


def rows(n: int, wide: int, seed: int = 1) -> torch.Tensor:
    return vector(n * wide, seed).view(n, wide)


def linear(*kinds: str, n_out: int = 12, seed: int = 0, ordered: bool = False) -> TritonLinear:
    """``ordered``: the columns are in another order."""
    order = torch.arange(WIDE).view(4, -1).T.flatten() if ordered else None
    return TritonLinear(
        [matrix(kind, n_out, WIDE, i == 0, seed + i) for i, kind in enumerate(kinds)], order
    )


def each(made: TritonLinear, x: torch.Tensor) -> torch.Tensor:
    x = x if made.order is None else x[:, made.order]
    return torch.cat([product(part, x) for part in made.parts], -1)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert got.contiguous().numpy().tobytes() == expected.contiguous().numpy().tobytes()


@pytest.mark.parametrize(
    ("kinds", "ordered"), [(("Q8_0", "F16"), False), (("Q4_0",), False), (("Q4_0", "Q5_0"), True)]
)
def test_a_product_and_what_follows_it(kinds: tuple[str, ...], ordered: bool) -> None:
    made, x = linear(*kinds, ordered=ordered), rows(FEW + 1, WIDE)
    plain = each(made, NORM(x))
    half = plain.shape[1] // 2
    gated = norms.activate("gelu_rounded", plain[:, :half], plain[:, half:])
    residual = rows(len(x), plain.shape[1], 4)
    rms = RowNorm("rms", vector(half, 5), None, 1e-4)
    layer = RowNorm("layer", vector(2 * half, 5), vector(2 * half, 6), 1e-4)
    some = residual[:, :half].contiguous()
    for n in COUNTS:
        same(OPS.product(made, x[:n], NORM), plain[:n])
        own = OPS.product(made, x[:n], NORM, "silu", False, Residual(residual[:n], 0.5))
        same(own, residual[:n] + 0.5 * norms.activate("silu", plain[:n]))
        same(
            OPS.product(made, x[:n], NORM, residual=Residual(residual[:n], 0.5)),
            residual[:n] + 0.5 * plain[:n],
        )
        own = OPS.product(made, x[:n], NORM, "gelu_rounded", True, Residual(some[:n], 0.5, rms))
        same(own, some[:n] + rms(gated[:n]) * 0.5)
        own = OPS.product(made, x[:n], NORM, residual=Residual(residual[:n], 0.5, layer))
        same(own, residual[:n] + layer(plain[:n]) * 0.5)


@pytest.mark.parametrize("ordered", [False, True])
def test_products_of_one_input(ordered: bool) -> None:
    listed = [linear("Q8_0"), linear("Q8_0", seed=3, ordered=ordered), linear("F16", n_out=5)]
    x = rows(FEW + 1, WIDE)
    norms_: Any = (NORM, as_it_is)
    right_ones = [[each(made, norm(x)) for made in listed] for norm in norms_]
    products = OPS.products(listed)
    for norm, expected in zip(norms_, right_ones, strict=True):
        for n in COUNTS:
            for got, right in zip(products(x[:n], norm), expected, strict=True):
                same(got, right[:n])
    assert any(made.parts for made in listed) == ordered


def test_few_rows_meet_matrices_by_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two types take one launch, wherever they are among the matrices."""
    calls, launch = [], fused.product_of_few

    def launched(*args: Any, **how: Any) -> torch.Tensor:
        calls.append(len(args[0]))
        return launch(*args, **how)

    monkeypatch.setattr(ops, "product_of_few", launched)
    kinds = ("F16",), ("Q8_0",), ("F16", "Q8_0"), ("F16",)
    listed = [linear(*kind, n_out=5 + i, seed=3 * i) for i, kind in enumerate(kinds)]
    for made in listed:  # those with and without a bias would not be one
        made.parts[0] = replace(made.parts[0], bias=None)
    x = rows(FEW, WIDE)
    expected = [each(made, NORM(x)) for made in listed]
    for got, right in zip(OPS.products(listed)(x, NORM), expected, strict=True):
        same(got, right)
    assert calls == [2]


@pytest.mark.parametrize(
    "kinds", [("Q8_0", "Q8_0"), ("F32", "Q4_0"), ("Q5_0", "BF16"), ("F16",), ("Q8_0", "F16", "F16")]
)
def test_products_of_two_inputs(kinds: tuple[str, ...]) -> None:
    """Of other widths; the last matrix may have two types, or an order, and there may be one."""
    wide, narrow = rows(FEW + 1, WIDE + 5, 2)[:, :WIDE], rows(FEW + 1, 32)
    one = TritonLinear([matrix(kinds[0], 9, 32, True, 4)])
    other = [linear(*kinds[1:], seed=5, ordered=ordered) for ordered in (False, True)]
    gates = OPS.part_norm(16, vector(16, 3), 1e-5, rows(FEW + 1, 32, 8))
    layer = RowNorm("layer", vector(32, 5), vector(32, 6), 1e-4)
    for norm in (as_it_is, gates, layer):
        for n in (len(wide), *([] if norm is gates else [FEW])):
            for second in other if kinds[1:] else [None]:
                listed: list[Any] = [Factors(one, narrow[:n], norm)]
                if second is not None:
                    listed.append(Factors(second, wide[:n], NORM))
                for got, of in zip(OPS.each(listed), listed, strict=True):
                    same(got, each(of.matrix, of.norm(of.x.contiguous())))


def test_matrices_chosen_for_tokens_and_heads() -> None:
    def listed() -> list[TritonLinear]:
        return [linear("F16", "BF16", seed=seed) for seed in (0, 2)]

    x, numbers = rows(2 * (FEW + 1), WIDE).view(-1, 2, WIDE), torch.arange(2).repeat(FEW + 1, 1)
    expected = torch.stack([each(made, x[:, i]) for i, made in enumerate(listed())], 1)
    for n in COUNTS:
        same(OPS.each_head(listed())(x[:n]), expected[:n])
        same(OPS.chosen(listed())(x[:n], numbers[:n]), expected[:n])
    kept = listed()
    Stacked([one.parts for one in kept])
    assert not any(one.parts for one in kept)


@pytest.mark.parametrize(
    ("shared", "weighs_input", "kinds"),
    [(True, False, ("BF16",)), (False, True, ("BF16",)), (False, False, ("BF16", "F32"))],
)
def test_mixtures(shared: bool, weighs_input: bool, kinds: tuple[str, ...]) -> None:
    """Few rows take two launches, which choose the experts too; many, and parts of two types, more."""
    n_ff, config = 32, ExpertsConfig(4, 2, 32, (True,), normalised=True, weighs_input=weighs_input)

    def part(seed: int, kind: str = "F16") -> Any:
        down = TritonLinear([matrix(kind, WIDE, n_ff, True, seed + 1)])
        gate_up = linear(*kinds, n_out=2 * n_ff // len(kinds), seed=seed)
        return FeedForward(gate_up, down, n_ff, "silu")

    def parts() -> Any:
        return SimpleNamespace(
            config=config, router=linear("F32", n_out=4), choice_bias=vector(4, 3), scales=vector(4, 8),
            shared_router=vector(WIDE, 6) if shared else None, shared=part(9, "Q8_0") if shared else None,
            experts=[part(2 * i) for i in range(4)], gate="silu", gated=True,
        )  # fmt: skip

    made, other = parts(), parts()
    experts = other.experts
    chosen = [
        OPS.chosen([getattr(one, side) for one in made.experts]) for side in ("gate_up", "down")
    ]
    mixed, routed = OPS.mixture(made, *chosen), OPS.router(made)
    x, norm = rows(FEW + 1, WIDE), RowNorm("rms", vector(WIDE, 2), None, 1e-6)
    residual, normed = rows(len(x), WIDE, 5), norm(x)
    number, weight, _ = works.route(
        each(other.router, normed), config, other.choice_bias, other.scales
    )

    def through(one: Any, x: torch.Tensor) -> torch.Tensor:
        both = each(one.gate_up, x)
        return each(one.down, norms.activate("silu", both[:, :n_ff], both[:, n_ff:]))

    given = torch.zeros(len(x), 2, WIDE)
    for e in range(4):
        token, place = (number == e).nonzero(as_tuple=True)
        by_weight = weight[token, place][:, None] if weighs_input else 1.0
        given[token, place] = through(experts[e], normed[token] * by_weight)
    beside = through(other.shared, normed) if shared else None
    by = routing.sigmoid_of_dot(normed, other.shared_router) if shared else None
    y = routing.combine(given, None if weighs_input else weight, beside, by)
    for after, expected in ((as_it_is, residual + y * 0.5), (norm, residual + norm(y) * 0.5)):
        for n in COUNTS:
            own = routed(x[:n], norm)
            made_ = mixed(x[:n], norm, own, Residual(residual[:n], 0.5, after), None)
            assert own.chosen.tolist() == number[:n].tolist()
            same(own.weights, weight[:n])
            assert isinstance(made_, Sum) == (n <= FEW and after is norm)
            same(OPS.summed(made_), expected[:n])


@pytest.mark.parametrize("kinds", [("Q8_0",), ("F32", "BF16")])
def test_sums_of_two_products(kinds: tuple[str, ...]) -> None:
    """They are left to the next product, of few rows and matrices of one type each."""
    listed = [linear(*kinds, n_out=WIDE // len(kinds), seed=i) for i in (0, 5)]
    taken, residual, after = [rows(3, WIDE, i) for i in (2, 3)], rows(3, WIDE, 4), linear("Q8_0")
    first, second = (each(of, x) for of, x in zip(listed, taken, strict=True))
    total = (residual + first * 0.5) + second * 0.5
    for n in COUNTS:
        one, two = (Factors(m, x[:n]) for m, x in zip(listed, taken, strict=True))
        made = OPS.both(one, two, Residual(residual[:n], 0.5))
        same(OPS.summed(made), total[:n])
        if isinstance(made, Sum):
            x, y = OPS.sum_product(*made, after, NORM)
            same(x, total[:n])
            same(y, each(after, NORM(total[:n])))
        assert isinstance(made, Sum) == (n <= FEW and len(kinds) == 1)


def test_sums_of_more_terms_than_a_launch_makes() -> None:
    """They are made before the product, with the same bits."""
    x, y, first, matrix = *(rows(3, WIDE, i) for i in (2, 3, 4)), linear("Q8_0")
    own = RowNorm("rms", vector(WIDE, 5), None, 1e-6)
    every = Sum(y, Residual(x, 0.5, NORM, None, own, first))
    same(OPS.summed(every), own(x + first * 0.5) + NORM(y) * 0.5)
    deep = Sum(y, Residual(x, 0.5, NORM, None, own))
    for made in (every, *(deep := Sum(deep, Residual(x, 0.5, NORM)) for _ in range(3))):
        total = OPS.summed(made)
        taken, product = OPS.sum_product(*made, matrix, NORM)
        same(taken, total)
        same(product, each(matrix, NORM(total)))


@pytest.mark.parametrize("kinds", [("Q8_0",), ("F32",), ("Q8_0", "Q4_0"), ("Q8_0", "Q4_0", "F32")])
@pytest.mark.parametrize("gated", [False, True])
def test_sums_before_a_product(kinds: tuple[str, ...], gated: bool) -> None:
    """The sum has a norm of its own, or none."""
    matrix_, y, wide = linear(*kinds), rows(3, WIDE, 3), rows(3, WIDE + 4, 4)
    residual, post = wide[:, :WIDE], RowNorm("rms", vector(WIDE, 8), None, 1e-6)
    for norm in (post, as_it_is):
        x = OPS.add(y, Residual(residual, 0.5, norm))
        expected = OPS.product(matrix_, x, NORM, "silu", gated)
        for n in COUNTS:
            added = Residual(residual[:n], 0.5, norm)
            sums, made = OPS.sum_product(y[:n], added, matrix_, NORM, "silu", gated)
            same(sums, x[:n])
            same(made, expected[:n])


def test_gates() -> None:
    x, gate = rows(5, 8), rows(5, 8, 2)
    same(OPS.gate(gate.view(5, 2, 4))(x), norms.activate("sigmoid_gate", gate, x))
    own = x.clone()
    assert OPS.soften(own, 2.0) is own
    torch.testing.assert_close(own, 2 * torch.tanh(x / 2), rtol=1e-5, atol=1e-6)
    assert OPS.norm("rms", None, 1e-5) is as_it_is


def test_parts_of_no_rows_are_normalised() -> None:
    """The last layer has none where no token wants logits."""
    for form in (OPS, TORCH):
        for gate in (None, torch.empty(0, 6)):
            y = form.part_norm(2, torch.ones(6), 1e-5, gate)(torch.empty(0, 6))
            assert y.shape == (0, 6)
