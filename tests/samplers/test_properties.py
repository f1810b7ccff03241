"""Random chains over random rows: what must hold for all of them.

The samplers and the ranges of their parameters come from the declarations, so a new sampler takes part
by itself.  Examples are derived from the tests' names: every run makes the same ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aleator import samplers as S
from aleator.core.errors import AleatorError, ParameterError
from aleator.core.parameter import Parameter
from aleator.samplers.full_mass import check_full_mass
from aleator.samplers.watermark import WatermarkKey
from tests.samplers.steps import Texts
from tests.samplers.test_conformance import FAMILIES, family

Row = NDArray[np.float32]


def examples(count: int) -> settings:
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


# Bounds of interest where the declared ones are far wider; the declared ones are tried as well.
NARROW: dict[str, tuple[float, float]] = {
    "top_k": (0, 300), "min_keep": (0, 300), "penalty_last_n": (-1, 8), "mirostat_m": (2, 200),
    "repetition_penalty": (0.5, 2), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2),
    "temperature": (0, 4), "dynatemp_range": (0, 3), "dynatemp_exponent": (0, 4),
    "top_n_sigma": (0, 4), "mirostat_tau": (0, 10), "mirostat_eta": (0, 1),
    "dry_multiplier": (-2, 2), "dry_base": (1, 3), "dry_allowed_length": (0, 4),
    "dry_penalty_last_n": (-1, 20), "xtc_threshold": (0, 0.5), "top_a": (0, 1),
    "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1), "tfs_z": (0, 1), "top_k_limit": (0, 320),
    "smoothing_factor": (0, 3), "smoothing_curve": (1, 5), "min_tokens": (0, 12),
    "no_repeat_ngram_size": (0, 4), "min_k_tau": (0, 99),
}  # fmt: skip
SEEDS = st.integers(0, 2**64 - 1)
TOKENS = st.integers(0, 299)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.none() | SEEDS,
    "logit_bias": st.dictionaries(
        st.integers(0, 9), st.floats(-5, 5) | st.floats(allow_nan=False), max_size=3
    ),
    "allowed": st.none() | st.sets(TOKENS, min_size=1, max_size=200),
    "bad_words": st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), max_size=3),
    "mass": st.sampled_from(["current", "current", "current", "current", "full"]),
    "watermark_key_file": st.just(WatermarkKey(b"a key for tests only")),
    "dry_sequence_breakers": st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=3),
}  # fmt: skip


def values(p: Parameter) -> st.SearchStrategy[Any]:
    """Values of a parameter: its neutral value and its bounds now and then."""
    if p.name in SPECIAL:
        return SPECIAL[p.name]
    if p.choices:
        return st.sampled_from(p.choices)
    low, high = NARROW.get(p.name, (p.low, p.high))
    assert low is not None
    assert high is not None
    known = [v for v in (p.neutral, p.low, p.high) if v is not None]
    if p.high is None:
        known += [1e39, 1e300]
    if p.type is float:  # and what float32 rounds to these, or to 0.5
        known += [v + by for v in (*known, 0.5) for by in (-1e-9, 1e-9, 1e-300)]
    lowest = -math.inf if p.low is None else p.low
    highest = math.inf if p.high is None else p.high
    beyond = [] if p.beyond is None else [p.beyond]
    edges = st.sampled_from([*beyond, *(v for v in known if lowest <= v <= highest)])
    inside: st.SearchStrategy[Any] = (
        st.integers(int(low), int(high)) if p.type is int else st.floats(low, high)
    )
    return st.one_of(inside, inside, inside, edges)


VOCABULARY = Texts(
    [b"abcab"[: token % 5] + b"xyz"[: token % 3] for token in range(280)],
    frozenset({1, 4, 250}),
    eot=4,
)
"""Texts that often begin one another, three of which end a generation."""


def sampler_of(cls: type[S.Sampler]) -> st.SearchStrategy[Any]:
    fields = {p.name: values(p) for p in cls.parameters()}
    if cls.name == "infill":
        return st.just(cls(VOCABULARY))  # type: ignore[call-arg]
    if cls is S.MinTokens:
        fields["end_tokens"] = st.lists(TOKENS, max_size=4).map(tuple)
    return st.builds(cls, **fields)


SAMPLERS = {cls: sampler_of(cls) for cls in S.SAMPLERS}
MIDDLE = st.one_of([s for cls, s in SAMPLERS.items() if not cls.selects])
LAST = st.one_of([s for cls, s in SAMPLERS.items() if cls.selects])


def legal(samplers: list[S.Sampler]) -> list[S.Sampler]:
    """The same, measuring against the current mass if there is no full one."""
    try:
        check_full_mass(samplers)
    except ParameterError:
        current: list[Any] = list(samplers)
        return [
            dataclasses.replace(s, mass="current") if hasattr(s, "mass") else s for s in current
        ]
    return samplers


# A Softmax first in half of them, for what measures against the full mass.
CHAINS = st.tuples(st.booleans(), st.lists(MIDDLE, max_size=6), LAST).map(
    lambda drawn: legal([*([S.Softmax()] if drawn[0] else []), *drawn[1], drawn[2]])
)
SIZES = st.sampled_from([2, 3, 10, 127, 128, 129, 260, 300])
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(family, st.sampled_from(FAMILIES), SIZES, st.integers(0, 99)),
    st.lists(st.floats(width=32), min_size=2, max_size=12).map(lambda x: np.array(x, np.float32)),
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.0000001, -2.5, -np.inf, np.nan, 3e38, 1e-45]),
             min_size=2, max_size=12).map(lambda x: np.array(x, np.float32)),
)  # fmt: skip
HISTORIES = st.lists(st.tuples(st.integers(0, 5) | TOKENS, st.booleans()), max_size=30)


def attempt(step: Callable[[], Any]) -> Any:
    """The result, or the type of the error."""
    try:
        return step()
    except AleatorError as error:
        return type(error).__name__


def applied(chain: S.SamplerChain, row: Row) -> Any:
    """What is left after a chain, and the logits bit for bit."""
    candidates = S.Candidates(row)
    chain.apply(candidates)
    ids, selected = candidates.ids.tolist(), candidates.selected
    return ids, selected, attempt(lambda: candidates.logits.tobytes())


def applied_by_reference(reference: S.ReferenceChain, row: Row) -> Any:
    left = reference.apply(row)
    ids, selected = left.ids.tolist(), left.selected

    def logits() -> bytes:
        left.materialise()
        return left.logits.tobytes()

    return ids, selected, attempt(logits)


def sampled(chain: S.SamplerChain, rows: list[Row]) -> list[Any]:
    return [attempt(lambda row=row: chain.sample(row)) for row in rows]  # type: ignore[misc]


@examples(400)
@given(CHAINS, SEEDS, st.integers(0, 2**20 - 1), HISTORIES, st.lists(ROWS, min_size=1, max_size=3))
def test_any_chain_equals_its_reference(
    samplers: list[S.Sampler],
    seed: int,
    completion: int,
    history: list[tuple[int, bool]],
    rows: list[Row],
) -> None:
    chain = S.SamplerChain(samplers, seed=seed, completion=completion)
    reference = S.ReferenceChain(chain)
    for token, generated in history:
        chain.accept(token, generated)
        reference.accept(token, generated)
    for row in rows:
        expected = attempt(lambda row=row: applied_by_reference(reference, row))  # type: ignore[misc]
        assert attempt(lambda row=row: applied(chain, row)) == expected  # type: ignore[misc]
        if isinstance(expected, str):
            return
        assert chain.sample(row) == expected[1]
        reference.accept(expected[1], generated=True)


@examples(150)
@given(CHAINS, SEEDS, HISTORIES, st.lists(ROWS, min_size=1, max_size=6), st.data())
def test_going_back_and_copies_repeat_the_same_tokens(
    samplers: list[S.Sampler],
    seed: int,
    history: list[tuple[int, bool]],
    rows: list[Row],
    data: st.DataObject,
) -> None:
    chain = S.SamplerChain(samplers, seed=seed)
    for token, generated in history:
        chain.accept(token, generated)
    start = chain.clone()
    tokens = sampled(chain, rows)
    assume(all(isinstance(token, int) for token in tokens))
    depth = data.draw(st.integers(0, len(rows)))
    middle = chain.clone()
    chain.rollback(depth)
    assert sampled(chain, rows[len(rows) - depth :]) == tokens[len(rows) - depth :]
    assert sampled(start, rows) == tokens
    assert (middle.history, middle.position) == (chain.history, chain.position)
    assert sampled(middle, rows) == sampled(chain, rows)
    chain.rollback(len(chain.history))
    assert (chain.history, chain.position) == ([], 0)
    middle.reset()
    assert sampled(middle, rows) == sampled(chain, rows)


@examples(150)
@given(CHAINS, SEEDS, HISTORIES, ROWS)
def test_apply_changes_nothing_and_never_empties_a_row(
    samplers: list[S.Sampler], seed: int, history: list[tuple[int, bool]], row: Row
) -> None:
    chain = S.SamplerChain(samplers, seed=seed)
    for token, generated in history:
        chain.accept(token, generated)
    before = (chain.history, chain.position, row.tobytes())
    first = attempt(lambda: applied(chain, row))
    assert attempt(lambda: applied(chain, row)) == first
    assert (chain.history, chain.position, row.tobytes()) == before
    if isinstance(first, str):
        assert attempt(lambda: chain.sample(row)) == first
        assert (chain.history, chain.position, row.tobytes()) == before
        return
    ids, selected, _ = first
    assert selected in ids
    assert ids == sorted(set(ids))
    if not any(isinstance(s, S.LogitBias | S.Infill) for s in samplers):
        assert not np.isnan(row[ids]).any()
        assert (row[ids] > -np.inf).all()
    assert chain.sample(row) == selected


@examples(150)
@given(CHAINS, SEEDS, HISTORIES, ROWS)
def test_neutral_samplers_do_nothing(
    samplers: list[S.Sampler], seed: int, history: list[tuple[int, bool]], row: Row
) -> None:
    # Their streams are numbered with the neutral ones counted, so what draws keeps its own ordinal here.
    drawing = {s.name for s in samplers if "seed" in {p.name for p in s.parameters()}}
    active = [s for s in samplers if not s.neutral or s.name in drawing or s.selects]
    neutral = [cls() for cls in SAMPLERS if not cls.selects and cls is not S.Infill]
    padded = [
        n for s in active for n in (*(n for n in neutral if n.neutral and n.name not in drawing), s)
    ]
    results = []
    for chosen in (samplers, active, padded):
        chain = S.SamplerChain(chosen, seed=seed)
        for token, generated in history:
            chain.accept(token, generated)
        results.append(attempt(lambda chain=chain: applied(chain, row)))  # type: ignore[misc]
    note(f"{active}")
    assert results[0] == results[1] == results[2]


BY_LOGIT = (S.TopK, S.TopP, S.MinP, S.TypicalP, S.TopNSigma, S.TopA, S.TailFree, S.Temperature, S.PLess,
            S.TopH, S.MinK)  # fmt: skip
TRUNCATING = st.lists(st.one_of([SAMPLERS[cls] for cls in BY_LOGIT]), max_size=5)


@examples(200)
@given(TRUNCATING, st.integers(2, 300), st.integers(0, 99))
def test_without_ties_the_kept_set_does_not_depend_on_ids(
    samplers: list[S.Sampler], n: int, seed: int
) -> None:
    rng = np.random.default_rng([n, seed])
    row = rng.permutation(np.linspace(-9, 9, n)).astype(np.float32)
    order = rng.permutation(n)
    chain = S.SamplerChain(legal([S.Softmax(), *samplers]))
    kept, shuffled = (attempt(lambda row=row: applied(chain, row)) for row in (row, row[order]))  # type: ignore[misc]
    if isinstance(kept, str):
        assert shuffled == kept
    else:
        assert {int(order[i]) for i in shuffled[0]} == set(kept[0])


@examples(100)
@given(CHAINS, SEEDS, ROWS)
def test_float16_equals_its_float32(samplers: list[S.Sampler], seed: int, row: Row) -> None:
    with np.errstate(over="ignore"):
        half = row.astype(np.float16)
    chain = S.SamplerChain(samplers, seed=seed)
    widened = half.astype(np.float32)
    assert attempt(lambda: applied(chain, half)) == attempt(lambda: applied(chain, widened))  # type: ignore[arg-type]


@examples(60)
@given(CHAINS, SEEDS, ROWS)
def test_bfloat16_equals_its_float32(samplers: list[S.Sampler], seed: int, row: Row) -> None:
    torch = pytest.importorskip("torch")
    low = torch.from_numpy(row).bfloat16()
    chain = S.SamplerChain(samplers, seed=seed)
    widened = low.float().numpy()
    assert attempt(lambda: applied(chain, low)) == attempt(lambda: applied(chain, widened))
