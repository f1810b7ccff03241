"""Heads made ready and stored in one launch, under Triton's interpreter: native bits, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat
from aleator.models.kernels import cells, heads, works
from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.rotation import RotationAngles, hadamard, rotate
from aleator.models.triton.ops import TritonOps

pytestmark = pytest.mark.usefixtures("small_programs")


def numbers(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("keys", "values"), [("q8_0", "f16"), ("f32", "q5_1"), ("q4_1", "bf16"), ("q5_0", "q4_0")]
)
def test_one_launch_is_several(keys: str, values: str, interleaved: bool, last: bool) -> None:
    """Queries, keys and values, each with their own norm, size, rotation and storage; some are not stored."""
    rng = np.random.default_rng(3)
    order = torch.tensor([3, -1, 0, 6, 1])
    by = RotationAngles(numbers(rng, 5, 9, 2), 4, interleaved)
    each = RowNorm("layer", numbers(rng, 3, 24), numbers(rng, 3, 24), 1e-5)
    shared = RowNorm("rms", numbers(rng, 64), None, 1e-6)
    given: Any = []
    for n, dim, norm, rotates, kind, rotation in (
        (3, 24, each, True, "", 0), (2, 64, shared, True, keys, 32), (2, 96, None, False, values, 0),
    ):  # fmt: skip
        stored = [
            HostLayer(LayerFormat(TYPES[kind], n, dim, 8, False, rotation)) for _ in "ab" if kind
        ]
        given.append((numbers(rng, 5, n, dim), norm, rotates, stored, rotation))
    made = [
        heads.Heads(x.clone(), norm, rotates, cells.side(stored[0]) if stored else None)
        for x, norm, rotates, stored, _ in given
    ]
    works.launch(heads.finishing(made, by, order, last))
    for (x, norm, rotates, stored, rotation), own in zip(given, made, strict=True):
        for step in (1, 2, 3) if last else (2, 1, 3):
            if step == 1 and rotates:
                rotate(x, by)
            if step == 2 and norm is not None:
                x = norm(x)
        if stored:
            cells.store(stored[1], order, x)
            assert stored[0].bytes.tobytes() == stored[1].bytes.tobytes()
            assert stored[0].bytes.any()
        assert own.x.numpy().tobytes() == hadamard(x, rotation).numpy().tobytes()


@pytest.mark.parametrize("dim", [24, 40])
def test_heads_of_parts(dim: int) -> None:
    """Parts with any strides are put side by side; the first channels are normalised; factors come last."""
    rng = np.random.default_rng(dim)
    by, norm = (
        RotationAngles(numbers(rng, 5, 4, 2), 16, True),
        RowNorm("rms", numbers(rng, 16), None, 1e-5),
    )
    first = numbers(rng, 5, 3, 20)[:, :, :16]
    shared = numbers(rng, 5, 50)[:, None, 10 : dim - 6].expand(5, 3, dim - 16)
    whole = torch.cat((first, shared), -1)
    scales = numbers(rng, 5)
    queries = heads.heads_of([first, shared], norm, True, None, normed=16)
    keys = heads.heads_of([whole.transpose(0, 1).contiguous().transpose(0, 1)], None, True, None)
    assert queries.sources
    assert keys.sources
    works.launch(heads.finishing([queries, keys], by, torch.arange(5), scales=scales))
    expected = rotate(torch.cat((norm(first), shared), -1), by) * scales[:, None, None]
    assert queries.x.numpy().tobytes() == expected.numpy().tobytes()
    assert keys.x.numpy().tobytes() == rotate(whole.clone(), by).numpy().tobytes()


def test_heads_are_changed_in_place_unless_they_are_kept() -> None:
    x = numbers(np.random.default_rng(1), 5, 3, 16)
    before = x.clone()
    norm = RowNorm("rms", None, None, 1e-5)
    kept = [heads.heads_of([x], each, False, None, keep=True) for each in (norm, None)]
    works.launch(heads.finishing(kept, None, torch.arange(5)))
    assert x.equal(before)
    assert kept[0].x.numpy().tobytes() == norm(before).numpy().tobytes()
    assert kept[1].x.equal(before)
    in_place = heads.heads_of([x], norm, False, None)
    works.launch(heads.finishing([in_place], None, torch.arange(5)))
    assert x.equal(kept[0].x)


@pytest.mark.parametrize("kind", [name for name in reversed(TYPES) if name != "iq4_nl"])
@pytest.mark.parametrize("rotation", [0, 2, 32])
@pytest.mark.parametrize("order", [[3, -1, 0, 6, 1], [-1, -1], [7]], ids=str)
def test_tokens_are_stored_where_they_are_to_be(kind: str, rotation: int, order: list[int]) -> None:
    made = LayerFormat(TYPES[kind], 2, 64, 8, False, rotation)
    rng = np.random.default_rng(2)
    before, x = (rng.standard_normal((n, 2, 64)).astype(np.float32) for n in (8, len(order)))
    layer, expected = HostLayer(made), HostLayer(made)
    layer.write(np.arange(8), before)
    expected.write(np.arange(8), before)
    kept = np.array(order) >= 0
    if kept.any():
        expected.write(np.array(order)[kept], x[kept])
    given = heads.Heads(torch.from_numpy(x), None, False, cells.side(layer))
    works.launch(heads.finishing([given], None, torch.tensor(order)))
    assert layer.bytes.tobytes() == expected.bytes.tobytes()


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("dim", [24, 64, 80])
@pytest.mark.parametrize("each", [True, False])
def test_heads_are_normalised_each_by_itself(kind: str, dim: int, each: bool) -> None:
    rng = np.random.default_rng(dim)
    x = numbers(rng, 5, 3, dim)
    weight, bias = (numbers(rng, *((3, dim) if each else (dim,))) for _ in "wb")
    norm = RowNorm(kind, weight, bias if kind == "layer" else None, 1e-5)
    expected = norm(x.clone())
    works.launch(heads.finishing([heads.Heads(x, norm, False, None)], None, torch.arange(5)))
    assert x.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize(("n", "dim"), [(3, 24), (1, 40), (40, 16)])
def test_heads_are_normalised_together(n: int, dim: int) -> None:
    """Then they are rotated; what they come from stays as it is."""
    rng = np.random.default_rng(n)
    by, norm = (
        RotationAngles(numbers(rng, 5, 4, 2), 8, True),
        RowNorm("rms", numbers(rng, n * dim), None, 1e-5),
    )
    rows = numbers(rng, 5, n * dim + 3)[:, 3:]
    before = rows.clone()
    made = heads.heads_of([rows.view(5, n, dim)], norm, True, None, together=True)
    works.launch(heads.finishing([made], by, torch.arange(5)))
    expected = rotate(norm(before).view(5, n, dim).clone(), by)
    assert made.x.numpy().tobytes() == expected.numpy().tobytes()
    assert rows.equal(before)


def test_heads_without_matrices_of_their_own_have_nothing_to_take() -> None:
    """Where keys are not compressed there are none."""
    ops = TritonOps.__new__(TritonOps)
    assert callable(ops.each_head([]))
