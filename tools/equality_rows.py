"""Random rows and chains for tools/equality.py and tools/corpus.py: many kinds of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.samplers import index as S
from aleator.samplers.phase_table import ANSWER, HISTORIES, MARKS
from aleator.samplers.phases import Phases
from aleator.samplers.watermark import WatermarkKey

KINDS = (
    "normal", "flat", "peaked", "masked", "ties", "one", "bfloat16", "wide", "special", "model",
    "infinite", "overflow", "denormal", "bad",
)  # fmt: skip
DTYPES = {"float32": 0.8, "float16": 0.1, "bfloat16": 0.1}
"""Types of the logits, and their share of the blocks."""

Rows = NDArray[np.float32]


def rows_of(rng: np.random.Generator, batch: int, n: int) -> Rows:
    """Logits [batch, n], every row of some kind."""
    z = rng.normal(0, 3, (batch, n)).astype(np.float32)
    for row in z:
        match rng.choice(KINDS):
            case "flat":
                row *= np.float32(10.0 ** rng.uniform(-5, -1))
            case "peaked":
                row[rng.integers(n)] += np.float32(rng.uniform(5, 60))
            case "masked":
                row[rng.random(n) < rng.random()] = -np.inf
                row[rng.integers(n)] = 1
            case "ties":
                row[:] = np.rint(row * rng.integers(1, 4))
            case "one":
                kept = rng.integers(n)
                row[:kept] = row[kept + 1 :] = -np.inf
            case "bfloat16":
                bits = row.view(np.uint32)  # ties to even
                bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
                bits &= np.uint32(0xFFFF0000)
            case "wide":
                row *= np.float32(10.0 ** rng.uniform(1, 6))
            case "special":
                row[::7], row[1::7] = np.nan, -0.0
                row[2::7] = rng.choice([np.inf, 3.0, -np.inf])
            case "model":
                top = rng.choice(n, max(1, n // 20), replace=False)
                row[top] += rng.exponential(3, len(top)).astype(np.float32) + 6
            case "infinite":  # among the tokens that histories and biases change, and elsewhere
                row[rng.integers(0, min(n, 40), rng.integers(1, 6))] = np.inf
                row[rng.random(n) < rng.choice([0, 0.1])] = np.inf
            case "overflow":  # float16 and bfloat16 on entry, float32 under penalties
                row *= np.float32(10.0 ** rng.uniform(4, 37.5))
            case "denormal":
                row *= np.float32(1e-42)
            case "bad":
                row[:] = rng.choice([np.nan, -np.inf])
    return z


def share(r: random.Random) -> float:
    """A probability; sometimes at the edge, or one that flat rows reach exactly."""
    edges = (0.0, 0.5, 1 - 2**-24, 0.999, 1e-7, *(i / 10 for i in range(1, 10)))
    return r.choice(edges) if r.random() < 0.3 else r.random()


def temperature(r: random.Random) -> float:
    """A temperature: mostly usual, sometimes 0 or extreme, or with a scale between two float32."""
    if r.random() < 0.2:
        low = np.float32(r.uniform(0.7, 4))
        return 1.4426950408889634 / ((float(low) + float(np.nextafter(low, np.float32(9)))) / 2)
    return r.choice((0.0, 1.0, 1e-3, 50.0)) if r.random() < 0.2 else r.uniform(0.2, 2.0)


def penalties(r: random.Random) -> Any:
    return S.Penalties(
        penalty_last_n=r.randrange(-1, 9), repetition_penalty=r.choice((1.0, 1.2, 0.8)),
        frequency_penalty=r.choice((0.0, 0.3)), presence_penalty=r.choice((0.0, -0.2, 1e3)),
        penalty_scope=r.choice(("all", "generated", "mixed")),
    )  # fmt: skip


Make = Callable[[random.Random, int], list[Any]]


def default(r: random.Random, n: int) -> list[Any]:
    return [
        S.LogitBias({r.randrange(n): r.choice((2.0, -1.5, float("-inf")))}),
        penalties(r),
        S.TopNSigma(top_n_sigma=r.uniform(0.1, 3)),
        S.TopK(top_k=r.randrange(0, 80)),
        S.TypicalP(typical_p=share(r), min_keep=r.choice((0, 0, 3))),
        S.TopP(top_p=share(r), min_keep=r.choice((0, 0, 5))),
        S.MinP(min_p=share(r) / 4, min_keep=r.choice((0, 0, 4))),
        S.XTC(xtc_probability=r.random(), xtc_threshold=r.random() / 4, min_keep=r.choice((0, 2))),
        S.Temperature(temperature=temperature(r)),
        S.Dist(),
    ]


def heat_first(r: random.Random, n: int) -> list[Any]:
    return [
        S.TokenMask(allowed=sorted({r.randrange(n) for _ in range(n // 2 + 1)})),
        S.Temperature(
            temperature=temperature(r), dynatemp_range=r.random(),
            dynatemp_exponent=r.choice((1.0, 0.0, 1.7)),
        ),
        penalties(r),
        S.MinP(min_p=share(r) / 4),
        S.TopP(top_p=share(r)),
        S.TopK(top_k=r.randrange(1, 60)),
        S.Dist(),
    ]  # fmt: skip


def full_mass(r: random.Random, n: int) -> list[Any]:
    return [
        S.Softmax(),
        S.TopK(top_k=r.randrange(1, 60)),
        S.TopP(top_p=share(r), mass="full"),
        S.Dist(),
    ]


def mirostat(r: random.Random, n: int) -> list[Any]:
    return [
        S.TopK(top_k=r.randrange(0, 90)),
        S.Temperature(temperature=r.uniform(0.3, 2)),
        S.MirostatV2(mirostat_tau=r.uniform(0, 6), mirostat_eta=r.random()),
    ]


def adaptive(r: random.Random, n: int) -> list[Any]:
    return [
        S.Temperature(temperature=temperature(r)),
        S.MinP(min_p=share(r) / 4),
        S.AdaptiveP(
            adaptive_target=target if (target := r.uniform(-0.1, 1)) >= 0 else -1,
            adaptive_decay=r.uniform(0, 0.99),
        ),
    ]


def cut_off(r: random.Random, n: int) -> list[Any]:
    """Smoothing, and cut-offs by probability."""
    smoothing = S.Smoothing(
        smoothing_factor=r.choice((0.0, 0.2, 3.0)), smoothing_curve=r.uniform(1, 5)
    )
    epsilon = S.EpsilonCutoff(
        epsilon_cutoff=r.choice((0.0, r.random() / 9)), min_keep=r.choice((0, 3))
    )
    eta = S.EtaCutoff(eta_cutoff=r.choice((0.0, r.random())), min_keep=r.choice((0, 0, 4)))
    return [
        S.Temperature(temperature=temperature(r)),
        smoothing,
        S.TopK(top_k=r.randrange(0, 90)),
        *([epsilon, eta] if r.random() < 0.5 else [eta, epsilon]),
        S.Dist(),
    ]


def by_shape(r: random.Random, n: int) -> list[Any]:
    """Samplers that cut by the row's shape, in any order, sometimes after others that leave gaps."""
    cuts = [
        S.PLess(p_less=r.choice(("off", "on", "normalized"))),
        S.TopH(top_h=share(r)),
        S.MinK(min_k_tau=r.choice((-1.0, 0.0, 3.0, r.uniform(0, 500)))),
    ]
    r.shuffle(cuts)
    return [
        S.XTC(xtc_probability=r.choice((0.0, 0.9)), xtc_threshold=0.02),
        S.TopK(top_k=r.choice((0, 0, 30))),
        S.Temperature(temperature=temperature(r)),
        *cuts[: r.randrange(1, 4)],
        S.Dist(),
    ]


def sequences(r: random.Random, n: int) -> list[Any]:
    """Samplers that depend on earlier tokens, in rows with few tokens left, so that they take effect."""
    some = min(n, 40)
    words = [tuple(r.choices(range(some), k=r.randrange(1, 4))) for _ in range(r.randrange(1, 9))]
    return [
        S.MinTokens(min_tokens=r.randrange(0, 4), end_tokens=tuple(r.choices(range(some), k=3))),
        S.BadWords(bad_words=words),
        S.NoRepeatNgram(no_repeat_ngram_size=r.randrange(0, 4)),
        S.Penalties(
            penalty_last_n=r.randrange(0, 9), repetition_penalty=r.choice((1.0, 1.4, 0.7)),
            repetition_per=r.choice(("token", "occurrence")), frequency_penalty=r.choice((0.0, 0.2)),
        ),
        S.TopK(top_k=r.randrange(0, 5)),
        S.Dist(),
    ]  # fmt: skip


def race(r: random.Random, n: int) -> list[Any]:
    # The reference takes the logarithms of all candidates one by one.
    return [S.Temperature(temperature=temperature(r)), S.TopK(top_k=r.randrange(1, 40)),
            S.Dist(draw="gumbel")]  # fmt: skip


KEYS = [WatermarkKey(b"a key for tests only"), WatermarkKey(b"[654, 400, 836, 123, 3]")]


def watermark(r: random.Random, n: int) -> list[Any]:
    """A watermark keyed by one or two tokens, so that contexts repeat within a few draws."""
    return [S.Temperature(temperature=temperature(r)), S.TopK(top_k=r.randrange(1, 40)),
            S.Dist(draw=r.choice(("watermark", "synthid")), watermark_key_file=r.choice(KEYS),
                   watermark_ngram=r.randrange(1, 3))]  # fmt: skip


def phases(r: random.Random, n: int) -> list[Any]:
    """Three phases of a few tokens, most of them marks, with a shared history or one each."""
    few = r.sample(range(n), 6)
    marks = {"thinking": few[:2], "code": (few[2], few[0])}
    table: list[tuple[str, Any]] = [
        (name, tuple(zip(MARKS, each, strict=True))) for name, each in marks.items()
    ]
    table += [("histories", r.choice(HISTORIES)), ("start", r.choice((ANSWER, *marks)))]
    chains = {
        name: [
            S.TokenMask(allowed=few),
            penalties(r),
            S.TopK(top_k=r.randrange(2, 9)),
            S.Temperature(temperature=temperature(r)),
            S.Dist(draw=r.choice(("inverse", "gumbel"))),
        ]
        for name in (ANSWER, *marks)
    }
    return [Phases(tuple(table), chains)]


def whole_row(r: random.Random, n: int) -> list[Any]:
    return [S.Temperature(temperature=temperature(r)), S.TopP(top_p=share(r)), S.Dist()]


def written(r: random.Random, n: int) -> list[Any]:
    """Biases and penalties, often with a draw from all remaining tokens."""
    biases = (1.0, -2.5, 3e38, -3e38, 1e-42, float("-inf"))
    return [
        S.LogitBias({r.randrange(min(n, 40)): r.choice(biases) for _ in range(r.randrange(1, 5))}),
        penalties(r),
        S.LogitBias({r.randrange(min(n, 40)): r.choice(biases)}),
        S.TopP(top_p=share(r)),
        S.Temperature(temperature=temperature(r)),
        S.Dist(),
    ]


def greedy(r: random.Random, n: int) -> list[Any]:
    return [penalties(r), S.TopP(top_p=share(r)), S.Greedy()]


def tail(r: random.Random, n: int) -> list[Any]:
    return [  # XTC and typical-p leave a gap at the start of the order, before the transferred tokens
        S.XTC(xtc_probability=r.choice((0.0, 0.7)), xtc_threshold=r.random() / 4),
        S.TypicalP(typical_p=r.choice((1.0, share(r)))),
        S.TopK(top_k=r.randrange(1, 40)),
        S.Temperature(temperature=r.uniform(0.3, 2)),
        S.DRY(  # a whole history: on the host
            dry_multiplier=0.8, dry_allowed_length=1, dry_penalty_last_n=-1, dry_sequence_breakers=()
        ),
        S.Dist(),
    ]  # fmt: skip


def mirostat_1(r: random.Random, n: int) -> list[Any]:
    return [
        S.TopK(top_k=r.randrange(0, 90)),
        S.Temperature(temperature=r.uniform(0.3, 2)),
        S.Mirostat(
            mirostat_tau=r.uniform(0, 6), mirostat_eta=r.random(), mirostat_m=r.randrange(2, 120)
        ),
    ]  # fmt: skip


def repeats(r: random.Random, n: int) -> list[Any]:
    return [
        S.Temperature(temperature=r.uniform(0.3, 2)),
        S.DRY(
            dry_multiplier=r.uniform(-0.5, 2), dry_base=r.uniform(1, 2), dry_allowed_length=r.randrange(3),
            dry_penalty_last_n=r.choice((3, 20, 64)),
            dry_sequence_breakers=r.choice(((), ((1,),), ((2, 3), (4,)), ((1, 2, 1), (0, 5)))),
        ),
        S.TopK(top_k=r.randrange(0, 40)),
        S.Dist(),
    ]  # fmt: skip


def listed(r: random.Random, n: int) -> list[Any]:
    """Samplers that depend on earlier tokens, before and after a top-k, then others that cut or adapt."""
    backwards = [*sequences(r, n)[:3], repeats(r, n)[1]]
    early = [s for s in backwards if r.random() < 0.5]
    _, smoothing, _, *cuts, _ = cut_off(r, n)
    late = [s for s in (*backwards, smoothing, *cuts) if r.random() < 0.5]
    last = r.choice((S.Dist(), mirostat_1(r, n)[-1], adaptive(r, n)[-1]))
    return [
        *early,
        S.TopK(top_k=r.randrange(1, 40)),
        S.Temperature(temperature=temperature(r)),
        *late,
        last,
    ]


def any_order(r: random.Random, n: int) -> list[Any]:
    """Samplers of other chains in a unique order, and any sampler that selects."""
    some = [s for make in (default, heat_first, repeats, sequences) for s in make(r, n)[:-1]]
    last = r.choice((S.Dist(), S.Dist(draw="gumbel"), S.Greedy(), S.MirostatV2(), S.Mirostat()))
    return [*r.sample(some, r.randrange(6)), last]


CHAINS: dict[str, tuple[Make, float]] = {
    "default": (default, 0.25), "temperature first": (heat_first, 0.15), "full mass": (full_mass, 0.1),
    "mirostat 2": (mirostat, 0.05), "adaptive-p": (adaptive, 0.05),
    "race": (race, 0.05), "watermark": (watermark, 0.05),
    "whole row": (whole_row, 0.1), "written": (written, 0.1),
    "greedy": (greedy, 0.05), "host tail": (tail, 0.1),
    "mirostat 1": (mirostat_1, 0.05), "dry": (repeats, 0.05), "any order": (any_order, 0.05),
    "listed": (listed, 0.05),
    "cut-offs": (cut_off, 0.05), "shape": (by_shape, 0.05), "sequences": (sequences, 0.05),
    "phases": (phases, 0.05),
}  # fmt: skip
"""The function that makes each kind of chain, and its share of the blocks."""
OPTIONAL = (
    "default", "temperature first", "whole row", "written", "greedy", "cut-offs", "shape", "sequences",
)  # fmt: skip
"""Kinds of chains that may lack any of their samplers."""
