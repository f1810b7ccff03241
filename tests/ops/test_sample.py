"""The operator on the CPU: equality with the reference, rows apart from each other, extensions."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from aleator import SamplerChain, ops
from aleator import samplers as S

from . import cases, reference


@pytest.mark.parametrize("n_vocab", [1, 2, 5, 127, 128, 129, 300, 1000, 4000])
def test_native_equals_reference(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for _ in range(40):
        arguments, options = cases.call(rng, int(rng.integers(1, 5)), n_vocab)
        expected = reference.top_k_top_p_sample(*arguments, **options)
        guess = int(rng.choice([-1, 1, 32, 500]))
        cases.same_bits(expected, ops.top_k_top_p_sample(*arguments, top_k_guess=guess, **options))


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
@pytest.mark.parametrize(
    ("k", "p"), [(50, 0.9), (0, 0.5), (0, 0.95), (0, 0.999), (1024, 0.99), (0, 1)]
)
def test_large_rows_equal_reference(spread: float, k: int, p: float) -> None:
    x = (np.random.default_rng(1).normal(size=(1, 40000)) * spread).astype(np.float32)
    top_k, top_p = np.array([k], np.int32), np.array([p], np.float32)
    for options in ({"is_need_sample_result": True}, {"is_need_logits": True}):
        cases.same_bits(
            reference.top_k_top_p_sample(x, top_k, top_p, **options),
            ops.top_k_top_p_sample(x, top_k, top_p, **options),
        )


def test_a_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(2)
    (x, k, p, q, m), options = cases.call(rng, 9, 700)
    whole = ops.top_k_top_p_sample(x, k, p, q, m, **options)
    turn = rng.permutation(9)
    turned = ops.top_k_top_p_sample(
        *(None if a is None else a[turn] for a in (x, k, p, q, m)), **options
    )
    for a, b in zip(whole, turned, strict=True):
        if a is not None:
            assert a[turn].tobytes() == b.tobytes()


def test_views_are_taken_as_they_are() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(6, 400)).astype(np.float32)
    k, p = np.full(3, 7, np.int32), np.full(3, 0.9, np.float32)
    expected = ops.top_k_top_p_sample(x[::2, ::2].copy(), k, p, is_need_sample_result=True)
    for view in (x[::2, ::2], np.asfortranarray(x[::2, ::2]), x[::2, ::2].astype(">f4")):
        cases.same_bits(expected, ops.top_k_top_p_sample(view, k, p, is_need_sample_result=True))
    rows = ops.top_k_top_p_sample(x[::-2], k, p)
    assert rows[0].tolist() == ops.top_k_top_p_sample(x[::-2].copy(), k, p)[0].tolist()
    x.setflags(write=False)
    ops.top_k_top_p_sample(x[:3], k, p)


def test_ks_max_is_rounded_up_to_a_multiple_of_eight() -> None:
    x = np.zeros((2, 40), np.float32)
    k, p = np.array([16, 17], np.int32), np.full(2, 2, np.float32)
    out = ops.top_k_top_p_sample(x, k, p, ks_max=10, is_need_logits=True)
    assert np.isfinite(out.logits_top_kp_select).sum(1).tolist() == [16, 40]


def test_masked_tokens_fill_up_and_are_never_selected() -> None:
    x = np.array([[-np.inf, 1, np.nan, -np.inf]], np.float32)
    k, p = np.array([3], np.int32), np.array([1], np.float32)
    out = ops.top_k_top_p_sample(x, k, p, is_need_sample_result=True, is_need_logits=True)
    assert out.logits_idx.tolist() == [[1, 0, 2, 0]]
    assert out.logits_sort_masked.tolist() == [[1, 0, 0, 0]]
    assert out.logits_top_kp_select.tolist() == [[-np.inf, 1, -np.inf, -np.inf]]
    q = np.array([[np.inf, 0, 0, 0]], np.float32)
    assert ops.top_k_top_p_sample(x, k, p, q, eps=0)[0].tolist() == [1]


def test_infinite_logits_are_alone_and_equal() -> None:
    x = np.array([[5, np.inf, 3, np.inf]], np.float32)
    k, p = np.array([0], np.int32), np.array([1], np.float32)
    out = ops.top_k_top_p_sample(x, k, p, is_need_sample_result=True, is_need_logits=True)
    assert out.logits_sort_masked.tolist() == [[0, 0.5, 0, 0.5]]
    assert out.logits_top_kp_select.tolist() == [[-np.inf, np.inf, -np.inf, np.inf]]


def listed(x: Any, k: int, p: float, m: float | None = None) -> Any:
    """Rows of logits with their lists, one k, p and min-p for all."""
    n = len(x)
    top_k, top_p = np.full(n, k, np.int32), np.full(n, p, np.float32)
    min_p = None if m is None else np.full(n, m, np.float32)
    return ops.top_k_top_p_sample(
        x, top_k, top_p, min_p=min_p, is_need_sample_result=True, is_need_logits=True
    )


def test_how_long_a_list_is() -> None:
    """As docs/operator.md says it: kept tokens may weigh nothing, as padding does."""
    x = (np.random.default_rng(6).normal(size=(8, 90)) * 25).astype(np.float32)
    x[:, ::7] = -np.inf
    for k, p, m, length in ((0, 0, None, 1), (9, 0.9, 1.5, 1), (40, 1, None, 40), (0, 1, None, 90)):
        out = listed(x, k, p, m)
        for ids, probs in zip(out.logits_idx, out.logits_sort_masked, strict=True):
            assert len(set(ids[:length].tolist())) == length
            assert not ids[length:].any()
            assert not probs[length:].any()
    assert (listed(x, 40, 1).logits_sort_masked[:, 39] == 0).all()  # the fortieth weighs nothing
    for k, p, m in ((0, 0.999, None), (40, 0.5, None), (0, 1, 2.0**-39), (60, 0.9999, 0.001)):
        out = listed(x, k, p, m)
        assert np.array_equal(
            (out.logits_sort_masked > 0).sum(1), np.isfinite(out.logits_top_kp_select).sum(1)
        )


def test_a_top_p_of_nothing_keeps_a_certain_token_and_a_tiny_one_its_probability() -> None:
    x = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    for p, probability in ((0.0, 1.0), (-1.0, 1.0), (1e-9, 0.5)):
        out = listed(x, 0, p)
        assert out.logits_idx.tolist() == [[0, 0, 0]]
        assert out.logits_sort_masked.tolist() == [[probability, 0, 0]]


def test_probabilities_too_small_to_weigh_are_still_ordered() -> None:
    x = np.array([[1e-30, 3e-30, 2e-30]], np.float32)
    k, p = np.array([2], np.int32), np.array([0.5], np.float32)
    out = ops.top_k_top_p_sample(x, k, p, input_is_logits=False, is_need_sample_result=True)
    assert out.logits_idx.tolist() == [[1, 2, 0]]
    keys: dict[str, Any] = {"seeds": np.zeros(1, np.int64), "positions": np.zeros(1, np.int64)}
    assert ops.top_k_top_p_draw(x, k, p, input_is_logits=False, **keys).tolist() == [1]


def test_wide_takes_any_k_and_larger_vocabularies() -> None:
    n_vocab = (1 << 20) + 5
    x = np.zeros((1, n_vocab), np.float32)
    x[0, -3:] = 1
    k, p = np.array([3000], np.int32), np.array([0.5], np.float32)
    out = ops.top_k_top_p_sample_wide(x, k, p, is_need_logits=True)
    assert out.logits_select_idx.tolist() == [n_vocab - 3]
    kept = np.flatnonzero(np.isfinite(out.logits_top_kp_select[0]))
    # Half of 3 e + 2997, of which the first three hold 3 e.
    n = int(np.ceil((3 * np.e + 2997) / 2 - 3 * np.e)) + 3
    assert kept.tolist() == [*range(n - 3), n_vocab - 3, n_vocab - 2, n_vocab - 1]
    small = np.random.default_rng(0).normal(size=(2, 3000)).astype(np.float32)
    big_k = np.array([1500, 3000], np.int32)
    out = ops.top_k_top_p_sample_wide(
        small, big_k, np.full(2, 0.9, np.float32), is_need_sample_result=True
    )
    for b in range(2):
        kept_row = reference.keep(small[b], int(big_k[b]), 0.9, 0, 3000, True)
        n = len(kept_row.ids)
        assert out.logits_idx[b, :n].tolist() == kept_row.ids.tolist()
        assert out.logits_sort_masked[b, :n].tobytes() == kept_row.probs.tobytes()
        assert not out.logits_sort_masked[b, n:].any()


def test_draw_equals_the_chain_and_the_reference() -> None:
    rng = np.random.default_rng(5)
    for n_vocab in (1, 130, 2000):
        x = (rng.normal(size=(6, n_vocab)) * 2).astype(np.float32)
        k = np.array([0, 1, 40, 40, 1500, 0], np.int32)
        p = np.array([1, 0.5, 0.9, 1, 0.7, 0.95], np.float32)
        m = np.array([0, 0, 0.05, 0.1, 0, 0.02], np.float32)
        seeds, positions = rng.integers(-(2**63), 2**63 - 1, 6), rng.integers(0, 2**40, 6)
        got = ops.top_k_top_p_draw(x, k, p, m, seeds=seeds, positions=positions)
        expected = reference.top_k_top_p_draw(x, k, p, m, seeds=seeds, positions=positions)
        assert got.tolist() == expected.tolist()
        for b in range(6):
            limit = int(k[b]) if 1 <= k[b] <= n_vocab else 0
            chain = SamplerChain(
                [S.TopK(limit), S.TopP(p[b]), S.MinP(m[b]), S.Dist(int(seeds[b]) % 2**64)]
            )
            chain.position = int(positions[b])
            assert chain.sample(x[b]) == got[b]


def test_paths_are_counted() -> None:
    ops.paths(reset=True)
    rng = np.random.default_rng(6)
    x = np.stack([rng.normal(size=20000) * s for s in (6, 6, 0.1, 6, 6, 6)]).astype(np.float32)
    k = np.array([50, 0, 0, 0, 0, 0], np.int32)
    p = np.array([1, 0.5, 0.9, 1, 1, 0], np.float32)
    m = np.array([0, 0, 0, 0.1, 0, 0], np.float32)
    ops.top_k_top_p_sample(x, k, p, None, m, is_need_sample_result=True)
    assert ops.paths(reset=True) == {
        "argmax": 1, "top_k": 1, "nucleus": 2, "min_p": 1, "all": 1
    }  # fmt: skip
    ops.top_k_top_p_sample(x, k, p, None, m)
    assert ops.paths()["argmax"] == 6  # nothing but the first token was asked for


DIGEST = """
import hashlib, numpy as np
from aleator import ops
from aleator.core import host
from tests.ops import cases
rng, digest = np.random.default_rng(7), hashlib.sha256()
for n in (1, 130, 4096, 20000):
    for _ in range(12):
        arguments, options = cases.call(rng, 2, n)
        for output in ops.top_k_top_p_sample(*arguments, **options):
            digest.update(b"" if output is None else output.tobytes())
print(host.isa(), digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    digests = set()
    for isa in ("base", "v3", "v4"):
        environment = {**os.environ, "ALEATOR_ISA": isa}
        out = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, check=True, capture_output=True,
            text=True,
        )  # fmt: skip
        digests.add(out.stdout.split()[1])
    assert len(digests) == 1
