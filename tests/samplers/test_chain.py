from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from aleator.samplers.base import Place

ROW = np.random.default_rng(0).normal(size=500).astype(np.float32) * 2


def default_chain(seed: int = 1, **changes: Any) -> S.SamplerChain:
    chain: S.SamplerChain = S.SamplingParams.preset(
        "llama.cpp", seed=seed, repetition_penalty=1.2, **changes
    ).chain()
    return chain


def run(chain: S.SamplerChain, n: int) -> list[int]:
    return [chain.sample(ROW) for _ in range(n)]


def test_same_seed_same_tokens_and_another_seed_others() -> None:
    assert run(default_chain(1), 50) == run(default_chain(1), 50)
    assert run(default_chain(1), 50) != run(default_chain(2), 50)


def test_reset_repeats_and_keeps_a_random_seed() -> None:
    chain = S.SamplerChain([S.Temperature(temperature=2.0), S.Dist()])
    first = run(chain, 30)
    chain.reset()
    assert chain.position == 0
    assert run(chain, 30) == first
    assert run(S.SamplerChain([S.Temperature(temperature=2.0), S.Dist(chain.seed)]), 30) == first


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_rollback_without_replay_forgets_tokens_and_goes_on_drawing(numerics: str) -> None:
    select = S.MirostatV2(mirostat_tau=4.0, seed=6)
    penalties = S.Penalties(penalty_last_n=-1, presence_penalty=1.5)
    chain, straight = (S.SamplerChain([penalties, select], numerics=numerics) for _ in range(2))
    kept, dropped = run(chain, 10), run(chain, 20)
    chain.rollback(20, replay=False)
    assert chain.history == kept
    again = run(chain, 20)
    assert again != dropped
    chain.rollback(20)
    assert run(chain, 20) == again
    # What was dropped is in no penalty and in no state: only the draws are later ones.
    run(straight, 10)
    seen = [chain_after(c) for c in (chain, straight)]
    chain.rollback(20)
    assert chain_after(chain) == chain_after(straight) != seen[0]


def chain_after(chain: S.SamplerChain) -> tuple[list[float], float]:
    """The penalised logits, and mirostat's mu."""
    select = chain._native.samplers[-1]
    candidates = S.Candidates(ROW)
    chain._native.apply_one(candidates._native_for(chain.numerics), 0)
    return candidates.logits.tolist(), select.mu  # type: ignore[union-attr]


def test_prompt_tokens_do_not_advance_the_position() -> None:
    chain = S.SamplerChain([S.Dist(4)])
    drawn = run(chain, 5)
    prompted = S.SamplerChain([S.Dist(4)])
    for token in range(100):
        prompted.accept(token)
    assert prompted.position == 0
    assert run(prompted, 5) == drawn


def test_position_can_be_set() -> None:
    chain = S.SamplerChain([S.Dist(4)])
    drawn = run(chain, 5)
    other = S.SamplerChain([S.Dist(4)])
    other.position = 3
    assert run(other, 2) == drawn[3:]


def test_completions_draw_independently() -> None:
    params = S.SamplingParams(seed=1)
    runs = {tuple(run(params.chain(completion=i), 8)) for i in range(10)}
    assert len(runs) == 10


def test_input_types_agree_and_are_not_changed() -> None:
    half = ROW.astype(np.float16)
    before = half.copy()
    widened = half.astype(np.float32)
    assert run_on(half) == run_on(widened)
    assert half.tobytes() == before.tobytes()


def run_on(row: np.ndarray) -> list[int]:
    chain = default_chain()
    return [chain.sample(row) for _ in range(10)]


def test_torch_rows_in_every_type() -> None:
    pytest.importorskip("torch")
    import torch

    row = torch.from_numpy(ROW)
    assert run_on(row) == run_on(ROW)  # type: ignore[arg-type]
    low = row.bfloat16()
    assert run_on(low) == run_on(low.float())  # type: ignore[arg-type]


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_a_call_within_a_call_is_not_taken_for_another_thread(numerics: str) -> None:
    class Nosy:
        chain: S.SamplerChain
        called = staticmethod(lambda chain: chain.accept(1))

        def apply(self, candidates: S.Candidates) -> None:
            self.called(self.chain)

    user = Nosy()
    chain = user.chain = S.SamplerChain([user, S.Greedy()], numerics)
    for call in (
        lambda chain: chain.accept(1),
        lambda chain: chain.sample(ROW),
        lambda chain: chain.accept_many([1]),
        lambda chain: chain.reset(),
        lambda chain: chain.clone(),
        lambda chain: chain.rollback(0),
        lambda chain: chain.reset_perf(),
        lambda chain: chain.state_write(),
    ):
        user.called = call
        with pytest.raises(LogitsError, match=r"in use by this thread.*clone"):
            chain.sample(ROW)
    assert chain.history == []


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_scratch_memory_comes_back_when_needed(numerics: str) -> None:
    chain, other = (S.SamplerChain([S.TopK(9), S.Dist()], numerics, seed=1) for _ in range(2))
    drawn = []
    for _ in range(5):
        drawn.append(chain.sample(ROW))
        chain.free_scratch()
    assert drawn == run(other, 5)


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_performance_counters(numerics: str) -> None:
    chain = S.SamplerChain([S.Dist()], numerics, seed=1)
    assert (chain.perf.n_sampled, chain.perf.seconds, chain.perf.us_per_token) == (0, 0.0, 0.0)
    run(chain, 5)
    chain.apply(S.Candidates(ROW))
    perf = chain.perf
    assert (perf.n_sampled, perf.seconds) == (chain.n_sampled, chain.seconds)
    assert perf.n_sampled == 5
    assert perf.us_per_token == pytest.approx(1e6 * perf.seconds / 5)
    chain.reset()
    chain.state_read(chain.state_write())
    assert chain.perf == perf  # of the object, not of the text
    history = chain.history
    chain.reset_perf()
    assert chain.perf.n_sampled == chain.n_sampled == 0
    assert chain.seconds == 0
    assert chain.history == history


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_a_long_text_is_taken_back_at_once(numerics: str) -> None:
    chain = S.SamplerChain([S.Dist()], numerics, seed=1)
    chain.accept_many(range(900), generated=True)
    for n, left in ((130, 770), (0, 770), (769, 1), (1, 0)):
        chain.rollback(n)
        assert chain.history == [*range(left)]


def test_a_selecting_sampler_ends_the_chain() -> None:
    with pytest.raises(ParameterError, match="nothing can follow"):
        S.SamplerChain([S.Dist(), S.TopK(top_k=2)])


def test_describe_marks_what_does_nothing() -> None:
    assert (
        default_chain().describe()
        == "logits -> penalties -> ?dry -> ?top_n_sigma -> top_k -> ?typical_p -> top_p -> min_p -> ?xtc "
        "-> temperature -> dist"
    )
    neutral = S.SamplingParams(samplers="top_k;temperature")
    assert neutral.chain().describe() == "logits -> ?top_k -> ?temperature -> dist"


def test_probs_sum_to_one_and_masked_tokens_are_no_candidates() -> None:
    row = ROW.copy()
    row[[3, 7]] = -np.inf
    candidates = S.Candidates(row)
    assert len(candidates) == 498
    assert candidates.n_vocab == 500
    assert not {3, 7} & set(candidates.ids.tolist())
    expected = np.exp(row.astype(np.float64) - row.max())
    expected /= expected.sum()
    np.testing.assert_allclose(candidates.probs, expected[candidates.ids], rtol=2e-6, atol=1e-12)


def test_chains_nest() -> None:
    inner = S.SamplerChain([S.TopK(top_k=20), S.Temperature(temperature=0.5)])
    nested = S.SamplerChain([inner, S.SamplerChain([S.Dist()])], seed=9)
    flat = S.SamplerChain([S.TopK(top_k=20), S.Temperature(temperature=0.5), S.Dist()], seed=9)
    assert run(nested, 20) == run(flat, 20)
    assert nested.describe() == flat.describe()
    with pytest.raises(ParameterError, match="not a sampler"):
        S.SamplerChain([object()])


def test_editing_keeps_state() -> None:
    chain = S.SamplerChain([S.MirostatV2(mirostat_tau=3)], seed=2)
    start = run(chain, 10)
    chain.insert(0, S.Penalties(penalty_last_n=-1, presence_penalty=5))
    penalised = run(chain, 10)
    assert chain.remove(0) == S.Penalties(penalty_last_n=-1, presence_penalty=5)
    whole = S.SamplerChain([S.MirostatV2(mirostat_tau=3)], seed=2)
    assert run(whole, 10) == start
    assert run(whole, 10) != penalised
    fresh = S.SamplerChain([], seed=5)
    fresh.add(S.TopK(top_k=9))
    fresh.add(S.SamplerChain([S.XTC(xtc_probability=1, xtc_threshold=0.01), S.Dist()]))
    fresh.insert(0, S.XTC(xtc_probability=0.5, xtc_threshold=0.01))
    same = S.SamplerChain(list(fresh), seed=5)
    assert run(fresh, 30) == run(same, 30)
    assert [type(s).__name__ for s in fresh[:2]] == ["XTC", "TopK"]
    with pytest.raises(ParameterError, match="nothing can follow"):
        fresh.add(S.Greedy())
    with pytest.raises(IndexError):
        fresh.remove(9)
    with pytest.raises(IndexError):
        fresh.insert(len(fresh) + 1, S.TopK(2))
    assert len(fresh) == 4


def test_an_inserted_penalty_sees_the_history() -> None:
    chain = S.SamplerChain([S.Greedy()])
    best = chain.sample(ROW)
    chain.insert(0, S.Penalties(presence_penalty=100))
    assert chain.sample(ROW) != best


class FakeContext:
    def logits(self, i: int) -> Any:
        return ROW if i == -1 else -ROW


def test_sample_takes_a_context() -> None:
    assert S.SamplerChain([S.Greedy()]).sample(FakeContext()) == int(ROW.argmax())
    assert S.SamplerChain([S.Greedy()]).sample(FakeContext(), row=3) == int(ROW.argmin())


def test_what_adapts_to_draws_is_named() -> None:
    plain = [S.TopK(3), S.Dist()]
    assert S.SamplerChain(plain).adapts == ""
    assert S.SamplerChain([S.TopK(3), S.AdaptiveP(0.3)]).adapts == "adaptive_p"
    assert S.SamplerChain([S.MirostatV2()]).adapts == "mirostat_v2"


@pytest.mark.parametrize(
    ("numerics", "seed", "used"),
    [("portable", None, 7), ("portable", 5, 5), ("portable", 2**32 - 1, 2**32 - 1),
     ("llama.cpp", None, 7), ("llama.cpp", 5, 5), ("llama.cpp", 2**32 - 1, 7)],
)  # fmt: skip
def test_chains_are_compared_by_the_seeds_in_use(
    numerics: str, seed: int | None, used: int
) -> None:
    place = Place(7, 0, 0)
    assert S.XTC(0.5, seed=seed).configured(place, numerics)[2]["seed"] == used
    eta = S.EtaCutoff(0.1), S.EtaCutoff(0.0)
    assert [each.configured(place, numerics)[3:] for each in eta] == [
        (2,) if numerics == "portable" else (),
        (),
    ]
    assert S.TopK(3).configured(place, numerics)[3:] == ()


def test_just_what_a_chain_may_be() -> None:
    assert S.SamplerChain([S.Dist()], completion=2**20 - 1).completion == 2**20 - 1
    for wrong in (-1, 2**20):
        with pytest.raises(ParameterError, match="give 0 to 1048575"):
            S.SamplerChain([S.Dist()], completion=wrong)
    assert len(S.SamplerChain([S.XTC(0.5)] * 256)) == 256
    with pytest.raises(ParameterError, match="at most 256 samplers of one kind"):
        S.SamplerChain([S.XTC(0.5)] * 257)
    for numerics, largest in (("portable", 2**64 - 1), ("llama.cpp", 2**32 - 2)):
        for seed in (0, largest):
            assert S.SamplerChain([S.Dist()], numerics=numerics, seed=seed).seed == seed
        assert 0 <= S.SamplerChain([S.Dist()], numerics=numerics, seed=-1).seed <= largest
    assert S.SamplerChain([S.Dist()], numerics="llama.cpp", seed=2**32 - 1).seed < 2**32 - 1
    for numerics, seed in (("portable", 2**64), ("llama.cpp", 2**32)):
        with pytest.raises(ParameterError, match="seed"):
            S.SamplerChain([S.Dist()], numerics=numerics, seed=seed)
    assert S.SamplerChain([S.Dist(seed=3), S.XTC(0.5)][::-1], seed=5).seed == 3
