"""Akunu's presets against its document: the pipeline written down once more, in float32, from its code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aleator import samplers as S
from tests.samplers.steps import Texts

AKUNU = [name for name in S.PRESETS if name.startswith("akunu")]
TABLE = {  # "SamplingParams: The Configuration": temperature, top_k, top_p, min_p
    "akunu-greedy": (0.0, 0, 1.0, 0.0),
    "akunu-balanced": (0.7, 40, 0.95, 0.05),
    "akunu-creative": (1.0, 0, 0.9, 0.0),
    "akunu-very-creative": (1.2, 0, 0.95, 0.0),
    "akunu-code": (0.2, 40, 0.95, 0.1),
}


def pipeline(
    logits: NDArray[np.float32], params: Any, previous: list[int], r: np.float32
) -> tuple[dict[int, float], int]:
    """The document's sample_logits: what is left with its probabilities, and the token for a uniform ``r``."""
    f32 = np.float32
    z = logits.copy()
    repeat = f32(params.repetition_penalty)
    for token in previous:
        z[token] = z[token] / repeat if z[token] > 0 else z[token] * repeat
    if params.temperature <= 0:
        return {int(z.argmax()): 1.0}, int(z.argmax())
    z *= f32(1) / f32(params.temperature)
    p = np.exp(z - z.max())
    p *= f32(1) / p.sum(dtype=np.float32)
    k = params.top_k if 0 < params.top_k < len(p) else min(len(p), 256)
    order = np.argsort(-p, kind="stable")[:k]
    if params.min_p > 0:
        order = order[p[order] >= p[order[0]] * f32(params.min_p)]
    if params.top_p < 1:
        reached = np.flatnonzero(np.cumsum(p[order], dtype=np.float32) >= f32(params.top_p))
        order = order[: reached[0] + 1] if len(reached) else order
    kept = p[order] * (f32(1) / p[order].sum(dtype=np.float32))
    drawn = np.flatnonzero(r <= np.cumsum(kept, dtype=np.float32))
    token = order[drawn[0] if len(drawn) else -1]
    return dict(zip(order.tolist(), kept.tolist(), strict=True)), int(token)


@pytest.mark.parametrize("name", AKUNU)
def test_values_are_the_tables(name: str) -> None:
    params = S.SamplingParams.preset(name)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == TABLE[name]


@pytest.mark.parametrize(
    "change", [{}, {"top_k": 0}, {"top_k": 400}, {"repetition_penalty": 1.3}], ids=str
)
@pytest.mark.parametrize("name", AKUNU)
def test_tokens_are_the_documents(name: str, change: dict[str, Any]) -> None:
    params = S.SamplingParams.preset(name, seed=11, **change)
    uniforms = np.random.RandomState(11).randint(0, 2**32, 60, np.uint32)
    chain, previous = params.chain(), list[int]()
    for token in (7, 7, 380):  # of a prompt
        chain.accept(token)
    for step in range(60):
        row = (3 * np.random.default_rng(step).normal(size=400)).astype(np.float16)
        r = np.float32(uniforms[step]) / np.float32(2**32)
        expected, token = pipeline(row.astype(np.float32), params, previous, r)
        candidates = S.Candidates(row)
        chain.apply(candidates)
        kept = dict(zip(candidates.ids.tolist(), candidates.probs.tolist(), strict=True))
        assert kept == pytest.approx(expected, rel=1e-4)
        assert chain.sample(row) == token
        previous.append(token)


def test_a_token_is_penalised_once_for_each_time_it_was_generated() -> None:
    """3 / 1.5^3 among 2, 1 and -1 leaves 0.188; once it would be 0.414.  The prompt does not count."""
    row = np.array([3, 2, 1, -1], np.float32)

    def chance(**change: Any) -> float:
        params = S.SamplingParams.preset(
            "akunu-creative", repetition_penalty=1.5, top_p=1.0, seed=1, **change
        )
        chain, candidates = params.chain(), S.Candidates(row)
        for token in (0, 1, 1):
            chain.accept(token)
        for _ in range(3):
            chain.accept(0, generated=True)
        chain.apply(candidates)
        return float(candidates.probs[0])

    assert chance() == pytest.approx(0.188, abs=5e-4)
    assert chance(penalty_scope="all") == pytest.approx(0.247, abs=5e-4)
    assert chance(repetition_per="token") == pytest.approx(0.414, abs=5e-4)


def test_top_p_counts_the_mass_of_the_whole_row() -> None:
    """The document's 0.4, 0.3, 0.15, 0.08, 0.04: the first five reach 0.95, four have 0.93."""
    p = np.array([0.4, 0.3, 0.15, 0.08, 0.04, 0.02, 0.01])
    chain = S.SamplingParams.preset("akunu-very-creative", temperature=1.0, seed=1).chain()
    candidates = S.Candidates(np.log(p).astype(np.float32))
    chain.apply(candidates)
    assert candidates.ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("n", "top_k", "left"), [(1000, 0, 256), (1000, 300, 300),
                                                  (280, 300, 256), (100, 300, 100), (1000, 7, 7)])  # fmt: skip
def test_top_k_off_means_256(n: int, top_k: int, left: int) -> None:
    params = S.SamplingParams.preset("akunu-creative", top_k=top_k, top_p=1.0, seed=1)
    candidates = S.Candidates(np.random.default_rng(n).normal(size=n).astype(np.float32))
    params.chain().apply(candidates)
    assert len(candidates) == left


def test_no_repetition_penalty_under_a_grammar() -> None:
    given: dict[str, Any] = {
        "repetition_penalty": 2.0,
        "presence_penalty": 0.5,
        "grammar": "root ::= [ab]*",
        "top_p": 1.0,
    }
    akunu = S.SamplingParams.preset("akunu-creative", seed=1, **given)
    for params, repetition in (
        (akunu, 1.0),
        (akunu.replace(repetition_under_grammar="apply"), 2.0),
    ):
        chain = params.chain(Texts([b"", b"a", b"b"], frozenset({0})))
        chain.accept(1, generated=True)
        candidates = S.Candidates(np.array([1, 2, 2], np.float32))
        chain.apply(candidates)
        assert candidates.logits.tolist() == [1, 2 / repetition - 0.5, 2]
