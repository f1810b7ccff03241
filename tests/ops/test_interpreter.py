"""The Triton kernels on the CPU, under Triton's interpreter, against the reference, bit for bit.

The interpreter has to be chosen before Triton is imported, so this file runs in a process of its own:
``test_under_the_interpreter`` in test_triton.py starts it.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aleator.ops.arguments import Call, Sampled, round_up
from tests.ops import cases
from tests.ops import test_golden as test_golden_cases

from . import reference

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own, see test_triton.py", allow_module_level=True)

import torch
import triton
import triton.language as tl

from aleator.core.contract import Purpose
from aleator.core.numerics import exact
from aleator.core.philox import stream, uniform64
from aleator.device.backends.triton import candidates, numerics
from aleator.device.backends.triton import top_k_top_p_sample as device


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # NumPy's, of lanes that are masked out and tiles of NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def tensor(a: Any) -> Any:
    return None if a is None else torch.from_numpy(np.ascontiguousarray(a))


def sample(
    x: Any, k: Any, p: Any, q: Any = None, m: Any = None, *, seeds: Any = None, positions: Any = None,
    eps: float = 1e-8, is_need_logits: bool = False, top_k_guess: int = 32, ks_max: int = 1024,
    input_is_logits: bool = True, is_need_sample_result: bool = False,
) -> Any:  # fmt: skip
    options: Any = (
        eps, is_need_logits, top_k_guess, round_up(ks_max), x.shape[1], input_is_logits, is_need_sample_result
    )  # fmt: skip
    call = Call(*map(tensor, (x, k, p, q, m, seeds, positions)), *options)
    outputs = [
        None if shape is None else torch.empty(shape, dtype=getattr(torch, dtype))
        for shape, dtype in call.outputs()
    ]
    device.run(call, outputs)
    return Sampled(*(None if o is None else o.numpy() for o in outputs))


@pytest.mark.parametrize("n_vocab", [1, 2, 127, 129, 300, 1000])
def test_kernels_equal_reference(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for _ in range(int(os.environ.get("ALEATOR_CASES", "2"))):
        arguments, options = cases.call(rng, 2, n_vocab)
        expected = reference.top_k_top_p_sample(*arguments, **options)
        guess = int(rng.choice([-1, 1, 32, 500]))
        cases.same_bits(expected, sample(*arguments, top_k_guess=guess, **options))


def test_golden() -> None:
    """The cases of test_golden.py, those of one kind as the rows of one call."""
    kinds: dict[Any, list[dict[str, Any]]] = {}
    for case, eps in test_golden_cases.CASES:
        kind = (len(case["weights"]), case["input"] == "logits", case["q"] is not None, eps)
        kinds.setdefault(kind, []).append(case)
    assert sum(map(len, kinds.values())) == len(test_golden_cases.CASES)
    for (n_vocab, logits, race, eps), group in kinds.items():
        x = np.concatenate([test_golden_cases.row_of(case) for case in group])
        k = np.array([case["top_k"] for case in group], np.int32)
        p = np.array([case["top_p"] for case in group], np.float32)
        m = np.array([case["min_p"] or 0 for case in group], np.float32)
        q = np.array([case["q"] for case in group], np.float32) if race else None
        token = sample(x, k, p, q, m, eps=eps, input_is_logits=logits).logits_select_idx
        assert token.tolist() == [case["token"] for case in group]
        listed = sample(x, k, p, None, m, input_is_logits=logits, is_need_sample_result=True)
        assert listed.logits_idx.tolist() == [
            case["keeps"] + [0] * (n_vocab - len(case["keeps"])) for case in group
        ]


# What each row asks for, and the path it has to take: (k, p, min-p, spread of logits).
ROWS = [
    ((15, 0.9, 0.0, 2.0), "top_k"), ((0, 0.9, 0.0, 6.0), "window"), ((0, 0.99, 0.02, 0.1), "bisection"),
    ((1000, 0.7, 0.0, 0.0), "bisection"), ((0, 1.0, 0.1, 1.0), "min_p"), ((0, 1.0, 0.0, 1.0), "all"),
    ((3, 1.0, 0.0, math.nan), "refused"),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["token", "race", "list", "draw"])
def test_every_path_in_every_mode(mode: str) -> None:
    """A batch in which each row takes another path, one of them beyond hope."""
    rng = np.random.default_rng(11)
    n, n_vocab = len(ROWS), 2200
    spread = np.array([row[3] for row, _ in ROWS])[:, None]
    x = (rng.normal(size=(n, n_vocab)) * spread).astype(np.float32)
    k = np.array([row[0] for row, _ in ROWS], np.int32)
    p, m = (np.array([row[i] for row, _ in ROWS], np.float32) for i in (1, 2))
    q = rng.exponential(size=x.shape).astype(np.float32) if mode == "race" else None
    device.paths("cpu", reset=True)
    well = slice(0, n - 1)
    if mode == "draw":
        seeds, positions = rng.integers(-(2**63), 2**63 - 1, n), rng.integers(0, 2**62, n)
        got = sample(x, k, p, None, m, seeds=seeds, positions=positions).logits_select_idx
        expected = reference.top_k_top_p_draw(
            x[well], k[well], p[well], m[well], seeds=seeds[well], positions=positions[well]
        )
        assert got is not None
        assert got.tolist() == [*expected.tolist(), -1]
    else:
        options: dict[str, Any] = {
            "is_need_logits": True, "is_need_sample_result": mode == "list", "eps": 0.0
        }  # fmt: skip
        outputs = sample(x, k, p, q, m, **options)
        cases.same_bits(
            reference.top_k_top_p_sample(
                x[well], k[well], p[well], None if q is None else q[well], m[well], **options
            ),
            type(outputs)(*(None if o is None else o[well] for o in outputs)),
        )
        assert outputs.logits_top_kp_select is not None
        assert (outputs.logits_top_kp_select[-1] == -np.inf).all()
        if mode == "list":
            assert outputs.logits_idx is not None
            assert outputs.logits_sort_masked is not None
            assert not outputs.logits_idx[-1].any()
            assert not outputs.logits_sort_masked[-1].any()
        else:
            assert outputs.logits_select_idx is not None
            assert outputs.logits_select_idx[-1] == -1
    counts = device.paths("cpu", reset=True)
    assert counts == {name: sum(name == path for _, path in ROWS) for name in counts}


@pytest.mark.parametrize("logits", [True, False])
def test_draws_from_tiles_that_fill_no_group(logits: bool) -> None:
    rng = np.random.default_rng(15)
    x = rng.normal(size=(10, 200)).astype(np.float32)
    if not logits:
        x = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    x[9] = -np.inf if logits else 1e-20  # the last of the probabilities weigh nothing
    x[9, 7] = 0.0 if logits else 2e-20
    k = np.array([0, 9] * 5, np.int32)
    p, m = np.array([1, 0.9] * 5, np.float32), np.array([0, 0, 0.05, 0, 0] * 2, np.float32)
    keys: dict[str, Any] = {"seeds": rng.integers(0, 2**62, 10), "positions": np.arange(10)}
    got = sample(x, k, p, None, m, input_is_logits=logits, **keys).logits_select_idx
    expected = reference.top_k_top_p_draw(x, k, p, m, input_is_logits=logits, **keys)
    assert got.tolist() == expected.tolist()


def test_bad_rows_select_minus_one_and_harm_no_other() -> None:
    rng = np.random.default_rng(12)
    x = rng.normal(size=(6, 300)).astype(np.float32)
    k, p = np.full(6, 5, np.int32), np.full(6, 0.9, np.float32)
    m, q = np.full(6, 0.01, np.float32), rng.exponential(size=x.shape).astype(np.float32)
    x[0], p[1], m[2], q[3, 0] = -np.inf, np.nan, np.nan, np.nan
    token = sample(x, k, p, q, m).logits_select_idx
    assert token is not None
    assert token[:4].tolist() == [-1] * 4
    expected = reference.top_k_top_p_sample(x[4:], k[4:], p[4:], q[4:], m[4:])
    assert expected.logits_select_idx is not None
    assert token[4:].tolist() == expected.logits_select_idx.tolist()
    probs = np.full((3, 200), 0.005, np.float32)
    probs[0, 150], probs[1, 3] = 1.5, -0.1
    token = sample(probs, k[:3], p[:3], input_is_logits=False).logits_select_idx
    assert token is not None
    assert token.tolist() == [-1, -1, 0]


def test_halves_are_widened_exactly() -> None:
    x = torch.randn(2, 400).bfloat16()
    k, p = torch.tensor([20, 0], dtype=torch.int32), torch.tensor([0.9, 0.6]).bfloat16()
    listed, probs = torch.empty(2, 400, dtype=torch.int64), torch.empty(2, 400)
    call = Call(x, k, p, None, None, None, None, 0.0, False, 32, 1024, 400, True, True)
    device.run(call, (None, None, listed, probs))
    expected = reference.top_k_top_p_sample(
        x.float().numpy(), k.numpy(), p.float().numpy(), is_need_sample_result=True
    )
    cases.same_bits(expected, Sampled(None, None, listed.numpy(), probs.numpy()))


@triton.jit
def _scalars(m, p, totals, seeds, positions, logs, products, uniforms):  # type: ignore[no-untyped-def]
    i = tl.program_id(0)
    tl.store(logs + i, numerics.log_nearest(tl.load(m + i)))
    tl.store(products + i, numerics.ceil_product(tl.load(p + i), tl.load(totals + i)))
    u = numerics.philox_uniform(
        i * 0, tl.load(seeds + i), tl.load(positions + i), tl.full([], 1 << 28, tl.int64)
    )
    tl.store(uniforms + i, u.to(tl.int64, bitcast=True))


def test_scalars_are_exact() -> None:
    rng, n = np.random.default_rng(13), 80
    m = np.exp(-(rng.random(n) ** 3) * 100).astype(np.float32)
    m[:4] = [1 - 2**-24, 1e-45, 1.1754944e-38, 0.5]
    m = np.minimum(m, np.float32(1) - np.float32(2**-24))
    p = m[rng.permutation(n)]
    totals = rng.integers(1, 2**62, n) >> rng.integers(0, 40, n)
    seeds, positions = rng.integers(-(2**63), 2**63 - 1, n), rng.integers(0, 2**63 - 1, n)
    logs, products, uniforms = (
        torch.empty(n),
        *(torch.empty(n, dtype=torch.int64) for _ in range(2)),
    )
    _scalars[(n,)](*map(tensor, (m, p, totals, seeds, positions)), logs, products, uniforms)
    assert logs.tolist() == [np.float32(math.log(float(v))) for v in m]
    assert products.tolist() == [
        math.ceil(exact(float(a)) * int(b)) for a, b in zip(p, totals, strict=True)
    ]
    assert [int(u) % 2**64 for u in uniforms] == [
        uniform64(int(s) % 2**64, 0, int(i), stream(Purpose.DIST))
        for s, i in zip(seeds, positions, strict=True)
    ]


@triton.jit
def _nth(keys, n, out):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 64)
    tl.store(out, candidates.nth_key(tl.load(keys + i), n))


def test_bisection_tells_every_id_apart() -> None:
    """Equal values at the ends of the widest vocabulary, 2^22 tokens."""
    ids = np.concatenate([np.arange(32), np.arange(2**22 - 32, 2**22)])
    keys = np.sort((np.int64(1065353216) << 32) | (0xFFFFFFFF - ids))[::-1]
    for n in (1, 32, 33, 64):
        out = torch.empty(1, dtype=torch.int64)
        _nth[(1,)](tensor(np.random.default_rng(n).permutation(keys)), n, out)
        assert (keys >= int(out)).sum() == n


@triton.jit
def _sorts(keys, out, small):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 512)
    tl.store(out + i, numerics.sort_descending(tl.load(keys + i), 512))
    j = tl.arange(0, 16)
    tl.store(small + j, tl.sort(tl.load(keys + j), descending=True))


def test_both_sorts_put_the_largest_first() -> None:
    keys = np.random.default_rng(14).integers(-(2**63), 2**63 - 1, 512)
    keys[5:9] = numerics.NOTHING.value
    out, small = torch.empty(512, dtype=torch.int64), torch.empty(16, dtype=torch.int64)
    _sorts[(1,)](tensor(keys), out, small)
    assert out.tolist() == sorted(keys.tolist(), reverse=True)
    assert small.tolist() == sorted(keys[:16].tolist(), reverse=True)
