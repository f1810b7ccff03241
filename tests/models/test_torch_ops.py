"""Operations of layers in PyTorch, close to the references of docs/numerics.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from decoder_numerics import delta, experts
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats

from aleator import _native
from aleator.models.config import ExpertsConfig, Scores
from aleator.models.layers.norms import as_it_is
from aleator.models.layers.operands import Residual
from aleator.models.layers.ops import TORCH

T = torch.from_numpy


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def numbers(*shape: int, spread: float = 1.0) -> Floats:
    rng = np.random.default_rng([*shape, int(10 * spread)])
    x: Floats = (rng.standard_normal(shape) * spread).astype(np.float32)
    return x


def close(got: torch.Tensor, expected: Any, least: float = 1e-6) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-5, atol=least)


@pytest.mark.parametrize(
    "kind", ["silu_clamped", "silu", "gelu", "gelu_exact", "gelu_rounded", "relu_squared"]
)
def test_activations(kind: str) -> None:
    both = numbers(40, 2 * 30, spread=6.0)
    both[0, :4] = both[0, 30:34] = [10.0, -10.0, 9.998, -9.998]
    gate, up = np.ascontiguousarray(both[:, :30]), np.ascontiguousarray(both[:, 30:])

    def expected(up: Floats) -> Floats:
        if kind == "silu_clamped":
            return experts.silu_clamped(gate, up)
        made: Floats = gate.copy()
        if kind == "gelu_rounded":
            _native.activate(kind, made.reshape(-1), up.reshape(-1))
            return made
        of_gate: Floats = getattr(reference, kind)(gate)
        return of_gate * up

    least = 1e-2 if kind == "gelu_rounded" else 1e-5
    close(TORCH.activated(T(both.copy()), kind, True), expected(up), least)
    if kind != "silu_clamped":
        close(TORCH.activated(T(gate.copy()), kind, False), expected(np.ones_like(up)), least)


def test_gates_and_softened_logits() -> None:
    x, gate = numbers(7, 12, spread=3.0), numbers(7, 12)
    close(TORCH.gate(T(gate).view(7, 3, 4))(T(x)), delta.sigmoid_gate(x, gate))
    close(TORCH.weighed(T(x), T(gate[0])), reference.sigmoid(x @ gate[0]))
    own = T(x.copy())
    assert TORCH.soften(own, 2.5) is own
    close(own, 2.5 * reference.tanh(x / np.float32(2.5)))


def test_what_is_added() -> None:
    x, y = numbers(5, 8), numbers(5, 8, spread=2.0)
    weight = numbers(8)
    norm = TORCH.norm("rms", T(weight), 1e-3)
    close(TORCH.add(T(y), Residual(T(x))), x + y)
    close(TORCH.add(T(y), Residual(T(x), 0.25)), x + y * 0.25)
    close(
        TORCH.add(T(y), Residual(T(x), 0.25, norm)), x + reference.rms_norm(y, weight, 1e-3) * 0.25
    )
    assert TORCH.norm("rms", None, 1e-3) is as_it_is
    biased = TORCH.norm("layer", T(np.concatenate((weight, x[0]))), 1e-3)
    close(biased(T(y)), reference.layer_norm(y, weight, x[0], 1e-3))
    doubled = TORCH.product(
        lambda z: z * 3, T(y), norm, "relu_squared", True, Residual(T(x[:, :4]), 0.5)
    )
    made = 3 * reference.rms_norm(y, weight, 1e-3)
    close(doubled, x[:, :4] + np.maximum(made[:, :4], 0) ** 2 * made[:, 4:] * 0.5, 1e-5)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "chosen softmax", "chosen sigmoid"])
@pytest.mark.parametrize("facts", [
    {"n_groups": 4, "n_groups_used": 2, "normalised": True}, {"scale": 2.5},
    {"n_groups": 6, "n_groups_used": 3, "n_group_best": 1, "scale": 0.5},
])  # fmt: skip
def test_routes(scores: Scores, facts: dict[str, Any]) -> None:
    made = ExpertsConfig(24, 5, 32, (True,), scores=scores, **facts)
    logits, bias, scales = np.round(2 * numbers(30, 24)), numbers(24), numbers(24, spread=2.0)
    if made.normalised and scores == "sigmoid":
        logits[3], logits[4] = -100.0, -30.0  # sums too small to divide by
    for own in (None, bias):
        chosen, weights = TORCH.route(T(logits), made, None if own is None else T(own), T(scales))
        for i, row in enumerate(logits):
            number, weight = experts.route(row, made, own, scales)
            assert chosen[i].tolist() == number.tolist()
            np.testing.assert_allclose(weights[i].numpy(), weight, rtol=1e-5, atol=1e-12)


def test_sums_of_experts() -> None:
    given, weights, shared = numbers(6, 3, 8), numbers(6, 3), numbers(6, 8)
    of_shared = numbers(6)
    plain, weighed = given.sum(1), (given * weights[:, :, None]).sum(1)
    close(TORCH.combine(T(given), None, None, None), plain)
    close(TORCH.combine(T(given), T(weights), None, None), weighed)
    close(TORCH.combine(T(given), None, T(shared), None), plain + shared)
    expected = weighed + of_shared[:, None] * shared
    close(TORCH.combine(T(given), T(weights), T(shared), T(of_shared)), expected)


def test_tokens_with_matrices_of_their_own() -> None:
    x, matrices = numbers(6, 2, 8), numbers(4, 5, 8)
    linears = [partial(torch.nn.functional.linear, weight=T(each)) for each in matrices]
    numbers_of = np.array([[3, 0], [1, 0], [0, 3], [1, 1], [3, 3], [0, 1]])
    expected = np.einsum("tkn,tkmn->tkm", x, matrices[numbers_of])
    close(TORCH.chosen(linears)(T(x), T(numbers_of)), expected, 1e-5)
    empty = torch.zeros(0, 2, 8)
    assert TORCH.chosen(linears)(empty, torch.zeros(0, 2, dtype=torch.int64)) is empty
    each = np.einsum("thn,hmn->thm", x, matrices[:2])
    close(TORCH.each_head(linears[:2])(T(x)), each, 1e-5)


def test_norms_of_parts() -> None:
    x, weight, gate = numbers(5, 3 * 6), numbers(18), numbers(5, 18, spread=2.0)
    parts = x.reshape(5, 3, 6)
    factors = [6**-0.5, 6**-0.5, 1.0]
    unit = [delta.unit_length(parts[:, i], 1e-2, f) for i, f in enumerate(factors)]
    close(TORCH.unit_length(T(x.copy()), 6, 1e-2, 2), np.concatenate(unit, 1))
    own = delta.gated_norm(parts, weight[:6], gate.reshape(5, 3, 6), 1e-2)
    first = 6, T(weight[:6]), 1e-2
    close(TORCH.part_norm(*first, T(gate))(T(x)), own.reshape(5, 18))
    plain = reference.rms_norm(parts, weight[:6], 1e-2)
    own = delta.sigmoid_gate(plain, gate.reshape(5, 3, 6))
    close(TORCH.part_norm(*first, T(gate), "sigmoid")(T(x)), own.reshape(5, 18))
    grouped = [reference.rms_norm(parts[:, i], weight[6 * i : 6 * i + 6], 1e-2) for i in range(3)]
    close(TORCH.part_norm(6, T(weight), 1e-2)(T(x)), np.concatenate(grouped, 1))
