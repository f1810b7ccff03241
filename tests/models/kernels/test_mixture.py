"""Mixtures of few rows in two launches: the bits of the launches one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.models.config import ExpertsConfig, Scores
from aleator.models.kernels import fused, mixture, norms, routing, works
from aleator.models.kernels.fused import product_of_few
from aleator.models.kernels.mixture import mixed_products
from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.planes import Planes, stack
from tests.models.bits import equal
from tests.models.kernels.test_fused import alone, matrix, vector
from tests.models.kernels.test_product import activations

EXPERTS, USED, WIDE, N_FF, SHARED = 4, 2, 256, 256, 256
KINDS = [("Q4_K", ""), ("MXFP4", "BF16"), ("BF16", "F32"), ("F32", "Q5_0")]
pytestmark = pytest.mark.usefixtures("small_programs")


def experts(kind: str, n_out: int, n_in: int) -> Planes:
    return stack([matrix(kind, n_out, n_in, True, seed) for seed in range(EXPERTS)])


def choice(n: int) -> torch.Tensor:
    rng = np.random.default_rng(n)
    rows = [rng.permutation(EXPERTS)[:USED] for _ in range(n)]
    return torch.from_numpy(np.stack(rows).astype(np.int32))


def compare_gates(n: int, kind: str, of_shared: str, weighs: bool) -> None:
    """Gate, up and activation; the experts are few columns wide."""
    wide = 7
    x, chosen = torch.from_numpy(activations(n, WIDE)), choice(n)
    norm = RowNorm("rms", vector(WIDE, 7), None, 1e-6)
    times = vector(n * USED, 3).view(n, USED) if weighs else None
    matrices, normed = [experts(kind, 2 * wide, WIDE)], norm(x)
    taken = normed[:, None].expand(-1, USED, -1)
    taken = taken if times is None else taken * times[:, :, None]
    y = alone(matrices[0], taken.reshape(-1, WIDE), expert=chosen.flatten())
    expected = [norms.activate("silu", y[:, :wide], y[:, wide:]).view(n, -1)]
    if of_shared:
        matrices.append(matrix(of_shared, 2 * wide + 6, WIDE, False))
        y = alone(matrices[1], normed)
        expected.append(norms.activate("silu", y[:, : wide + 3], y[:, wide + 3 :]))
    own = product_of_few(matrices, x, norm, "silu", True, chosen=chosen, times=times)
    assert equal(own, torch.cat(expected, -1).numpy())


def compare_sums(
    n: int, kind: str, of_shared: str, weighs: bool, n_out: int = 11, n_ff: int = N_FF
) -> None:
    """The last products, weighed and added; of a matrix with fewer rows than a tile has."""
    chosen = choice(n)
    matrices = [experts(kind, n_out, n_ff)]
    inner = [torch.from_numpy(activations(n * USED, n_ff)).view(n, -1)]
    weights = None if weighs else vector(n * USED, 3).view(n, USED)
    given = alone(matrices[0], inner[0].view(-1, n_ff), expert=chosen.flatten())
    shared = shared_weight = None
    if of_shared:
        matrices.append(matrix(of_shared, n_out, SHARED, False))
        inner.append(torch.from_numpy(activations(n, SHARED, 2)))
        shared, shared_weight = alone(matrices[1], inner[1]), None if weighs else vector(n, 4)
    y = routing.combine(given.view(n, USED, -1), weights, shared, shared_weight)
    x = torch.cat(inner, -1)
    residual = torch.from_numpy(activations(n, n_out, 5))
    own = mixed_products(matrices, x, chosen, weights, shared_weight, residual, 0.25)
    assert equal(own, (residual + y * 0.25).numpy())


@pytest.mark.parametrize(("kind", "of_shared"), KINDS)
def test_a_mixture(kind: str, of_shared: str) -> None:
    compare_gates(2, kind, of_shared, kind == "F32")
    compare_sums(2, kind, of_shared, kind == "F32")


@pytest.mark.parametrize(
    ("kind", "scores", "facts", "weighs"),
    [
        ("Q4_K", "softmax", {}, True),
        ("BF16", "sigmoid", {"n_groups": 2, "n_group_best": 1, "scale": 2.5}, True),
        ("F32", "chosen softmax", {"normalised": True}, False),
    ],
)
def test_experts_that_the_product_chooses(
    kind: str, scores: Scores, facts: dict[str, Any], weighs: bool
) -> None:
    """Each program for its row; one of them tells, and none reads what it told."""
    x, logits = (
        torch.from_numpy(activations(4, WIDE)),
        torch.from_numpy(activations(4, EXPERTS + 1)),
    )
    logits[1, :EXPERTS], logits[2, 1], logits[3, :EXPERTS] = 1.0, torch.nan, torch.nan
    matrices = [experts(kind, 6, WIDE), matrix("F32", 6, WIDE, False)]
    config = ExpertsConfig(EXPERTS, USED, 3, (True,), scores, **facts)
    given = logits[:, :EXPERTS], config, vector(EXPERTS, 5), vector(EXPERTS, 6), logits[:, EXPERTS]
    *made, work = routing.routing(*given)
    right = works.route(*given)
    no = torch.full_like(right[0], -1), torch.full_like(right[1], torch.nan)
    own, expected = (
        product_of_few(
            matrices, x, None, "silu", True, chosen=of[0], times=of[1] if weighs else None, beside=beside
        ) for of, beside in ((no, work), (right, None))
    )  # fmt: skip
    assert equal(own, expected.numpy())
    for ours, theirs in zip(made, right, strict=True):
        assert ours is not None
        assert theirs is not None
        assert equal(ours.view(torch.float32), theirs.view(torch.float32).numpy())


def test_programs_take_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fused, mixture):
        monkeypatch.setattr(module, "PROGRAMS", 6)
    compare_gates(1, "Q8_0", "", True)
    compare_sums(1, "Q8_0", "Q4_K", False)


@pytest.mark.parametrize("n_ff", [40, 129])
def test_inputs_that_are_no_whole_chunks(n_ff: int) -> None:
    """Of matrices of floats, which end with zeros, also where they lie side by side."""
    compare_sums(2, "BF16", "BF16", True, n_ff=n_ff)
    compare_sums(2, "F16", "BF16", False, n_ff=n_ff)
