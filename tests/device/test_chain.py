"""Device chains give the tokens of the rows' chains on the host, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from aleator.core.errors import ParameterError
from aleator.device.cases import AKUNU, FAMILIES, SAMPLERS, expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.device.peak import PeakBytes
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain
from aleator.samplers.watermark import WatermarkKey, context_hash
from tests.device.inside import inside
from tests.device.templates import KERNELS, TEMPLATE


def compare(
    samplers: list[Any], batch: int, n_vocab: int, families: Any = FAMILIES, kernels: str = "triton"
) -> dict[str, int]:
    """Every family as one step of a batch; returns the paths that rows took."""
    device = DeviceChain(samplers, batch, n_vocab, max_tokens=64, kernels=kernels)
    chains = [SamplerChain(samplers, seed=100 + row, completion=row) for row in range(batch)]
    for row, chain in enumerate(chains):
        for token in (3, 5, 3, row):
            chain.accept(token)
        device.set_row(row, chain)
    for family in families:
        z = rows_of(family, batch, n_vocab)
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z), (n_vocab, family)
    return device.paths()


@pytest.mark.parametrize("name", SAMPLERS)
def test_tokens_are_the_host_s(name: str) -> None:
    for n_vocab in (21, 333):
        compare(SAMPLERS[name], 6, n_vocab, kernels="torch")


@pytest.mark.parametrize("kernels", KERNELS)
def test_equal_masses_end_where_the_host_s_do(kernels: str) -> None:
    """On flat rows a unit more or less of p * Z is a token; p counts as float32, so 0.8 is above 4 / 5."""
    for p in (0.2, 0.3, 0.6, 0.7, 0.8):
        for truncation in (S.TopP(top_p=p), S.TypicalP(typical_p=p)):
            if isinstance(truncation, S.TypicalP) and kernels == "triton":
                samplers = [S.TopK(top_k=10), truncation, S.Dist()]
            else:
                samplers = [truncation, S.Dist()]
            device = DeviceChain(samplers, 1, 10, kernels=kernels)
            chains = [SamplerChain(samplers, seed=0)]
            for _ in range(5):
                z = np.zeros((1, 10), np.float32)
                z[0, 7:] = -0.0
                assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("kernels", KERNELS)
def test_half_types_are_widened(kernels: str) -> None:
    device = DeviceChain(SAMPLERS["default"], 2, 100, kernels=kernels)
    for dtype in (torch.float16, torch.bfloat16):
        z = torch.randn(2, 100, generator=torch.Generator().manual_seed(1)).to(dtype)
        chains = [SamplerChain(SAMPLERS["default"], seed=0) for _ in range(2)]
        device.reset(0)
        device.reset(1)
        assert device.sample(z).tolist() == expected(chains, z.float().numpy())


def random_penalties(random_: random.Random) -> S.Penalties:
    return S.Penalties(
        penalty_last_n=random_.randrange(-1, 9),
        repetition_penalty=1.2,
        frequency_penalty=random_.choice((0.0, 0.1)),
        penalty_scope=random_.choice(("all", "generated", "mixed")),
        repetition_per=random_.choice(("token", "occurrence")),
    )


def random_chain(random_: random.Random) -> SamplerChain:
    choices: list[Any] = [
        S.LogitBias(logit_bias={random_.randrange(50): random_.uniform(-3, 3)}),
        random_penalties(random_),
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


def compare_long_histories(kernels: str) -> None:
    """Hundreds of occurrences, in rows with other parameters, that go back, begin anew, move and go on."""
    device = DeviceChain(AKUNU, 3, 40, max_tokens=400, kernels=kernels)
    chains = [SamplerChain(AKUNU, seed=row) for row in range(3)]
    flatter = S.Penalties(
        penalty_last_n=-1,
        repetition_penalty=1.01,
        frequency_penalty=0.01,
        repetition_per="occurrence",
    )
    chains[1] = SamplerChain([flatter, *AKUNU[1:]], seed=1)
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
        for tokens, generated in (([3] * 100, False), ([5, 5, 7] * 60, True)):
            device.extend(row, tokens, generated)
            for token in tokens:
                chain.accept(token, generated)
    z = np.zeros((3, 40), np.float32)
    z[:, 3:8] = [6, 2, 9, 2, 7]  # 3 and 5 would be first without penalties

    def same() -> list[int]:
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z)
        return tokens

    assert all(same()[0] == 3 for _ in range(3))  # the prompt's are not counted, 120 and 60 are
    for n in (60, 121, 2):
        device.rollback(1, n)
        chains[1].rollback(n)
        same()
    device.permute([2, 0, 1])
    chains = [chains[2], chains[0], chains[1]]
    same()
    for each in (chains[0].reset, lambda: device.reset(0)):
        each()
    assert same()[0] in (3, 5, 7)
    chains[1] = chains[2].clone()
    device.set_row(1, chains[1])
    again = SamplerChain([flatter, *AKUNU[1:]], seed=1)
    again.state_read(chains[2].state_write())
    chains[0] = again
    device.set_row(0, again)
    for _ in range(3):
        same()


def compare_watermarks(kernels: str, draw: str = "watermark", plain: str = "gumbel") -> None:
    """Rows whose draws are keyed by 1, 3 and 0 tokens, over contexts that come again, after a prompt."""
    key, short = WatermarkKey(b"a key for tests only"), WatermarkKey(b"[654, 400, 836, 3]")
    draws = [
        S.Dist(draw=draw, watermark_key_file=short, watermark_ngram=1),
        S.Dist(draw=draw, watermark_key_file=key, watermark_ngram=3),
        S.Dist(draw=plain),
    ]
    device = DeviceChain([S.TopK(top_k=8), draws[0]], 3, 30, max_tokens=300, kernels=kernels)
    chains = [SamplerChain([S.TopK(top_k=8), draw], seed=row) for row, draw in enumerate(draws)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
        device.extend(row, [1, 2, 3] * 50, False)
        for token in [1, 2, 3] * 50:
            chain.accept(token)
    marked = 0
    for step in range(40 if kernels == "torch" else 12):
        z = rows_of("normal", 3, 30, step) / np.float32(3)
        marked += context_hash(chains[1].history, chains[1].position, key, 3) is not None
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z), step
        if step == 7:
            device.rollback(1, 3)
            chains[1].rollback(3)
    assert 3 < marked <= step


@pytest.mark.parametrize("kernels", KERNELS)
def test_watermarks_are_the_host_s(kernels: str) -> None:
    compare_watermarks(kernels)


def test_synthid_s_tournaments_are_the_host_s() -> None:
    compare_watermarks("torch", "synthid", "inverse")


@pytest.mark.parametrize("kernels", KERNELS)
def test_penalties_count_a_whole_history(kernels: str) -> None:
    compare_long_histories(kernels)


def test_pytorch_waits_for_how_often_a_token_occurred() -> None:
    """So such rows are not replayed; others are, in the same chain."""
    device = DeviceChain(AKUNU, 2, 40, kernels="torch")
    device.set_row(1, SamplerChain([S.TopK(top_k=3), S.Dist()]))
    assert [device.runs_on_host(row) for row in range(2)] == [True, False]
    device.sample(torch.zeros(2, 40))
    with pytest.raises(ParameterError, match="row 0 needs the host at every step"):
        device.before_replay(2)
    device.before_replays([0, 1])


def edit_and_compare(kernels: str, seed: int, steps: int) -> None:
    """Rows are set, moved, rolled back and given tokens at random, and draw what their chains draw."""
    random_ = random.Random(seed)
    device = DeviceChain(TEMPLATE, 5, 64, max_tokens=300, kernels=kernels)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(5)]
    for step in range(steps):
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


def compare_rollbacks(samplers: list[Any], kernels: str, n_vocab: int, steps: int) -> None:
    """A row that goes back two tokens now and then, and is given one that was not drawn."""
    chain = SamplerChain(samplers, seed=4)
    device = DeviceChain(samplers, 1, n_vocab, kernels=kernels)
    device.set_row(0, chain)
    z = rows_of("normal", steps, n_vocab)
    for step in range(steps):
        row = z[step : step + 1]
        assert device.sample(torch.from_numpy(row)).tolist() == [chain.sample(row[0])]
        if step % 7 == 3:
            chain.rollback(2)
            device.rollback(0, 2)
        if step % 5 == 4:
            chain.accept(9, generated=True)
            device.accept(0, 9, generated=True)


@pytest.mark.parametrize("kernels", KERNELS)
def test_rows_with_different_chains_come_go_and_move(kernels: str) -> None:
    edit_and_compare(kernels, seed=1, steps=60)


@pytest.mark.parametrize(
    "name",
    [
        "mirostat", "mirostat_v2", "adaptive_p", "adaptive_p_off", "dry", "dry_breakers", "min_tokens",
        "bad_words", "no_repeat_ngram",
    ],
)  # fmt: skip
def test_state_rolls_back(name: str) -> None:
    compare_rollbacks(SAMPLERS[name], "torch", 200, 16)


def test_a_minimum_counts_from_where_the_text_began() -> None:
    """A chain that was restarted goes on with its count; going back behind that begins the text there."""
    samplers = [S.MinTokens(min_tokens=3, end_tokens=(0,)), S.Greedy()]
    chain = SamplerChain(samplers)
    z = torch.tensor([[2.0, 1.0, 0.5]])
    for _ in range(2):
        chain.sample(z[0])
    chain.restart()
    chain.sample(z[0])
    device = DeviceChain(samplers, 1, 3, kernels="torch")
    device.set_row(0, chain)
    for back in (0, 0, 0, 4, 0, 0, 0, 0):
        for each in (chain.rollback, lambda n: device.rollback(0, n)):
            each(back)
        assert device.sample(z).tolist() == [chain.sample(z[0])]
    chain.reset()
    device.reset(0)
    for _ in range(4):
        assert device.sample(z).tolist() == [chain.sample(z[0])]


def any_chain(random_: random.Random) -> SamplerChain:
    """Samplers in any order, some twice, and any that selects."""
    choices: list[Any] = [
        S.LogitBias(logit_bias={random_.randrange(50): random_.uniform(-3, 3)}),
        random_penalties(random_),
        S.DRY(dry_multiplier=0.7, dry_allowed_length=1, dry_sequence_breakers=((3,),)),
        S.TopK(top_k=random_.randrange(3, 40)),
        S.TypicalP(typical_p=random_.uniform(0.3, 1)),
        S.TopP(top_p=random_.random()),
        S.MinP(min_p=random_.random() / 5),
        S.Temperature(temperature=random_.uniform(0.3, 2.0)),
        S.Temperature(temperature=random_.uniform(0.3, 2.0)),
        S.TopNSigma(top_n_sigma=random_.uniform(0.5, 3)),
        S.NoRepeatNgram(no_repeat_ngram_size=random_.randrange(1, 4)),
        S.BadWords(bad_words=((random_.randrange(50),), (3, random_.randrange(50)))),
        S.EpsilonCutoff(epsilon_cutoff=random_.random() / 20),
        S.Smoothing(smoothing_factor=random_.random()),
        S.TopA(top_a=0.01),  # on the host, and so all after it
    ]
    last: list[Any] = [
        S.Dist(), S.Dist(draw="gumbel"), S.Greedy(), S.MirostatV2(), S.Mirostat(),
        S.AdaptiveP(adaptive_target=0.3),
    ]  # fmt: skip
    kept = random_.sample(choices, random_.randrange(5))
    return SamplerChain([*kept, random_.choice(last)], seed=random_.randrange(2**63))


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_may_have_any_chain(kernels: str) -> None:
    random_ = random.Random(7)
    first = [S.TopK(top_k=40), S.Temperature(temperature=0.8), S.Dist()]
    device = DeviceChain(first, 4, 64, max_tokens=200, kernels=kernels)
    chains = [SamplerChain(first, seed=0) for _ in range(4)]
    for step in range(12 if kernels == "triton" else 30):
        row = random_.randrange(4)
        chains[row] = any_chain(random_)
        for token in random_.choices(range(5), k=random_.randrange(12)):
            chains[row].accept(token)
        device.set_row(row, chains[row])
        if step % 4 == 3:
            order = random_.sample(range(4), 4)
            chains = [chains[i] for i in order]
            device.permute(order)
        for family in random_.sample(FAMILIES, 2):
            z = rows_of(family, 4, 64, step)
            assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z), step


def test_places_are_added_where_they_are_needed_and_go_when_they_are_not() -> None:
    first = [S.TopK(top_k=40), S.Temperature(temperature=0.8), S.Dist()]
    device = DeviceChain(first, 2, 64, kernels="torch")

    def names() -> list[str]:
        return [type(place).__name__ for place in inside(device).program.places]

    before, bytes_before = names(), device.nbytes
    other = SamplerChain([S.Temperature(temperature=0.5), S.TopK(top_k=3), S.Dist(draw="gumbel")])
    device.sample(torch.zeros(2, 64))
    device.set_row(1, other)
    assert names() == [
        "DeviceTopK",
        "DeviceTemperature",
        "DeviceDist",
        "DeviceTopK",
        "DeviceGumbel",
    ]
    assert device.nbytes > bytes_before
    with pytest.raises(ParameterError, match="other kernels than were captured"):
        device.before_replay(2)
    kept = [id(place) for place in inside(device).program.places]
    device.set_row(0, other)
    assert [id(place) for place in inside(device).program.places] == kept
    device.set_row(0)
    device.set_row(1, SamplerChain([S.MinP(min_p=0.1), S.Dist()]))
    assert names() == ["DeviceTopK", "DeviceTemperature", "DeviceMinP", "DeviceDist"]
    assert before == ["DeviceTopK", "DeviceTemperature", "DeviceDist"]
    whole = DeviceChain(first, 2, 64, kernels="torch", chains=[other])
    kept = [id(place) for place in inside(whole).program.places]
    whole.set_row(0, other)
    assert [id(place) for place in inside(whole).program.places] == kept
    told = DeviceChain.bytes_for(first, 2, 64, kernels="torch", chains=[other])
    assert told.tensors == whole.nbytes


@pytest.mark.parametrize("kernels", KERNELS)
def test_an_allowed_mask_comes_first(kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 2, 70, kernels=kernels)
    allowed = torch.zeros(2, 3, dtype=torch.int32)
    allowed[0, 2], allowed[1, 0] = 1 << 5, -(2**31)
    assert device.sample(torch.zeros(2, 70), allowed).tolist() == [69, 31]
    assert device.sample(torch.zeros(2, 70), torch.zeros_like(allowed)).tolist() == [-1, -1]


def test_memory_is_known_and_tensors_stay() -> None:
    device = DeviceChain(TEMPLATE, 4, 1000, max_tokens=50, kernels="torch")
    addresses = [
        t.data_ptr() for place in inside(device).program.places for t in place.rows.values()
    ]
    before = device.nbytes
    assert (
        before == DeviceChain.bytes_for(TEMPLATE, 4, 1000, max_tokens=50, kernels="torch").tensors
    )
    for step in range(20):
        device.set_row(step % 4, random_chain(random.Random(step)))
        device.sample(torch.zeros(4, 1000))
        if step % 3 == 0:
            device.permute([1, 2, 3, 0])
    assert addresses == [
        t.data_ptr() for place in inside(device).program.places for t in place.rows.values()
    ]
    assert device.nbytes == before


@pytest.mark.parametrize("name", ["default", "adaptive_p", "gumbel", "top_p_full"])
def test_memory_is_what_was_said_before(name: str) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "logprobs": 3, "kept": True, "kernels": "torch"}
    told = DeviceChain.bytes_for(SAMPLERS[name], 3, 500, dtype=torch.float16, **options)
    device = DeviceChain(SAMPLERS[name], 3, 500, **options)
    assert told.tensors == device.nbytes
    logits = torch.zeros(3, 500, dtype=torch.float16)
    for _ in range(2):
        with PeakBytes() as peak:
            device.sample(logits)
        assert peak.most == told.workspace
    assert told.workspace > 500 * 3 * 8
    on_host = DeviceChain.bytes_for(SAMPLERS[name], 3, 500, logprobs=3, kept=True)
    assert on_host == (DeviceChain(SAMPLERS[name], 3, 500, logprobs=3, kept=True).nbytes, 0)


@pytest.mark.parametrize("name", ["default", "mirostat", "adaptive_p"])
def test_the_host_s_kernels_go_on_with_a_chain_that_has_generated(name: str) -> None:
    chain = SamplerChain(SAMPLERS[name], seed=3)
    for step in range(4):
        chain.sample(rows_of("normal", 1, 64, step)[0])
    device = DeviceChain(SAMPLERS[name], 2, 64, kernels="host")
    device.set_row(1, chain)
    first = SamplerChain(SAMPLERS[name], seed=0)
    for step in range(4, 8):
        z = rows_of("normal", 2, 64, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected([first, chain], z)


def test_mirostat_looks_past_what_was_masked_between_candidates() -> None:
    """Equal logits of which a mask leaves every fourth: the estimate takes those that are left."""
    row = torch.zeros(1, 64)
    allowed = np.arange(3, 64, 4)
    for seed in range(8):
        chain = SamplerChain(
            [S.TopP(top_p=0.9), S.TokenMask(allowed), S.Mirostat(mirostat_m=20)], seed=seed
        )
        expected = chain.clone().sample(row[0].numpy())
        drawn = DeviceChain(chain, 1, 64, device="cpu", kernels="torch").sample(row)
        assert drawn.tolist() == [expected]
