"""Norms and activations in Triton, under its interpreter: the reference's and native code's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoder_numerics import experts as of_experts
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats

from aleator import _native
from aleator.models.kernels import norms
from tests.models.bits import equal, numbers

pytestmark = pytest.mark.usefixtures("small_programs")
SPECIAL = np.array(
    [0, -0.0, 1, -1, 7, 7.5, -7.5, 10, -10, 9.999, 87.5, -87.5, 88.5, -88.5, 1e-30, -1e-30, 1e-42,
     65504, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan, 87, -87, 88, -88, 0.625, 18.75, -18.75, 31.25],
    np.float32,
)  # fmt: skip
KINDS = ["silu", "silu_clamped", "gelu", "gelu_exact", "gelu_rounded", "relu_squared"]


def given(x: Floats) -> torch.Tensor:
    return torch.from_numpy(x.copy())


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    return norms.normalised(x, norms.RowNorm("rms", weight, None, eps), out=out)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return norms.RowNorm("layer", weight, bias, eps)(x)


@pytest.mark.parametrize(
    ("rows", "n"),
    [(1, 1), (3, 7), (17, 16), (1, 37), (2, 64), (65, 64), (1, 576), (17, 576), (3, 1500)],
)
def test_norms(rows: int, n: int) -> None:
    x, weight, bias = numbers(rows, n), numbers(n, seed=1), numbers(n, seed=4)
    expected = reference.rms_norm(x, weight, 1e-5)
    assert equal(rms_norm(given(x), given(weight), 1e-5), expected)
    native = x.copy()
    _native.rms_norm(native, weight, 1e-5)
    assert equal(torch.from_numpy(native), expected)
    ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
    assert equal(rms_norm(given(x), None, 1e-6), reference.rms_norm(x, ones, 1e-6))
    own = layer_norm(given(x), given(weight), given(bias), 1e-5)
    assert equal(own, reference.layer_norm(x, weight, bias, 1e-5))
    own = layer_norm(given(x), given(weight), None, 1e-5)
    assert equal(own, reference.layer_norm(x, weight, zeros, 1e-5))


@pytest.mark.parametrize("n", [5, 32])
def test_norms_of_special_rows(n: int) -> None:
    x = np.zeros((len(SPECIAL) + 6, n), np.float32)
    x[: len(SPECIAL), 3] = SPECIAL
    x[-6], x[-5], x[-4, 0], x[-3] = -0.0, 1e-25, -1e-44, 3e38
    weight, bias = numbers(n, seed=1), numbers(n, seed=4)
    weight[1], bias[:] = -0.0, -0.0
    assert equal(rms_norm(given(x), given(weight), 1e-5), reference.rms_norm(x, weight, 1e-5))
    own = layer_norm(given(x), given(weight), given(bias), 1e-5)
    assert equal(own, reference.layer_norm(x, weight, bias, 1e-5))
    own = layer_norm(given(x), given(weight), None, 1e-5)
    assert equal(own, reference.layer_norm(x, weight, np.zeros_like(bias), 1e-5))


def test_norms_of_heads_in_columns() -> None:
    """Heads that are columns of a wider tensor, with weights for all or for each, and in place."""
    wide = numbers(3, 5 * 24 + 24)
    heads = wide[:, 12 : 12 + 5 * 24].reshape(3, 5, 24)
    each, shared = numbers(5, 24, seed=1), numbers(24, seed=2)
    bias = numbers(5, 24, seed=3)
    view = given(wide)[:, 12 : 12 + 5 * 24].view(3, 5, 24)
    assert equal(rms_norm(view, given(each), 1e-5), reference.rms_norm(heads, each, 1e-5))
    assert equal(rms_norm(view[1], given(each), 1e-5), reference.rms_norm(heads[1], each, 1e-5))
    weights, biases = given(np.concatenate((each, bias), 1)).chunk(2, -1)
    own = layer_norm(view, weights, biases, 1e-5)
    assert equal(own, reference.layer_norm(heads, each, bias, 1e-5))
    four = rms_norm(view.contiguous().view(3, 5, 2, 12), given(shared[:12]), 1e-5)
    assert equal(four, reference.rms_norm(heads.reshape(3, 5, 2, 12), shared[:12], 1e-5))
    assert rms_norm(view, given(shared), 1e-5, view) is view
    changed = wide.copy()
    changed[:, 12 : 12 + 5 * 24] = reference.rms_norm(heads, shared, 1e-5).reshape(3, -1)
    assert equal(view._base, changed)
    assert equal(
        rms_norm(given(shared), None, 1e-5), reference.rms_norm(shared, each[0] * 0 + 1, 1e-5)
    )
    assert rms_norm(torch.empty(0, 8), None, 1e-5).shape == (0, 8)


@pytest.mark.parametrize(("rows", "n"), [(1, 576), (17, 37), (2, 64)])
def test_norms_that_are_added(rows: int, n: int) -> None:
    x, more, post = (numbers(rows, n, seed=i) for i in range(3))
    norm = norms.RowNorm("rms", given(post[0]), None, 1e-6)
    for scale in (1.0, 0.22):
        total = x + reference.rms_norm(more, post[0], 1e-6) * np.float32(scale)
        assert equal(norms.normalised(given(more), norm, given(x), scale), total)


def of_reference(kind: str, gate: Floats, up: Floats) -> Floats:
    if kind == "silu_clamped":
        return of_experts.silu_clamped(gate, up)
    if kind == "gelu_rounded":
        made = gate.copy()
        _native.activate(kind, made, up)
        return made
    y: Floats = getattr(reference, kind)(gate) * up
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_activations(kind: str) -> None:
    gate = np.concatenate((numbers(700), numbers(500, spread=2), SPECIAL, SPECIAL))
    up = np.concatenate((numbers(1200, seed=2), np.roll(SPECIAL, 5), np.ones_like(SPECIAL)))
    expected = of_reference(kind, gate, up)
    native = gate.copy()
    _native.activate(kind, native, up)
    assert equal(torch.from_numpy(native), expected)
    assert equal(norms.activate(kind, given(gate), given(up)), expected)
    alone = of_reference(kind, gate, np.ones_like(gate))
    assert equal(norms.activate(kind, given(gate)), alone)
    assert equal(norms.activate(kind, given(gate).view(4, 2, -1)), alone.reshape(4, 2, -1))


@pytest.mark.parametrize("rows", [1, 3])
def test_activations_of_parts_of_tensors(rows: int) -> None:
    both, layers = numbers(rows, 2 * 37), numbers(rows, 5, 37, seed=1)
    own = norms.activate("gelu", given(both)[:, 37:], given(layers)[:, 3])
    assert equal(own, reference.gelu(both[:, 37:]) * layers[:, 3])
    gate = given(both)[:, :37]
    assert norms.activate("silu", gate, out=gate) is gate
    assert equal(gate, reference.silu(both[:, :37]))
    assert equal(gate._base[:, 37:].contiguous(), both[:, 37:].copy())  # type: ignore[index]


def test_rounded_gelu_of_every_half() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    expected = of_reference("gelu_rounded", halves, np.ones_like(halves))
    assert equal(norms.activate("gelu_rounded", given(halves)), expected)
    beside = np.nextafter(halves, np.float32(0))
    ones = np.ones_like(halves)
    assert equal(
        norms.activate("gelu_rounded", given(beside)), of_reference("gelu_rounded", beside, ones)
    )
    x = numbers(50_000, spread=3)
    up = numbers(50_000, seed=3)
    assert equal(
        norms.activate("gelu_rounded", given(x), given(up)), of_reference("gelu_rounded", x, up)
    )


def test_sigmoids_and_softened_logits() -> None:
    x, up = np.concatenate((numbers(1000, spread=8), SPECIAL)), numbers(1000 + len(SPECIAL), seed=1)
    assert equal(
        norms.activate("sigmoid_gate", given(x), given(up)), up / (1 + reference.exponential(-x))
    )
    for cap in (30.0, 50.0, 0.3):
        expected = x[None].copy()
        _native.soften_logits(expected, cap)
        own = given(x)
        assert norms.activate("soften", own, out=own, cap=cap) is own
        assert equal(own, expected[0])
    scaled = reference.tanh(x * np.float32(0.1) / np.float32(15)) * np.float32(15)
    assert equal(norms.activate("soften", given(x), cap=15.0, scale=0.1), scaled)


@pytest.mark.parametrize(
    ("n", "groups"),
    [
        (1, 1),
        (15, 1),
        (16, 1),
        (32, 2),
        (47, 2),
        (48, 3),
        (512, 32),
        (528, 11),
        (592, 1),
        (1024, 32),
        (4224, 24),
    ],
)
def test_groups_that_are_read_at_once_are_the_most_that_divide_them(n: int, groups: int) -> None:
    assert norms.groups_at_once(n) == groups
