"""The operator on a CUDA device; skipped without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator import ParameterError, ops

from . import cases, reference

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton")


def tensors(arguments: tuple[Any, ...]) -> list[Any]:
    return [
        None if a is None else torch.from_numpy(np.ascontiguousarray(a)).cuda() for a in arguments
    ]


@pytest.mark.parametrize("n_vocab", [1, 2, 127, 129, 1000, 4000, 40000])
def test_equal_reference(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for _ in range(50):
        arguments, options = cases.call(rng, 4, n_vocab)
        expected = reference.top_k_top_p_sample(*arguments, **options)
        got = ops.top_k_top_p_sample(*tensors(arguments), **options)
        cases.same_bits(expected, ops.Sampled(*(None if o is None else o.cpu() for o in got)))


@pytest.mark.parametrize(("k", "p"), [(50, 0.9), (0, 0.95), (0, 0.999), (1024, 0.9), (0, 1.0)])
@pytest.mark.parametrize("spread", [0.1, 2.0, 6.0])
def test_large_batches_equal_the_host(k: int, p: float, spread: float) -> None:
    x = torch.randn(64, 128256) * spread
    top_k, top_p = torch.full((64,), k, dtype=torch.int32), torch.full((64,), p)
    q, keys = torch.empty_like(x).exponential_(), torch.arange(64)
    for call in (
        lambda *a: ops.top_k_top_p_sample(*a[:4], is_need_logits=True),
        lambda *a: ops.top_k_top_p_sample(*a[:3], is_need_sample_result=True),
        lambda *a: (ops.top_k_top_p_draw(*a[:3], seeds=a[4], positions=a[4]),),
    ):
        host, device = (
            call(*(a.to(d) for a in (x, top_k, top_p, q, keys))) for d in ("cpu", "cuda")
        )
        for a, b in zip(host, device, strict=True):
            assert a is None or torch.equal(a, b.cpu())


def test_a_graph_captures_it() -> None:
    x, k = torch.randn(8, 128256).cuda(), torch.full((8,), 50, dtype=torch.int32).cuda()
    p = torch.full((8,), 0.9).cuda()
    ops.top_k_top_p_sample(x, k, p, is_need_sample_result=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.top_k_top_p_sample(x, k, p, is_need_sample_result=True)
    for _ in range(3):
        x.normal_()
        graph.replay()
        expected = ops.top_k_top_p_sample(x.cpu(), k.cpu(), p.cpu(), is_need_sample_result=True)
        assert torch.equal(out.logits_idx.cpu(), expected.logits_idx)
        assert torch.equal(out.logits_sort_masked.cpu(), expected.logits_sort_masked)


def test_other_devices_are_named() -> None:
    x = torch.randn(2, 10).cuda()
    with pytest.raises(ParameterError) as caught:
        ops.top_k_top_p_sample(x, torch.ones(2, dtype=torch.int32), torch.ones(2))
    assert caught.value.parameter == "top_k"
