from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.parameter import NUMERICS
from aleator.samplers import explain
from aleator.samplers.explain import TRACED, Explanation
from aleator.samplers.explain_text import columns, sparkline, step_line, summary
from tests.drawn import differences
from tests.samplers.steps import Texts

HALVES = np.log2(np.array([0.125, 0.5, 0.125, 0.25])).astype(np.float32) * np.float32(math.log(2))
ROWS = np.random.default_rng(1).normal(size=(12, 400)).astype(np.float32) * 2
PNG = b"\x89PNG\r\n\x1a\n"
AWKWARD = (b"\n", b"\xc3", "漢字".encode(), "🦙".encode(), b"$x_1$", b"a" * 60, b"")
WORDS = Texts(
    [*AWKWARD, *(f" w{token}".encode() for token in range(len(AWKWARD), 400))], frozenset({399})
)
"""A vocabulary of 400 tokens, some of them awkward to write."""


class Ban:
    """A user's sampler that counts its calls."""

    name = "ban"

    def __init__(self, token: int) -> None:
        self.token, self.calls = token, 0

    def apply(self, candidates: S.Candidates) -> None:
        self.calls += 1
        candidates.keep(i for i in candidates.ids.tolist() if i != self.token)


def params(**changes: Any) -> Any:
    return S.SamplingParams.resolve({"seed": 5, **changes})


CHAINS: dict[str, Any] = {
    "default": params(),
    "everything": params(
        repetition_penalty=1.3, frequency_penalty=0.2, dry_multiplier=1.0, dry_sequence_breakers=(),
        top_n_sigma=2.0, typical_p=0.9, xtc_probability=0.5, dynatemp_range=0.4, logit_bias={3: 4.0},
    ),
    "mirostat": params(mirostat=1),
    "mirostat 2": params(mirostat=2, mirostat_tau=2.0),
    "adaptive": params(samplers="top_k;temperature;adaptive_p", adaptive_target=0.2),
    "flat": params(samplers="", seed=2),
    "full mass": S.SamplingParams.preset("akunu-creative", seed=5),
    "gumbel": params(draw="gumbel"),
}  # fmt: skip
LLAMA = {
    name: p.replace(numerics="llama.cpp")
    for name, p in CHAINS.items()
    if name not in ("full mass", "gumbel")
}
ALL = {**CHAINS, **{f"{name}, llama.cpp": p for name, p in LLAMA.items()}}


@pytest.mark.parametrize("name", ALL)
def test_explains_what_sample_does_and_changes_nothing(name: str) -> None:
    chain, twin = ALL[name].chain(), ALL[name].chain()
    for each in (chain, twin):
        for token in (1, 2, 3, 1, 2):
            each.accept(token)
    for row in ROWS:
        first, second = chain.explain(row), chain.explain(row)
        assert first.draw is not None
        assert [s.after for s in first.stages] == [s.after for s in second.stages]
        assert first.draw == second.draw
        assert (first.draw.position, first.draw.seed) == (chain.position, chain.seed)
        token = chain.sample(row)
        assert first.draw.token.id == token == twin.sample(row)
    assert chain.history == twin.history
    assert chain.n_sampled == len(ROWS)


@pytest.mark.parametrize("numerics", NUMERICS)
def test_figures(numerics: str) -> None:
    chain = S.SamplerChain(
        [S.TopK(2), S.Temperature(temperature=0.5), S.TopP(top_p=1.0), S.Greedy()], numerics
    )
    e = chain.explain(HALVES)
    top_k, temperature, top_p, greedy = e.stages
    assert (e.n_vocab, e.history, e.before.candidates) == (4, 0, 4)
    assert e.before.entropy == pytest.approx(1.75, abs=1e-5)
    assert e.before.choices == pytest.approx(2**1.75, abs=1e-5)
    assert e.before.top == pytest.approx(0.5, abs=1e-6)
    assert (top_k.label, top_k.n_removed, top_k.after.candidates) == ("top_k=2", 2, 2)
    assert top_k.mass_cut == pytest.approx(0.25, abs=1e-6)
    assert [r.token.id for r in top_k.removed] == [0, 2]
    assert [r.probability for r in top_k.removed] == pytest.approx([0.125, 0.125], abs=1e-6)
    assert top_k.moved == 0
    assert top_k.after.top == pytest.approx(2 / 3, abs=1e-6)
    # At half the temperature 2:1 becomes 4:1, so 4/5 - 2/3 changes hands.
    assert (temperature.n_removed, temperature.mass_cut) == (0, 0)
    assert temperature.moved == pytest.approx(4 / 5 - 2 / 3, abs=1e-5)
    assert temperature.after.entropy == pytest.approx(
        0.8 * math.log2(5 / 4) + 0.2 * math.log2(5), abs=1e-5
    )
    assert top_p.neutral
    assert (top_p.microseconds, top_p.after) == (0, temperature.after)
    assert greedy.microseconds > 0
    assert [s.name for s in e.active] == ["top_k", "temperature", "greedy"]
    assert e.draw is not None
    assert e.draw.token.id == 1
    assert (e.draw.before, e.draw.probability) == pytest.approx((0.5, 0.8), abs=1e-5)
    traces = {t.token.id: t for t in e.traces}
    assert (traces[0].removed_by, traces[1].removed_by) == (0, None)
    assert traces[3].probabilities == pytest.approx((0.25, 1 / 3, 0.2, 0.2, 0.2), abs=1e-5)
    assert traces[0].probabilities == pytest.approx((0.125, 0, 0, 0, 0), abs=1e-6)


@pytest.mark.parametrize("numerics", NUMERICS)
def test_masked_tokens_are_no_candidates(numerics: str) -> None:
    row = ROWS[0].copy()
    row[:100] = -np.inf
    row[100] = np.nan
    chain = S.SamplerChain([S.LogitBias({101: -np.inf}), S.Dist(seed=1)], numerics)
    e = chain.explain(row)
    assert e.before.candidates == 299
    assert [r.token.id for r in e.stages[0].removed] == [101]


@pytest.mark.parametrize("numerics", NUMERICS)
def test_state(numerics: str) -> None:
    chain = params(mirostat=2, mirostat_tau=3.0, temperature=1.0, numerics=numerics).chain()
    seen = []
    for row in ROWS:
        seen.append(chain.explain(row).stages[-1].state["mu"])
        chain.sample(row)
    assert seen[0] == 6
    assert len(set(seen)) == len(ROWS)
    # A token that is more surprising than the target lowers mu.
    e = chain.explain(ROWS[0])
    assert e.draw is not None
    chain.sample(ROWS[0])
    moved = chain.explain(ROWS[0]).stages[-1].state["mu"] - e.stages[-1].state["mu"]
    surprise = -math.log2(e.draw.probability)
    assert moved == pytest.approx(-0.1 * (surprise - 3.0), abs=1e-5)

    chain = params(samplers="adaptive_p", adaptive_target=0.25, numerics=numerics).chain()
    e = chain.explain(ROWS[0])
    assert e.draw is not None
    assert e.stages[-1].state == pytest.approx({"average": 0.25}, abs=1e-6)
    chain.sample(ROWS[0])
    average = chain.explain(ROWS[0]).stages[-1].state["average"]
    assert average == pytest.approx((e.draw.before + 0.9 * 2.5) / (1 + 0.9 * 10), abs=1e-5)

    chain = params(
        repetition_penalty=1.5, penalty_last_n=3, dry_multiplier=1.0, dry_sequence_breakers=(),
        dry_penalty_last_n=4, numerics=numerics,
    ).chain()  # fmt: skip
    for token in (9, 7, 8, 8, 7):
        chain.accept(token)
    e = chain.explain(ROWS[0])
    by_name = {s.name: s for s in e.stages}
    assert e.history == 5
    assert by_name["penalties"].state == {"window": 3, "distinct": 2}
    assert by_name["dry"].state == {"window": 4}
    assert by_name["penalties"].moved > 0


def test_a_pending_temperature_is_told_where_it_changes() -> None:
    chain = S.SamplerChain(
        [S.Temperature(temperature=0.5), S.TopK(9), S.Temperature(temperature=3.0), S.Dist(seed=1)]
    )
    states = [s.state for s in chain.explain(ROWS[0]).stages]
    assert states == [{"pending temperature": 0.5}, {}, {"pending temperature": 1.5}, {}]


def test_times_are_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(0, 70_000_000)
    monkeypatch.setattr("aleator.samplers.explain.perf_counter_ns", lambda: next(ticks))
    chain = S.SamplerChain([S.TopK(3), S.Dist(seed=1)])
    assert {s.microseconds for s in chain.explain(ROWS[0]).stages} == {70_000}
    for numerics in NUMERICS:
        grammar = S.Grammar('root ::= " w10" | " w20"', vocabulary=WORDS)
        chain = S.SamplerChain([S.Dist(seed=1)], numerics, grammar=grammar)
        e = chain.explain(ROWS[0])
        assert [s.microseconds for s in e.stages] == [70_000, 70_000]


def test_user_samplers_and_nested_chains() -> None:
    ban = Ban(int(ROWS[0].argmax()))
    chain = S.SamplerChain([S.SamplerChain([S.TopK(20), ban]), S.MinP(min_p=0.05), S.Dist(seed=1)])
    e = chain.explain(ROWS[0])
    assert [s.label for s in e.stages] == ["top_k=20", "ban", "min_p=0.05", "dist"]
    assert [r.token.id for r in e.stages[1].removed] == [ban.token]
    assert {t.token.id: t.removed_by for t in e.traces}[ban.token] == 1
    assert ban.calls == 0
    assert e.draw is not None
    assert chain.sample(ROWS[0]) == e.draw.token.id
    assert ban.calls == 1


def test_the_token_drawn_is_always_shown() -> None:
    row = np.zeros(400, np.float32)
    row[0] = 3
    chain = S.SamplerChain([S.TokenMask([390, 391]), S.Dist(seed=4)])
    e = chain.explain(row, top=2)
    assert e.draw is not None
    assert e.draw.token.id in (390, 391)
    assert e.draw.token.id in [t.token.id for t in e.shown(0)]
    # What the chain raises matters as much as what the model prefers.
    assert {0, 390, 391} <= {t.token.id for t in e.traces}


@pytest.mark.parametrize("top", [1, 30, 40])
def test_the_most_likely_are_traced_in_their_order(top: int) -> None:
    row = np.random.default_rng(7).permutation(400).astype(np.float32) / 40
    e = S.SamplerChain([S.Greedy()]).explain(row, top=top)
    best = np.argsort(-row)[: max(top, TRACED)].tolist()
    assert [t.token.id for t in e.traces] == best


def test_chains_that_select_nothing() -> None:
    for chain in (S.SamplerChain([]), S.SamplerChain([S.TopK(3)])):
        e = chain.explain(ROWS[0])
        assert e.draw is None
        assert "nothing is drawn" in str(e)
        assert len(e.bars().splitlines()) == 10


def test_rows_of_a_context_and_other_types() -> None:
    class Context:
        def logits(self, i: int) -> Any:
            return ROWS[i]

    chain = params().chain()
    assert chain.explain(Context(), row=3).draw == chain.explain(ROWS[3]).draw
    assert chain.explain(Context()).draw == chain.explain(ROWS[-1]).draw
    half = ROWS[0].astype(np.float16)
    assert chain.explain(half).draw.token.id == chain.sample(half)


def test_bad_input_leaves_the_chain_alone() -> None:
    chain = params().chain()
    for bad in (
        np.full(9, -np.inf, np.float32),
        np.zeros((2, 2), np.float32),
        np.zeros(0, np.float32),
    ):
        with pytest.raises(LogitsError):
            chain.explain(bad)
    with pytest.raises(ParameterError, match="top=-1 is out of range: give 0 or more"):
        chain.explain(ROWS[0], top=-1)
    assert (chain.history, chain.n_sampled) == ([], 0)


def explained(**changes: Any) -> Explanation:
    made: Explanation = params(**changes).chain().explain(ROWS[0] * 2, WORDS)
    return made


def test_table() -> None:
    e = explained()
    lines = e.table().splitlines()
    assert lines[0].split()[:2] == ["sampler", "left"]
    assert lines[1].split()[:2] == ["logits", "400"]
    rows = {line.split("=")[0]: line for line in lines[2:7]}
    assert rows["top_k"].split()[1:3] == ["40", "360"]
    assert lines[6].startswith("dist ")
    assert lines[6].endswith(" us")
    assert any(line.startswith("top_k removed ' w") and "and 355 more" in line for line in lines)
    assert "temperature: pending temperature 0.8" in lines
    assert "neutral: penalties, dry, top_n_sigma, typical_p, xtc" in lines
    assert e.draw is not None
    assert lines[-1].startswith(f"drawn: {e.draw.token.label} (id {e.draw.token.id}), probability ")
    assert lines[-1].endswith("; seed 5, position 0")
    assert str(e) == f"{e.table()}\n\n{e.bars()}"


def test_tokens_beyond_the_vocabulary_have_numbers() -> None:
    e = S.SamplerChain([S.Dist(seed=1)]).explain(np.zeros(4, np.float32), Texts([b"a", b"b"]))
    assert [trace.token.label for trace in sorted(e.traces, key=lambda each: each.token.id)] == [
        "'a'", "'b'", "[2]", "[3]",
    ]  # fmt: skip


def test_awkward_tokens_are_escaped() -> None:
    row = np.linspace(0, -3, 400).astype(np.float32)
    row[: len(AWKWARD)] = 9
    e = S.SamplerChain([S.Greedy()]).explain(row, WORDS)
    labels = [t.token.label for t in e.shown()][: len(AWKWARD)]
    assert labels[:4] == [r"'\n'", r"b'\xc3'", "'漢字'", "'🦙'"]
    lines = e.bars(80).splitlines()
    assert len(lines) == 10
    assert max(map(columns, lines)) <= 80
    # Columns stay aligned after wide characters and cut texts.
    assert len({columns(line[: line.index("%")]) for line in lines}) == 1
    assert e.draw is not None
    assert (e.draw.token.label, e.draw.token.text) == (r"'\n'", "\n")
    beyond = S.SamplerChain([S.Greedy()]).explain(np.arange(500, dtype=np.float32), WORDS)
    assert beyond.draw is not None
    assert (beyond.draw.token.label, beyond.draw.token.text) == ("[499]", None)


def test_json() -> None:
    e = explained(mirostat=2)
    made = json.loads(json.dumps(e.to_dict(), allow_nan=False))
    assert e.draw is not None
    assert made["draw"]["token"]["id"] == e.draw.token.id
    assert made["before"]["choices"] == pytest.approx(e.before.choices)
    assert [s["name"] for s in made["stages"]] == [s.name for s in e.stages]
    assert made["stages"][-1]["state"]["mu"] == 10
    assert len(made["traces"]) in (10, 11)


def steps(**changes: Any) -> list[Explanation]:
    chain = params(**changes).chain()
    made = []
    for row in ROWS:
        made.append(chain.explain(row, WORDS))
        chain.sample(row)
    return made


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([0.0] * 100 + [1.0] * 100, 4) == "▁▁██"
    assert (
        sparkline([1e16, 1.0, -1e16, 0.0, 0.0, 0.0], 2) == "█▁"
    )  # sums are not rounded on the way


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'aleator\[plot\]'"):
        explained().plot(tmp_path / "step.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("aé", 2), ("e\u0301", 1), ("漢", 2), ("\uff21", 2), ("\uff71", 1), ("→", 1)],
)
def test_columns_of_a_terminal(text: str, width: int) -> None:
    assert columns(text) == width


def test_what_is_told_is_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table, bar, line and summary, every stage taking 1.5 ms."""
    clock = itertools.count(0, 1_500_000)
    monkeypatch.setattr(explain, "perf_counter_ns", lambda: next(clock))
    told: list[Any] = []
    for name, each in CHAINS.items():
        e = each.chain().explain(ROWS[0], WORDS)
        told.append([name, e.table(), *(e.bars(width, 6) for width in (24, 60, 137))])
    for changes in ({"mirostat": 2}, {"dynatemp_range": 0.5}, {"samplers": ""}):
        made = steps(**changes)
        told.append([summary(made), *map(step_line, made)])
    told.append([sparkline(range(n), 7) for n in (1, 2, 7, 8, 20)])
    told.append(sparkline([3.0] * 9))
    assert differences("explained", told) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 22, f"'{'x' * 22}'"), ("x" * 23, f"'{'x' * 20}..."), ("x" * 99, f"'{'x' * 20}..."),
        ("漢" * 11, f"'{'漢' * 11}'"), ("漢" * 12, f"'{'漢' * 10}..."), ("x" + "漢" * 12, f"'x{'漢' * 9}..."),
    ],
)  # fmt: skip
def test_texts_of_tokens_have_24_columns(text: str, shown: str) -> None:
    e = S.SamplerChain([S.Dist(seed=1)]).explain(
        np.zeros(2, np.float32), Texts([text.encode(), b"y"])
    )
    lines = [line[2:] for line in e.bars(100).splitlines()]
    assert [line.startswith(f"{shown} ") for line in lines] == [True, False]
    assert {columns(line[: line.index("%")]) for line in lines} == {columns(lines[0].split("%")[0])}
