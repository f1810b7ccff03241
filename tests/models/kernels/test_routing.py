"""Mixtures of experts in Triton, under its interpreter: the reference's and native code's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from decoder_numerics import experts as reference
from decoder_numerics.blocks import Floats
from decoder_numerics.floats import dot16, sigmoid

from aleator.models.config import ExpertsConfig, Scores
from aleator.models.kernels import routing, works
from tests.models.bits import equal
from tests.models.test_experts import SCORES, config, native

SMALL = pytest.mark.usefixtures("small_programs")


def tensor(x: Floats | None) -> torch.Tensor | None:
    return None if x is None else torch.from_numpy(x.copy())


def compare(
    logits: Floats, made: ExpertsConfig, bias: Floats | None = None, scales: Floats | None = None
) -> None:
    """Every row of the device's with native code's, and one with the reference's."""
    chosen, weights, _ = works.route(torch.from_numpy(logits), made, tensor(bias), tensor(scales))
    theirs = native(logits, made, bias, scales)
    assert chosen.dtype == torch.int32
    assert chosen.tolist() == theirs[0].tolist()
    assert equal(weights, theirs[1])
    last = reference.route(logits[-1], made, bias, scales)
    assert chosen[-1].tolist() == last[0].tolist()
    assert equal(weights[-1], last[1])


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("facts", [
    {}, {"normalised": True, "scale": 2.5}, {"n_groups": 4, "n_groups_used": 2, "normalised": True},
    {"n_groups": 6, "n_groups_used": 2, "n_group_best": 1},
])  # fmt: skip
@pytest.mark.parametrize("biased", [False, True])
def test_routes(scores: Scores, facts: dict[str, Any], biased: bool) -> None:
    rng = np.random.default_rng(1)
    logits = (3 * rng.standard_normal((40, 24))).astype(np.float32)
    logits[:20] = np.round(logits[:20])  # ties
    logits[20, 3], logits[21, 5], logits[22], logits[23], logits[24] = (
        np.nan,
        -np.inf,
        0,
        np.nan,
        -np.inf,
    )
    logits[25, 7], logits[26, ::2], logits[27] = np.inf, -0.0, -200
    logits[28, :4] = [np.inf, -np.inf, np.inf, -np.inf]
    bias = rng.standard_normal(24).astype(np.float32) if biased else None
    scales = rng.standard_normal(24).astype(np.float32) if biased else None
    compare(logits, config(24, 6, scores=scores, **facts), bias, scales)


@pytest.mark.parametrize(("n", "used", "facts"), [
    (8, 2, {"normalised": True}), (60, 4, {}), (128, 8, {"normalised": True}), (8, 8, {}),
    (160, 6, {"n_groups": 8, "n_groups_used": 3, "n_group_best": 1, "scale": 16.0}),
    (256, 8, {"n_groups": 8, "n_groups_used": 4, "normalised": True, "scale": 2.5}),
    (512, 22, {"normalised": True}), (40, 37, {}), (3, 1, {}),
])  # fmt: skip
@pytest.mark.parametrize("scores", SCORES)
@SMALL
def test_models_sizes(n: int, used: int, facts: dict[str, Any], scores: Scores) -> None:
    rng = np.random.default_rng([n, used])
    bias = rng.standard_normal(n).astype(np.float32) if "n_groups" in facts else None
    for rows in (1, 2, 3, 17) if n == 128 else (3,):
        logits = (3 * rng.standard_normal((rows, n))).astype(np.float32)
        compare(logits, config(n, used, scores=scores, **facts), bias)


@SMALL
def test_routes_of_columns_and_of_no_tokens() -> None:
    wide = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    made = config(24, 6)
    of_shared = torch.from_numpy(wide)[:, 33]
    chosen, weights, shared = works.route(torch.from_numpy(wide)[:, 8:32], made, shared=of_shared)
    assert shared is not None
    assert equal(shared, sigmoid(wide[:, 33]))
    theirs = native(np.ascontiguousarray(wide[:, 8:32]), made)
    assert chosen.tolist() == theirs[0].tolist()
    assert equal(weights, theirs[1])
    assert works.route(torch.empty(0, 24), made)[0].shape == (0, 6)
    assert routing.combine(torch.empty(0, 6, 9), torch.empty(0, 6)).shape == (0, 9)


@SMALL
@pytest.mark.parametrize("weighs_input", [False, True])
@pytest.mark.parametrize("shared", ["none", "plain", "weighed"])
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_sums_of_experts(weighs_input: bool, shared: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    n, used = 77, 3

    def numbers(*shape: int) -> Floats:
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)).astype(np.float32)

    x, outputs, weights, of_shared = (
        numbers(rows, n),
        numbers(rows, used, n),
        numbers(rows, used),
        numbers(rows, n),
    )
    outputs[0, :, :4] = [[0, -0.0, np.inf, np.nan]] * used
    router = numbers(n)
    shared_weight = routing.sigmoid_of_dot(torch.from_numpy(x), torch.from_numpy(router))
    assert equal(shared_weight, sigmoid(dot16(x, router)))
    own = routing.combine(
        torch.from_numpy(outputs), None if weighs_input else torch.from_numpy(weights),
        None if shared == "none" else torch.from_numpy(of_shared),
        shared_weight if shared == "weighed" else None,
    )  # fmt: skip
    made = config(used, used, weighs_input=weighs_input)

    def part(given: Floats) -> reference.Part:
        return lambda _: given[None]

    rows_expected = [
        reference.mixture(
            x[t], np.arange(used), weights[t], [part(outputs[t, k]) for k in range(used)], made,
            None if shared == "none" else part(of_shared[t]), router if shared == "weighed" else None,
        ) for t in range(rows)
    ]  # fmt: skip
    assert equal(own, np.stack(rows_expected))
