"""Convolutions, scans and delta rules in Triton, under its interpreter, have the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from decoder_numerics import delta as rules
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats, fused

from aleator.cache.pools.recurrent_rows import RecurrentBatch, Run
from aleator.models.kernels import norms, recurrent, recurrent_parts, works
from aleator.models.kernels.recurrent_parts import PartNorm
from aleator.models.kernels.runs import Runs, numbers_of
from tests.models.bits import equal

pytestmark = pytest.mark.usefixtures("small_programs")
ONE = np.float32(1)
SPECIAL = np.array(
    [0, -0.0, 1, 87.5, -87.5, 88.5, -88.5, 1e-30, -1e-30, 1e30, -1e30, np.inf, -np.inf, np.nan],
    np.float32,
)


def numbers(rng: np.random.Generator, *shape: int, special: bool = False) -> Floats:
    """Normal numbers of several magnitudes; some are special."""
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 2, shape)).astype(np.float32)
    if special:
        x = np.where(rng.random(shape) < 0.05, rng.choice(SPECIAL, shape), x)
    return x


def strided(x: Floats) -> torch.Tensor:
    """The same rows, further apart."""
    wide = torch.full((len(x), x.shape[1] + 5), float("nan"))
    view = wide[:, 2 : 2 + x.shape[1]]
    view.copy_(torch.from_numpy(x))
    return view


def run(source: int, tokens: list[int], *stores: tuple[int, int]) -> Run:
    return Run(source, (0,), tokens, tokens, list(stores))


BATCHES = {
    "one": [run(-1, [0], (0, 1))],
    "in place": [run(2, [0, 1], (1, 2))],
    "three": [run(1, [0, 1, 2], (0, 0), (1, 3), (2, 1))],
    "long": [run(3, list(range(17)), (14, 2), (15, 0), (16, 3))],
    # One continues what another one leaves, one overwrites what another one reads, one is alone.
    "mixed": [
        run(2, [0, 3, 4], (1, 5), (2, 0)), run(0, [1, 2], (1, 1)), run(4, [6], (0, 2)),
        run(3, [5, 8, 9, 10, 11], (4, 3)), run(1, [12, 13, 14, 15, 16], (0, 0)), run(-1, [7], (0, 4)),
    ],
    # A row that is read is written twice, between them read again; others begin anew, or from a row alone.
    "few": [
        run(2, [0, 3, 4], (1, 5), (2, 2)), run(2, [1], (0, 2)), run(2, [2], (0, 0)), run(5, [6, 9], (1, 1)),
        run(-1, [7, 8], (0, 4), (1, 5)), run(3, [5, 10, 11, 12, 13]),
    ],
}  # fmt: skip
ROWS = 6


def batch_of(name: str) -> RecurrentBatch:
    runs = BATCHES[name]
    return RecurrentBatch([], [], runs, np.zeros(sum(len(r.tokens) for r in runs), np.int32))


def by_runs(batch: RecurrentBatch, kept: Floats, step: Any) -> Floats:
    """What ``step(tokens, state)`` gives, (y, states after each token), run by run; ``kept`` changes."""
    out: dict[int, Floats] = {}
    for each in batch.runs:
        state = np.zeros_like(kept[0]) if each.source < 0 else kept[each.source].copy()
        y, after = step(np.array(each.tokens), state)
        out.update(zip(each.tokens, y, strict=True))
        for index, row in each.stores:
            kept[row] = after[index]
    return np.stack([out[t] for t in range(len(out))])


def runs_of(batch: RecurrentBatch, padded: bool) -> Runs:
    """The runs of a batch, padded or alone."""
    n, t = len(batch.sources), len(batch.order)
    if padded:
        n, t = n + 3, t + 2
    return Runs.within(torch.from_numpy(numbers_of(batch, n, t)), n, t)


def cases(*shapes: Any) -> list[Any]:
    """Batches, whether values are special, and shapes: all of these for the mixed batch."""
    return [
        *(("mixed", bool(i % 2), *shape) for i, shape in enumerate(shapes)),
        ("one", False, *shapes[0]),
        ("in place", True, *shapes[1]),
        ("three", True, *shapes[0]),
        ("long", False, *shapes[1]),
    ]


def test_chains_have_no_row_in_common() -> None:
    runs = runs_of(batch_of("mixed"), False)
    assert runs.chains.tolist() == [0, 5, 6, 6, 6, 6, 6]
    assert runs.sources.tolist() == [2, 0, 4, 1, -1, 3]
    empty = RecurrentBatch([], [], [], np.zeros(0, np.int32))
    assert numbers_of(empty, 2, 1).tolist() == [0] * 8 + [0, -1, -1]


def convolve(*given: Any) -> torch.Tensor:
    y, work = recurrent_parts.convolving(*given)
    works.launch(work)
    return y


def scan(*given: Any, **how: Any) -> torch.Tensor:
    y, work = recurrent.scanning(*given, **how)
    works.launch(work)
    return y


@pytest.mark.parametrize(("name", "special", "channels", "width"), cases((70, 4), (5, 2), (16, 6)))
def test_convolutions(name: str, special: bool, channels: int, width: int) -> None:
    batch = batch_of(name)
    runs = runs_of(batch, special)
    t = len(batch.order)
    rng = np.random.default_rng([t, channels, width])
    activated = biased = not special
    x = numbers(rng, t, channels, special=special)
    weight = numbers(rng, channels, width)
    bias = numbers(rng, channels) if biased else np.zeros(channels, np.float32)
    start = numbers(rng, ROWS, channels, width - 1, special=special)

    def step(tokens: Any, state: Floats) -> tuple[Floats, list[Floats]]:
        y = reference.convolve(x[tokens], state.T, weight.T, bias, activated=activated)
        rows = np.concatenate((state.T, x[tokens]))
        return y, [rows[i + 1 : i + width].T for i in range(len(tokens))]

    kept = start.copy()
    expected = by_runs(batch, kept, step)
    ours = torch.from_numpy(start.copy())
    y = convolve(
        strided(x),
        torch.from_numpy(weight),
        torch.from_numpy(bias) if biased else None,
        ours,
        runs,
        activated,
    )
    assert equal(y, expected)
    assert equal(ours, kept)


def test_convolutions_between_gates() -> None:
    batch = batch_of("mixed")
    runs, t, n = runs_of(batch, True), len(batch.order), 70
    rng = np.random.default_rng(4)
    rows = strided(numbers(rng, t, 3 * n, special=True))
    b, c, x = rows.chunk(3, 1)
    weight, bias = (torch.from_numpy(numbers(rng, *shape)) for shape in ((n, 4), (n,)))
    before = torch.from_numpy(numbers(rng, ROWS, n, 3, special=True))
    kept = before.clone()
    expected = c * convolve(b * x, weight, bias, before, runs, False)
    y = convolve(x, weight, bias, kept, runs, False, (b, c))
    assert equal(y, expected.numpy())
    assert equal(kept, before.numpy())


def test_of_minus_nothing_a_convolution_makes_nothing() -> None:
    kept = torch.zeros(ROWS, 3, 1)
    x = torch.tensor([[-1e-30] * 3])
    runs = runs_of(batch_of("one"), False)
    weight = torch.tensor([[0.0, 1e-30]] * 3)
    y = convolve(x, weight, None, kept, runs, False)
    assert equal(y, np.zeros((1, 3), np.float32))


@pytest.mark.parametrize(("name", "special", "channels", "n"), cases((37, 16), (5, 11), (18, 33)))
def test_scans(name: str, special: bool, channels: int, n: int) -> None:
    batch = batch_of(name)
    runs = runs_of(batch, special)
    t = len(batch.order)
    rng = np.random.default_rng([t, channels, n])
    u, x, gate = (numbers(rng, t, channels, special=special) for _ in range(3))
    b, c = (numbers(rng, t, n, special=special) for _ in range(2))
    a, d = -np.abs(numbers(rng, channels, n)), numbers(rng, channels)
    start = numbers(rng, ROWS, channels, n, special=special)

    def step(tokens: Any, state: Floats) -> tuple[Floats, list[Floats]]:
        out, after = [], []
        for i in tokens:
            one = slice(i, i + 1)
            y, state = reference.scan(u[one], reference.softplus(x[one]), a, b[one], c[one], state)
            y = fused(np.broadcast_to(d, y.shape), u[one], y) * reference.silu(gate[one])
            out.append(y[0])
            after.append(state)
        return np.stack(out), after

    kept = start.copy()
    expected = by_runs(batch, kept, step)
    ours = torch.from_numpy(start.copy())
    y = scan(
        torch.from_numpy(u),
        strided(x),
        torch.from_numpy(a),
        strided(b),
        strided(c),
        torch.from_numpy(d),
        strided(gate),
        ours,
        runs,
    )
    assert equal(y, expected)
    assert equal(ours, kept)


@pytest.mark.parametrize(
    ("name", "special", "heads", "dim", "n", "groups"),
    cases((4, 5, 16, 2), (3, 7, 17, 1), (2, 8, 128, 1)),
)
def test_scans_of_heads(
    name: str, special: bool, heads: int, dim: int, n: int, groups: int
) -> None:
    batch = batch_of(name)
    runs = runs_of(batch, special)
    t = len(batch.order)
    rng = np.random.default_rng([t, heads, dim, n])
    u, gate = (numbers(rng, t, heads * dim, special=special) for _ in range(2))
    b, c = (numbers(rng, t, groups * n, special=special) for _ in range(2))
    x = numbers(rng, t, heads, special=special)
    a, d, bias = -np.abs(numbers(rng, heads)), numbers(rng, heads), numbers(rng, heads)
    start = numbers(rng, ROWS, heads * dim, n, special=special)
    dt = np.maximum(reference.softplus(x + bias), np.float32(0.4))

    def step(tokens: Any, state: Floats) -> tuple[Floats, list[Floats]]:
        out, after = [], []
        state = state.reshape(heads, dim, n)
        for i in tokens:
            one = slice(i, i + 1)
            y, state = reference.scan_heads(
                u[one].reshape(1, heads, dim), dt[one], a,
                b[one].reshape(1, groups, n), c[one].reshape(1, groups, n), state,
            )  # fmt: skip
            y = fused(np.repeat(d, dim)[None], u[one], y.reshape(1, -1))
            out.append((y * reference.silu(gate[one]))[0])
            after.append(state.reshape(heads * dim, n))
        return np.stack(out), after

    kept = start.copy()
    expected = by_runs(batch, kept, step)
    steps, decays = recurrent_parts.time_step(
        strided(x), torch.from_numpy(bias), torch.from_numpy(a), 0.4
    )
    assert equal(steps, dt)
    assert equal(decays, reference.exponential(dt * a))
    given = strided(b), strided(c), torch.from_numpy(d), strided(gate)
    own = strided(x), torch.from_numpy(a)
    for made, after in (((steps, decays), ()), (own, (torch.from_numpy(bias), 0.4))):
        ours = torch.from_numpy(start.copy())
        y = scan(strided(u), *made, *given, ours, runs, True, *after)
        assert equal(y, expected)
        assert equal(ours, kept)


@pytest.mark.parametrize("n", [16, 37])
def test_scans_with_norms(n: int) -> None:
    """B and C normalised within are those normalised before."""
    batch, channels = batch_of("mixed"), 5
    runs, t = runs_of(batch, True), len(batch.order)
    rng = np.random.default_rng(n)
    both = strided(numbers(rng, t, 2 * n, special=True)).view(t, 2, n)
    weight, a, d = (
        torch.from_numpy(numbers(rng, *of)) for of in ((2, n), (channels, n), (channels,))
    )
    u, dt, gate = (strided(numbers(rng, t, channels)) for _ in range(3))
    before, within = (
        torch.from_numpy(numbers(np.random.default_rng(1), ROWS, channels, n)) for _ in "ab"
    )
    b, c = norms.RowNorm("rms", weight, None, 1e-5)(both).unbind(1)
    expected = scan(u, dt, a, b, c, d, gate, before, runs)
    b, c = both.unbind(1)
    y = scan(u, dt, a, b, c, d, gate, within, runs, normed=(weight, 1e-5))
    assert equal(y, expected.numpy())
    assert equal(within, before.numpy())


@pytest.mark.parametrize("channels", [False, True])
def test_delta_rules_with_their_rates(channels: bool) -> None:
    """Rates, and queries and keys of unit length, made within are those made before."""
    batch, heads, dim, dim_v = batch_of("mixed"), 3, 37, 5
    runs, t = runs_of(batch, True), len(batch.order)
    rng = np.random.default_rng(5)
    q, k = (torch.from_numpy(numbers(rng, t, heads, dim, special=True)) for _ in "qk")
    v = torch.from_numpy(numbers(rng, t, heads, dim_v))
    wide = heads * (dim if channels else 1)
    beta, decay = (strided(numbers(rng, t, n, special=True)) for n in (heads, wide))
    bias, a = (torch.from_numpy(numbers(rng, n)) for n in (wide, heads))
    start = torch.from_numpy(numbers(rng, ROWS, heads * dim_v, dim))
    before, within = start.clone(), start
    rates = recurrent_parts.delta_rates(beta, decay, bias, a)
    both = torch.cat((q, k), 1).flatten(1)
    unit = recurrent_parts.unit_length(both, dim, 1e-6, heads).view(t, 2, heads, dim)
    expected = recurrent.delta_rule(unit[:, 0], unit[:, 1], v, *rates, before, runs, False)
    y = recurrent.delta_rule(q, k, v, beta, decay, within, runs, False, bias, a, 1e-6)
    assert equal(y, expected.numpy())
    assert equal(within, before.numpy())


@pytest.mark.parametrize(
    ("name", "special", "key_heads", "heads", "dim", "dim_v", "tiled"),
    cases((2, 4, 33, 9, True), (2, 6, 16, 16, False), (1, 1, 128, 5, True)),
)
@pytest.mark.parametrize("channels", [False, True])
def test_delta_rules(
    name: str,
    special: bool,
    key_heads: int,
    heads: int,
    dim: int,
    dim_v: int,
    tiled: bool,
    channels: bool,
) -> None:
    batch = batch_of(name)
    runs = runs_of(batch, special)
    t, shared = len(batch.order), heads // key_heads
    which = np.arange(heads) % key_heads if tiled else np.arange(heads) // shared
    rng = np.random.default_rng([t, heads, dim])
    q, k = (numbers(rng, t, key_heads, dim, special=special) for _ in range(2))
    v = numbers(rng, t, heads, dim_v, special=special)
    beta = np.abs(numbers(rng, t, heads, special=special))
    decay = np.abs(numbers(rng, t, heads * (dim if channels else 1), special=special))
    rates = decay.reshape(t, heads, -1)
    start = numbers(rng, ROWS, heads * dim_v, dim, special=special)

    def step(tokens: Any, state: Floats) -> tuple[Floats, list[Floats]]:
        out, after = [], []
        state = state.reshape(heads, dim_v, dim)
        for i in tokens:
            one = slice(i, i + 1)
            y, state = rules.delta_rule(
                q[one][:, which], k[one][:, which], v[one], beta[one], rates[one], state
            )
            out.append(y[0])
            after.append(state.reshape(heads * dim_v, dim))
        return np.stack(out), after

    kept = start.copy()
    expected = by_runs(batch, kept, step)
    ours = torch.from_numpy(start.copy())
    y = recurrent.delta_rule(
        torch.from_numpy(q),
        strided(k.reshape(t, -1)).view(t, key_heads, dim),
        torch.from_numpy(v),
        strided(beta),
        strided(decay),
        ours,
        runs,
        tiled,
    )
    assert equal(y, expected)
    assert equal(ours, kept)


def test_rates_and_gates() -> None:
    rng = np.random.default_rng(1)
    for t, n in ((1, 3), (17, 300)):
        x, gate = (numbers(rng, t, n, special=True) for _ in range(2))
        bias, a = numbers(rng, n), -np.abs(numbers(rng, n))
        beta, decay = recurrent_parts.delta_rates(
            strided(x), strided(gate), torch.from_numpy(bias), torch.from_numpy(a)
        )
        assert equal(beta, reference.sigmoid(x))
        assert equal(decay, rules.decay_of(gate, bias, a))
        assert equal(
            norms.activate("sigmoid_gate", strided(gate), strided(x)), rules.sigmoid_gate(x, gate)
        )


def test_rates_of_channels() -> None:
    rng, t, heads, dim = np.random.default_rng(2), 5, 3, 24
    beta, decay = numbers(rng, t, heads, special=True), numbers(rng, t, heads, dim, special=True)
    bias, a = numbers(rng, heads, dim), -np.abs(numbers(rng, heads, 1))
    ours = recurrent_parts.delta_rates(
        strided(beta), strided(decay.reshape(t, -1)), torch.from_numpy(bias.ravel()),
        torch.from_numpy(a.ravel()),
    )  # fmt: skip
    assert equal(ours[0], reference.sigmoid(beta))
    assert equal(ours[1], rules.decay_of(decay, bias, a).reshape(t, -1))


@pytest.mark.parametrize(("size", "t"), [(7, 1), (16, 2), (37, 17), (600, 3)])
def test_norms(size: int, t: int) -> None:
    rng = np.random.default_rng([size, t])
    for special in (False, True):
        x, gate = (numbers(rng, t, 3 * size, special=special) for _ in range(2))
        weights, parts = numbers(rng, 3 * size), x.reshape(t, 3, size)
        factors = np.array([ONE / np.sqrt(np.float32(size))] * 2 + [ONE])
        expected = np.stack(
            [rules.unit_length(parts[:, i], 1e-6, f) for i, f in enumerate(factors)], 1
        )
        assert equal(
            recurrent_parts.unit_length(strided(x), size, 1e-6, 2), expected.reshape(t, -1)
        )
        expected = rules.gated_norm(parts, weights[:size], gate.reshape(parts.shape), 1e-5)
        assert equal(
            PartNorm(size, torch.from_numpy(weights[:size]), 1e-5, strided(gate), "silu")(
                strided(x)
            ),
            expected.reshape(t, -1),
        )
        plain = reference.rms_norm(parts, weights[:size], 1e-5)
        expected = rules.sigmoid_gate(plain, gate.reshape(parts.shape))
        of = PartNorm(size, torch.from_numpy(weights[:size]), 1e-5, strided(gate))
        assert equal(of(strided(x)), expected.reshape(t, -1))
        expected = np.concatenate(
            [
                reference.rms_norm(parts[:, i], w, 1e-5)
                for i, w in enumerate(weights.reshape(3, -1))
            ],
            1,
        )
        assert equal(PartNorm(size, torch.from_numpy(weights), 1e-5)(strided(x)), expected)


@pytest.mark.parametrize("size", [1, 2])
def test_gates_between_queries(size: int) -> None:
    """Where each head's gate follows its query, the gates of heads of one channel are apart."""
    rng, t, heads = np.random.default_rng(size), 3, 5
    both, x = numbers(rng, t, heads, 2, size), numbers(rng, t, heads * size)
    gate, weight = torch.from_numpy(both)[:, :, 1], numbers(rng, size)
    alone, flat = PartNorm(size, gate=gate), both[:, :, 1].reshape(t, -1)
    assert equal(alone(strided(x)), rules.sigmoid_gate(x, flat))
    expected = rules.gated_norm(x.reshape(t, heads, size), weight, both[:, :, 1], 1e-5)
    ours = PartNorm(size, torch.from_numpy(weight), 1e-5, gate, "silu")(strided(x))
    assert equal(ours, expected.reshape(t, -1))


def test_infinite_inputs_do_not_meet_what_is_beyond_a_state() -> None:
    """A state of 24 takes two groups of 16: 0 times infinity there would be NaN."""
    batch = batch_of("one")
    t, channels, n = len(batch.order), 3, 24
    ones = torch.ones(t, channels)
    y = scan(
        ones * torch.inf, ones, -torch.ones(channels, n), torch.ones(t, n), torch.ones(t, n),
        torch.ones(channels), ones, torch.zeros(ROWS, channels, n), runs_of(batch, False),
    )  # fmt: skip
    assert (y == torch.inf).all()
