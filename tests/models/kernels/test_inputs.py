"""Shapes of steps: what few tokens and pieces of prompts are padded to, and which have no graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS
from wide_models import SMALL, AnySpec, write_model

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.triton import decoder, inputs
from aleator.models.triton.inputs import Shape, StepInputs

ONE_LAYER = replace(SPECS["llama"], n_layers=1)


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Shape, Shape | None]]:
    """The own shapes of steps, and the shapes that they are padded to; nothing is computed."""
    found: list[tuple[Shape, Shape | None]] = []

    def run(
        self: Any, inputs: Any, positions: Any, cells: Any, outputs: Any, *_: Any, **__: Any
    ) -> Any:
        given = StepInputs(self._decoder, inputs, positions, cells, outputs)
        found.append((given.shape, given.bucket))
        return np.zeros((len(outputs), self._decoder.config.n_vocab), np.float32)

    monkeypatch.setattr(decoder.TritonStep, "run", run)
    monkeypatch.setattr(decoder.TritonStep, "joined", lambda _, parts, *__: np.concatenate(parts))
    return found


def context_of(path: Path, spec: AnySpec, **options: Any) -> Context:
    made = build_decoder(open_weights(write_model(path / "m.gguf", spec)), form="triton")
    return Context(made, n_threads=1, **options)


@pytest.mark.parametrize(
    ("n", "rows"),
    [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (64, 64), (65, None)],
)
def test_few_tokens(n: int, rows: int | None, tmp_path: Path, shapes: Any) -> None:
    context = context_of(tmp_path, ONE_LAYER, n_ctx=512)
    context.decode(Batch.one([1] * n, logits=True))
    ((own, bucket),) = shapes
    alone = n == 1
    assert own == Shape(n, False, (n,), (n,), (1,), 0, -1, alone)
    whole = None if rows is None else Shape(rows, False, (256,), (256,), (1,), 0, -1, alone)
    assert bucket == whole


@pytest.mark.parametrize(
    ("n", "size", "longest"),
    [
        (3, 4, 256), (64, 64, 256), (65, None, 0), (95, None, 0), (96, 128, 256), (128, 128, 256),
        (129, None, 0), (191, None, 0), (192, 256, 256), (512, 512, 512), (2049, None, 0),
    ],
)  # fmt: skip
def test_pieces_of_prompts(
    n: int, size: int | None, longest: int, tmp_path: Path, shapes: Any
) -> None:
    spec = replace(ONE_LAYER, context=4096)
    context = context_of(tmp_path, spec, n_ctx=4096, n_batch=4096, n_ubatch=4096)
    context.decode(Batch.one([1] * n))
    ((own, bucket),) = shapes
    assert own == Shape(n, False, (n,), (n,), (1,), 0, 1)
    room = (longest,)
    assert bucket == (None if size is None else Shape(size, False, room, room, (1,), 0, 1))


@pytest.mark.parametrize(("wanted", "captured"), [(64, True), (65, False), (128, False)])
def test_logits_of_more_than_64_tokens_have_no_graph(
    wanted: int, captured: bool, tmp_path: Path, shapes: Any
) -> None:
    batch = Batch()
    for i in range(128):
        batch.add(1, i, [0], logits=i < wanted)
    context_of(tmp_path, ONE_LAYER, n_ctx=256).decode(batch)
    ((_, bucket),) = shapes
    assert (bucket is not None) is captured


@pytest.mark.parametrize(("wanted", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8)])
def test_tokens_whose_logits_are_wanted(
    wanted: int, padded: int, tmp_path: Path, shapes: Any
) -> None:
    context = context_of(tmp_path, ONE_LAYER, n_ctx=512)
    batch = Batch()
    for i in range(128):
        batch.add(1, i, [0], logits=i >= 128 - wanted)
    context.decode(batch)
    ((own, bucket),) = shapes
    assert (own.outputs, bucket.outputs) == (wanted, padded)


def test_few_tokens_of_which_some_want_logits(tmp_path: Path, shapes: Any) -> None:
    context, batch = context_of(tmp_path, SMALL["mamba"], n_ctx=64, n_seq_max=2), Batch()
    for i in range(5):
        batch.add(1, i, [0], logits=i > 1)
    batch.add(1, 0, [1], logits=False)
    context.decode(batch)
    ((own, bucket),) = shapes
    assert own == Shape(6, False, (), (), (), 2, 3)
    assert bucket == Shape(8, False, (), (), (), 8, 4)


@pytest.mark.parametrize(
    ("name", "kinds", "runs"), [("gemma3-pattern-2", 2, 0), ("jamba", 1, 3), ("mamba", 0, 3)]
)
def test_kinds_of_layers_and_runs(
    name: str, kinds: int, runs: int, tmp_path: Path, shapes: Any
) -> None:
    context, batch = context_of(tmp_path, SMALL[name], n_ctx=64, n_seq_max=4), Batch()
    for seq in range(3):
        batch.add(1, 0, [seq], logits=True)
    context.decode(batch)
    ((own, bucket),) = shapes
    alone = kinds > 0
    assert own == Shape(3, False, (1,) * kinds, (3,) * kinds, (1,) * kinds, runs, -1, alone)
    rooms = (256,) * kinds
    assert bucket == Shape(4, False, rooms, rooms, (1,) * kinds, 4 if runs else 0, -1, alone)


@pytest.mark.parametrize("which", ["type_k", "type_v"])
def test_a_type_that_kernels_do_not_store(which: str, tmp_path: Path, shapes: Any) -> None:
    spec = replace(ONE_LAYER, head_dim=32)
    for kind, captured in (("iq4_nl", False), ("q8_0", True)):
        context = context_of(tmp_path, spec, n_ctx=64, **{which: kind})
        context.decode(Batch.one([1] * 4, logits=True))
        assert (shapes[-1][1] is not None) is captured


def test_keys_that_moved(tmp_path: Path, shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances that keys lag behind by, 0 among them, are padded to a power of two."""
    monkeypatch.setattr(inputs, "MOST_TURNS", 3)
    context = context_of(tmp_path, ONE_LAYER, n_ctx=64)
    context.decode(Batch.one([1] * 12, logits=True))
    found = []
    for at, end in ((2, 11), (4, 10), (6, 9)):
        context.cache.seq_rm(0, at, at + 1)
        context.cache.seq_add(0, at + 1, -1, -1)
        context.decode(Batch.one([1], end, logits=True))
        context.cache.seq_rm(0, end, -1)
        own, bucket = shapes[-1]
        found.append((own.rotations, None if bucket is None else bucket.rotations))
    assert found == [((2,), (2,)), ((3,), (4,)), ((4,), None)]


def test_raw_keys(tmp_path: Path, shapes: Any) -> None:
    context = context_of(tmp_path, ONE_LAYER, n_ctx=64, k_storage="raw")
    context.decode(Batch.one([1] * 6, logits=True))
    context.decode(Batch.one([1], 6, logits=True))
    assert [(own.rotations, bucket.rotations) for own, bucket in shapes] == [
        ((6,), (8,)),
        ((7,), (8,)),
    ]
