"""Device chains give the tokens of the rows' chains on the host, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from aleator.core.errors import LogitsError, ParameterError
from aleator.device_chain import DeviceChain
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain

FAMILIES = ("normal", "flat", "peaked", "masked", "ties", "one", "bfloat16", "wide", "special")


def rows_of(family: str, batch: int, n_vocab: int, seed: int = 0) -> np.ndarray[Any, Any]:
    random_ = np.random.default_rng([seed, FAMILIES.index(family), batch, n_vocab])
    z = random_.normal(0, 3, (batch, n_vocab)).astype(np.float32)
    if family == "flat":
        z = (z * 1e-4).astype(np.float32)
    elif family == "peaked":
        z[:, random_.integers(n_vocab)] += 40
    elif family == "masked":
        z[random_.random(z.shape) < 0.9] = -np.inf
        z[:, 0] = 1
    elif family == "ties":
        z = np.rint(z).astype(np.float32)
    elif family == "one":
        chosen = random_.integers(n_vocab)
        z[:, :chosen] = z[:, chosen + 1 :] = -np.inf
    elif family == "bfloat16":
        z = torch.from_numpy(z).bfloat16().float().numpy()
    elif family == "wide":
        z = (z * 1e4).astype(np.float32)
    elif family == "special":
        z[:, ::7], z[:, 1::7], z[:, 2::7] = np.nan, -0.0, np.inf if n_vocab % 2 else 3.0
    return z


SAMPLERS: dict[str, Any] = {
    "greedy": [S.Greedy()],
    "dist": [S.Dist()],
    "gumbel": [S.Dist(draw="gumbel")],
    "temperature": [S.Temperature(temperature=0.7), S.Dist()],
    "cold": [S.Temperature(temperature=1e-3), S.Temperature(temperature=1e-3), S.Dist()],
    "hot": [S.Temperature(temperature=50.0), S.Temperature(temperature=3.0), S.Dist()],
    "dynamic": [
        S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=1.3),
        S.Dist(),
    ],
    "dynamic_0": [
        S.Temperature(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=0.0),
        S.Dist(),
    ],
    "top_k": [S.TopK(top_k=5), S.Dist()],
    "top_p": [S.TopP(top_p=0.9), S.Dist()],
    "top_p_0": [S.TopP(top_p=0.0, min_keep=3), S.Dist()],
    "top_p_full": [S.Softmax(), S.TopK(top_k=9), S.TopP(top_p=0.5, mass="full"), S.Dist()],
    "min_p": [S.Temperature(temperature=1.5), S.MinP(min_p=0.05), S.Dist()],
    "min_p_keep": [S.MinP(min_p=1.0, min_keep=4), S.Dist()],
    "typical_p": [S.TypicalP(typical_p=0.7), S.Dist()],
    "typical_p_keep": [S.TopK(top_k=20), S.TypicalP(typical_p=0.01, min_keep=5), S.Dist()],
    "top_n_sigma": [S.TopNSigma(top_n_sigma=1.0), S.Dist()],
    "xtc": [S.XTC(xtc_probability=0.7, xtc_threshold=0.05), S.Dist()],
    "xtc_always": [S.XTC(xtc_probability=1.0, xtc_threshold=0.0, min_keep=2), S.Dist()],
    "penalties": [
        S.Penalties(
            penalty_last_n=4, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1
        ),
        S.Dist(),
    ],
    "penalties_hot": [
        S.Temperature(temperature=0.6),
        S.Penalties(penalty_last_n=-1, repetition_penalty=0.8, penalty_scope="generated"),
        S.Dist(),
    ],
    "logit_bias": [S.LogitBias(logit_bias={0: 2.0, 3: float("-inf"), 5: -1.5}), S.Dist()],
    "token_mask": [S.TokenMask(allowed=[0, 1, 2, 5, 7, 20]), S.Dist()],
    "mirostat_v2": [S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.2)],
    "default": [
        S.Penalties(penalty_last_n=64, repetition_penalty=1.1),
        S.TopNSigma(top_n_sigma=2.0),
        S.TopK(top_k=12),
        S.TypicalP(typical_p=0.95),
        S.TopP(top_p=0.95),
        S.MinP(min_p=0.05),
        S.XTC(xtc_probability=0.5, xtc_threshold=0.1),
        S.Temperature(temperature=0.8),
        S.Dist(),
    ],
}


KERNELS = ("torch", "host")


def expected(chains: list[SamplerChain], z: np.ndarray[Any, Any]) -> list[int]:
    tokens = []
    for chain, row in zip(chains, z, strict=True):
        try:
            tokens.append(chain.sample(row))
        except LogitsError:
            tokens.append(-1)
    return tokens


@pytest.mark.parametrize("name", SAMPLERS)
def test_tokens_are_the_host_s(name: str) -> None:
    batch = 6
    for n_vocab in (21, 333):
        samplers = SAMPLERS[name]
        device = DeviceChain(samplers, batch, n_vocab, max_tokens=64, kernels="torch")
        chains = [SamplerChain(samplers, seed=100 + row, completion=row) for row in range(batch)]
        for row, chain in enumerate(chains):
            for token in (3, 5, 3, row):
                chain.accept(token)
            device.set_row(row, chain)
        for family in FAMILIES:
            z = rows_of(family, batch, n_vocab)
            tokens = device.sample(torch.from_numpy(z)).tolist()
            assert tokens == expected(chains, z), (name, n_vocab, family)


@pytest.mark.parametrize("kernels", KERNELS)
def test_half_types_are_widened(kernels: str) -> None:
    device = DeviceChain(SAMPLERS["default"], 2, 100, kernels=kernels)
    for dtype in (torch.float16, torch.bfloat16):
        z = torch.randn(2, 100, generator=torch.Generator().manual_seed(1)).to(dtype)
        chains = [SamplerChain(SAMPLERS["default"], seed=0) for _ in range(2)]
        device.reset(0)
        device.reset(1)
        assert device.sample(z).tolist() == expected(chains, z.float().numpy())


TEMPLATE = [
    S.LogitBias(),
    S.Penalties(),
    S.TopK(top_k=40),
    S.TypicalP(),
    S.TopP(top_p=0.9),
    S.MinP(),
    S.XTC(),
    S.Temperature(temperature=0.8),
    S.Dist(),
]


def random_chain(random_: random.Random) -> SamplerChain:
    choices: list[Any] = [
        S.LogitBias(logit_bias={random_.randrange(50): random_.uniform(-3, 3)}),
        S.Penalties(penalty_last_n=random_.randrange(-1, 9), repetition_penalty=1.2),
        S.TopK(top_k=random_.randrange(0, 60)),
        S.TypicalP(typical_p=random_.random()),
        S.TopP(top_p=random_.random()),
        S.MinP(min_p=random_.random() / 5),
        S.XTC(xtc_probability=random_.random(), xtc_threshold=random_.random() / 5),
        S.Temperature(temperature=random_.uniform(0.0, 2.0)),
    ]
    kept = [sampler for sampler in choices if random_.random() < 0.7]
    return SamplerChain(
        [*kept, S.Dist()], seed=random_.randrange(2**63), completion=random_.randrange(9)
    )


@pytest.mark.parametrize("kernels", KERNELS)
def test_rows_with_different_chains_come_go_and_move(kernels: str) -> None:
    random_ = random.Random(1)
    device = DeviceChain(TEMPLATE, 5, 64, max_tokens=300, kernels=kernels)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(5)]
    for step in range(60):
        row = random_.randrange(5)
        what = random_.randrange(5)
        if what == 0:
            chains[row] = random_chain(random_)
            for token in random_.choices(range(64), k=random_.randrange(5)):
                chains[row].accept(token)
            device.set_row(row, chains[row])
        elif what == 1:
            n = random_.randrange(len(chains[row].history) + 1)
            chains[row].rollback(n)
            device.rollback(row, n)
        elif what == 2:
            order = random_.sample(range(5), 5)
            chains = [chains[i] for i in order]
            device.permute(order)
        elif what == 3:
            chains[row].accept(7, generated=True)
            device.accept(row, 7, generated=True)
        batch = random_.randrange(1, 6)
        z = rows_of(FAMILIES[step % len(FAMILIES)], batch, 64, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains[:batch], z), step


def test_mirostat_rolls_back() -> None:
    chain = SamplerChain(SAMPLERS["mirostat_v2"], seed=4)
    device = DeviceChain(SAMPLERS["mirostat_v2"], 1, 200, kernels="torch")
    device.set_row(0, chain)
    z = rows_of("normal", 16, 200)
    for step in range(16):
        row = z[step : step + 1]
        assert device.sample(torch.from_numpy(row)).tolist() == [chain.sample(row[0])]
        if step % 7 == 3:
            chain.rollback(2)
            device.rollback(0, 2)
        if step % 5 == 4:
            chain.accept(9, generated=True)
            device.accept(0, 9, generated=True)


def test_a_tail_runs_on_the_host() -> None:
    samplers: list[Any] = [
        S.Temperature(temperature=0.7),
        S.TopK(top_k=30),
        S.DRY(dry_multiplier=0.8, dry_allowed_length=1, dry_sequence_breakers=()),
        S.TailFree(tfs_z=0.9),
        S.Dist(),
    ]
    device = DeviceChain(samplers, 3, 120, kernels="torch")
    assert device.plan().splitlines() == [
        "device (cpu): temperature -> top_k",
        "host: dry -> tail_free -> dist, because dry has no device form",
        "crossing: the 30 candidates that top_k leaves",
    ]
    chains = [SamplerChain(samplers, seed=row) for row in range(3)]
    for row, chain in enumerate(chains):
        for token in (1, 2, 3, 1, 2):
            chain.accept(token)
        device.set_row(row, chain)
    for step in range(12):
        z = rows_of(FAMILIES[step % len(FAMILIES)], 3, 120, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    device.rollback(1, 3)
    chains[1].rollback(3)
    z = rows_of("normal", 3, 120, 99)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    dry = S.DRY(dry_multiplier=1.0, dry_sequence_breakers=())
    assert "put one there" in DeviceChain([dry, S.Dist()], 1, 50, kernels="torch").plan()
    assert (
        DeviceChain([S.Greedy()], 1, 50, kernels="torch").plan().endswith("only the tokens cross")
    )


@pytest.mark.parametrize("kernels", KERNELS)
def test_an_allowed_mask_comes_first(kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 2, 70, kernels=kernels)
    allowed = torch.zeros(2, 3, dtype=torch.int32)
    allowed[0, 2], allowed[1, 0] = 1 << 5, -(2**31)
    assert device.sample(torch.zeros(2, 70), allowed).tolist() == [69, 31]
    assert device.sample(torch.zeros(2, 70), torch.zeros_like(allowed)).tolist() == [-1, -1]


class Halve:
    """A user's sampler with a device form: masks odd tokens and doubles the rest."""

    calls = 0

    def apply(self, candidates: Any) -> None:
        candidates.logits = np.where(candidates.ids % 2 == 0, candidates.logits * 2, -np.inf)

    def apply_device(self, data: Any) -> None:
        self.calls += 1
        assert data.probs.shape == data.logits.shape
        data.logits = torch.where(data.ids % 2 == 0, data.logits * 2, float("-inf"))

    def device_bytes(self, batch: int, n_vocab: int) -> int:
        return 1000 * batch


def test_a_user_s_sampler_runs_on_the_device() -> None:
    user = Halve()
    samplers = [S.Temperature(temperature=0.7), user, S.TopP(top_p=0.9), S.Dist()]
    device = DeviceChain(samplers, 3, 90, kernels="torch")
    chains = [SamplerChain(samplers, seed=row) for row in range(2)]
    chains.append(SamplerChain([S.Temperature(temperature=0.7), S.Dist()], seed=5))
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for family in FAMILIES[:7]:
        z = rows_of(family, 3, 90)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    assert user.calls == 7
    assert device.nbytes > 3000


def test_memory_is_known_and_tensors_stay() -> None:
    device = DeviceChain(TEMPLATE, 4, 1000, max_tokens=50, kernels="torch")
    addresses = [t.data_ptr() for place in device._places for t in place.rows.values()]
    before = device.nbytes
    for step in range(20):
        device.set_row(step % 4, random_chain(random.Random(step)))
        device.sample(torch.zeros(4, 1000))
        if step % 3 == 0:
            device.permute([1, 2, 3, 0])
    assert addresses == [t.data_ptr() for place in device._places for t in place.rows.values()]
    assert device.nbytes == before


@pytest.mark.parametrize(
    ("logits", "allowed", "message"),
    [
        (torch.zeros(5, 64), None, "have 5 rows: this chain takes 1 to 4"),
        (torch.zeros(0, 64), None, "have 0 rows"),
        (torch.zeros(1, 63), None, "rows of 64"),
        (torch.zeros(64), None, "must be"),
        (torch.zeros(1, 64, dtype=torch.float64), None, "float16"),
        (torch.zeros(1, 64, device="meta"), None, "on meta, the chain on cpu"),
        (np.zeros((1, 64), np.float32), None, "must be"),
        (torch.zeros(1, 64), torch.zeros(1, 1, dtype=torch.int32), "allowed"),
        (torch.zeros(1, 64), torch.zeros(1, 2, dtype=torch.int64), "allowed"),
    ],
)
def test_refuses_logits(logits: Any, allowed: Any, message: str) -> None:
    device = DeviceChain(TEMPLATE, 4, 64, kernels="torch")
    with pytest.raises(LogitsError, match=message):
        device.sample(logits, allowed)
    assert device._length.tolist() == [0] * 4


class NoBytes:
    apply = apply_device = print


def test_refuses_parameters() -> None:
    drawn = SamplerChain([S.Greedy()])
    drawn.sample(np.zeros(3, np.float32))
    device = DeviceChain(TEMPLATE, 2, 64, max_tokens=3, kernels="torch")
    calls: list[tuple[str, Any]] = [
        (
            "chain",
            lambda: device.set_row(0, SamplerChain([S.MinP(min_p=0.1), S.TopK(top_k=3), S.Dist()])),
        ),
        ("chain", lambda: device.set_row(0, SamplerChain([S.Dist(draw="gumbel")]))),
        ("numerics", lambda: device.set_row(0, SamplerChain([S.Greedy()], numerics="llama.cpp"))),
        (
            "logit_bias",
            lambda: device.set_row(0, SamplerChain([S.LogitBias(logit_bias={64: 1.0}), S.Dist()])),
        ),
        ("row", lambda: device.set_row(2)),
        ("chain", lambda: device.set_row(0, drawn)),
        ("kernels", lambda: DeviceChain(TEMPLATE, 1, 64, kernels="gpu")),
        ("kernels", lambda: DeviceChain(TEMPLATE, 1, 64, device="cuda", kernels="host")),
        ("row", lambda: device.accept(-1, 0)),
        ("token", lambda: device.accept(0, 64)),
        ("rows", lambda: device.permute([0, 0])),
        ("n", lambda: device.rollback(0, 1)),
        ("max_batch", lambda: DeviceChain(TEMPLATE, 0, 64)),
        ("n_vocab", lambda: DeviceChain(TEMPLATE, 1, 2**20 + 1)),
        ("samplers", lambda: DeviceChain([NoBytes(), S.Dist()], 1, 9, kernels="torch")),
    ]
    for name, call in calls:
        with pytest.raises(ParameterError) as caught:
            call()
        assert caught.value.parameter == name
    for _ in range(3):
        device.accept(0, 1)
    with pytest.raises(ParameterError, match="max_tokens"):
        device.accept(0, 1)
    with pytest.raises(ParameterError, match="max_tokens"):
        device.sample(torch.zeros(1, 64))
    device.rollback(0, 2)
    device.before_replay(1)
    device.before_replay(1)  # the device holds no more than it did: it was not replayed
    device.sample(torch.zeros(1, 64))


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_bad_row_does_not_change_another(kernels: str) -> None:
    z = rows_of("normal", 3, 64)
    z[1] = np.nan
    device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(3)]
    tokens = device.sample(torch.from_numpy(z)).tolist()
    assert tokens == expected(chains, z)
    assert tokens[1] == -1
    if kernels == "torch":
        assert device._position.tolist() == [1, 0, 1]
    for row in range(3):
        device.accept(row, 5)
        device.rollback(row, 1)
    z = rows_of("ties", 3, 64)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
