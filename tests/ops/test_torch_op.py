"""The custom op: tensors, opcheck, compile, export; torch stays out until it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aleator import LogitsError, ParameterError, ops
from aleator.ops import torch_op

from . import cases, reference

ROOT = Path(__file__).parents[2]


def tensors(arguments: tuple[Any, ...]) -> list[Any]:
    return [None if a is None else torch.from_numpy(a) for a in arguments]


@pytest.mark.parametrize("n_vocab", [3, 200, 1500])
def test_tensors_equal_reference(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for _ in range(25):
        arguments, options = cases.call(rng, 3, n_vocab)
        expected = reference.top_k_top_p_sample(*arguments, **options)
        cases.same_bits(expected, ops.top_k_top_p_sample(*tensors(arguments), **options))


def test_bfloat16_is_widened_exactly() -> None:
    x = torch.randn(4, 500).bfloat16()
    k, p = torch.full((4,), 20, dtype=torch.int32), torch.full((4, 1), 0.9).bfloat16()
    expected = reference.top_k_top_p_sample(
        x.float().numpy(), k.numpy(), p.float().numpy(), is_need_sample_result=True
    )
    cases.same_bits(expected, ops.top_k_top_p_sample(x, k, p, is_need_sample_result=True))


def sample_arguments(mode: int) -> tuple[Any, ...]:
    x, k = torch.randn(2, 300), torch.tensor([40, 0], dtype=torch.int32)
    p, m = torch.tensor([0.9, 0.8]), torch.tensor([[0.05], [0.0]])
    q = torch.rand(2, 300) if mode == 1 else None
    keys = torch.tensor([1, 2]) if mode == 3 else None
    return (
        x, k, p, q, m, keys, keys, 1e-8, mode == 2, 32, 1024, 1 << 20, True, mode == 2
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_opcheck(mode: int) -> None:
    torch.library.opcheck(torch_op.top_k_top_p_sample, sample_arguments(mode))


def step(x: torch.Tensor, k: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> Any:
    token = ops.top_k_top_p_sample(x * 2, k, p, q, is_need_logits=True)
    listed = ops.top_k_top_p_sample(x, k, p, is_need_sample_result=True)
    return token.logits_select_idx + 0, token.logits_top_kp_select, listed.logits_idx


def step_arguments(rows: int) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(rows, 300), torch.full((rows,), 40, dtype=torch.int32),
        torch.full((rows,), 0.9), torch.rand(rows, 300),
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_takes_it_whole(dynamic: bool, request: pytest.FixtureRequest) -> None:
    if "branches" in sys.modules:  # tools/branches.py: torch.compile cannot read code with probes
        alone = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            request.node.nodeid,
        ]
        done = subprocess.run(alone, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "1 passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
        return
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (2, 5):
        arguments = step_arguments(rows)
        for a, b in zip(step(*arguments), compiled(*arguments), strict=True):
            assert torch.equal(a, b)


def test_export_takes_it_whole() -> None:
    class Step(torch.nn.Module):
        def forward(self, *arguments: torch.Tensor) -> Any:
            return step(*arguments)

    batch = torch.export.Dim("batch", min=2, max=64)
    arguments = step_arguments(3)
    program = torch.export.export(
        Step(), arguments, dynamic_shapes=(tuple({0: batch} for _ in arguments),)
    )
    arguments = step_arguments(7)
    for a, b in zip(step(*arguments), program.module()(*arguments), strict=True):
        assert torch.equal(a, b)


def test_errors_come_through_with_their_names() -> None:
    x, k, p, _ = step_arguments(2)
    with pytest.raises(ParameterError) as caught:
        ops.top_k_top_p_sample(x, k.long(), p)
    assert caught.value.parameter == "top_k"
    with pytest.raises(ParameterError) as caught:
        ops.top_k_top_p_sample(x, k, p.to("meta"))
    assert caught.value.parameter == "top_p"
    with pytest.raises(ParameterError) as caught:
        ops.top_k_top_p_sample(x, k.numpy(), p)
    assert caught.value.parameter == "top_k"
    x[1] = torch.nan
    with pytest.raises(LogitsError, match="row 1"):
        ops.top_k_top_p_sample(x, k, p)


def test_views_and_gradients() -> None:
    x, k, p, q = step_arguments(4)
    expected = step(x[:, ::2].contiguous(), k, p, q[:, ::2].contiguous())
    got = step(x.requires_grad_()[:, ::2], k, p.requires_grad_(), q[:, ::2])
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="backward"):  # refused, not silently without gradients
        got[1].sum().backward()


def test_draw_on_tensors() -> None:
    x, k, p, _ = step_arguments(4)
    seeds, positions = torch.arange(4), torch.arange(4) * 7
    expected = reference.top_k_top_p_draw(
        x.numpy(), k.numpy(), p.numpy(), seeds=seeds.numpy(), positions=positions.numpy()
    )
    got = ops.top_k_top_p_draw(x, k, p, seeds=seeds, positions=positions)
    assert got.tolist() == expected.tolist()


def test_torch_is_not_imported_for_arrays() -> None:
    code = (
        "import sys, numpy as np; from aleator import ops;"
        "ops.top_k_top_p_sample(np.zeros((1, 4), np.float32), np.ones(1, np.int32),"
        " np.ones(1, np.float32)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
