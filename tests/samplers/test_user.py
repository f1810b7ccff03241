from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError, StateError
from aleator.samplers.user import restore_users
from tests.samplers.steps import INF, NAN, f32

ROW = np.random.default_rng(0).normal(size=500).astype(np.float32) * 2
NUMERICS = pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])


def run(chain: S.SamplerChain, n: int) -> list[int]:
    return [chain.sample(ROW) for _ in range(n)]


class Doubler:
    """Doubles logits, and notes what it sees."""

    name = "doubler"

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.kept: Any = None

    def apply(self, candidates: S.Candidates) -> None:
        candidates.logits = candidates.logits * np.float32(2)
        self.kept = candidates

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def rollback(self, n: int) -> None:
        del self.accepted[len(self.accepted) - n :]

    def reset(self) -> None:
        self.accepted.clear()


@NUMERICS
def test_it_may_stand_anywhere(numerics: str) -> None:
    half = S.SamplerChain(
        [S.Temperature(temperature=0.5), S.TopK(top_k=20), S.Dist(3)], numerics=numerics
    )
    tokens = run(half, 20)
    for place in (0, 1):
        user = Doubler()
        samplers: list[Any] = [S.TopK(top_k=20), S.Dist(3)]
        samplers.insert(place, user)
        chain = S.SamplerChain(samplers, numerics=numerics)
        assert run(chain, 20) == tokens
        assert user.accepted == tokens
        chain.rollback(5)
        assert user.accepted == tokens[:15]
        kept, user.kept = user.kept, None  # deepcopy cannot copy candidates
        clone = chain.clone()
        assert run(chain, 5) == tokens[15:]
        assert run(clone, 5) == tokens[15:]
        assert chain.describe().count("doubler") == 1
        assert chain[place] is user
        user.kept = None
        explained = chain.explain(ROW)
        assert [stage.name for stage in explained.stages][place] == "doubler"
        chain.reset()
        assert user.accepted == []
        assert run(chain, 20) == tokens
    with pytest.raises(LogitsError, match="step that is over"):
        _ = kept.ids


class Sees:
    """Calls a function with the candidates."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def apply(self, candidates: S.Candidates) -> None:
        self.function(candidates)


def after(numerics: str, function: Any, *before: S.Sampler, row: Any = ROW) -> S.Candidates:
    candidates = S.Candidates(row)
    S.SamplerChain([*before, Sees(function)], numerics=numerics).apply(candidates)
    return candidates


@NUMERICS
def test_it_reads_all_there_is(numerics: str) -> None:
    seen: dict[str, Any] = {}

    def read(c: S.Candidates) -> None:
        seen.update(
            ids=c.ids, logits=c.logits, probs=c.probs, n=len(c), n_vocab=c.n_vocab,
            selected=c.selected, sorted=c.sorted,
        )  # fmt: skip

    after(numerics, read, S.TopK(top_k=3), row=f32(1, 5, 3, 4))
    order = [1, 3, 2] if numerics == "llama.cpp" else [1, 2, 3]
    assert seen["ids"].tolist() == order
    assert seen["logits"].tolist() == [float([1, 5, 3, 4][i]) for i in order]
    expected = np.exp(seen["logits"] - 5.0)
    np.testing.assert_allclose(seen["probs"], expected / expected.sum(), rtol=1e-6)
    assert (seen["n"], seen["n_vocab"], seen["selected"]) == (3, 4, None)
    assert seen["sorted"] == (numerics == "llama.cpp")


@NUMERICS
def test_assigned_logits_are_canonical_and_others_stay(numerics: str) -> None:
    def write(c: S.Candidates) -> None:
        c.logits = f32(NAN, 2, -INF, 7)

    left = after(numerics, write, row=f32(1, 2, 3, 4))
    finite = left.logits > -np.inf
    assert left.ids[finite].tolist() == [1, 3]
    assert left.logits[finite].tolist() == [2, 7]
    assert len(left) == (4 if numerics == "llama.cpp" else 2)


@NUMERICS
def test_kept_tokens_keep_their_order_and_the_choice(numerics: str) -> None:
    def choose(c: S.Candidates) -> None:
        c.selected = 2
        c.keep([0, 2, 3, 99])
        assert c.selected == 2
        c.selected = None

    left = after(numerics, choose, S.TopK(top_k=3), row=f32(1, 5, 3, 4))
    assert left.ids.tolist() == ([3, 2] if numerics == "llama.cpp" else [2, 3])
    assert left.selected is None


def test_llama_cpps_order_is_believed_only_while_it_descends() -> None:
    """Otherwise top-p would take the first of the array for the best."""
    for function, is_sorted in ((lambda z: z * 2, True), (lambda z: z[::-1].copy(), False)):

        def write(c: S.Candidates, function: Any = function) -> None:
            c.logits = function(c.logits)

        left = after("llama.cpp", write, S.TopK(top_k=3), row=f32(1, 5, 3, 4))
        assert left.sorted == is_sorted
        chain = S.SamplerChain(
            [S.TopK(top_k=3), Sees(write), S.TopP(top_p=0.1), S.Greedy()], numerics="llama.cpp"
        )
        assert chain.sample(f32(1, 5, 3, 4)) == (1 if is_sorted else 2)


class Chooser:
    selects = True

    def apply(self, candidates: S.Candidates) -> None:
        candidates.keep(candidates.ids[-3:].tolist())
        candidates.selected = int(candidates.ids[0])


@NUMERICS
def test_it_can_choose(numerics: str) -> None:
    assert S.SamplerChain([Chooser()], numerics=numerics).sample(ROW) == 497
    with pytest.raises(ParameterError, match="nothing can follow"):
        S.SamplerChain([Chooser(), S.Dist()], numerics=numerics)


class Fails:
    def __init__(self, where: str) -> None:
        self.where = where

    def apply(self, candidates: S.Candidates) -> None:
        if self.where == "apply":
            raise RuntimeError("on purpose")
        if self.where == "type":
            raise TypeError("on purpose")
        if self.where == "select":
            candidates.selected = 10**6
        if self.where == "select a masked one":
            candidates.selected = 3
        if self.where == "length":
            candidates.logits = np.zeros(3, np.float32)
        if self.where == "nothing finite":
            candidates.logits = np.full(len(candidates), np.nan, np.float32)
        if self.where == "keep":
            candidates.keep([])
        if self.where == "keep a masked one":
            candidates.keep([3])

    def accept(self, token: int) -> None:
        if self.where == "accept":
            raise RuntimeError("on purpose")


ERRORS: dict[str, type[Exception]] = {
    "apply": RuntimeError, "accept": RuntimeError, "type": TypeError, "select": LogitsError,
    "select a masked one": LogitsError, "length": LogitsError, "nothing finite": LogitsError,
    "keep": LogitsError, "keep a masked one": LogitsError,
}  # fmt: skip


@NUMERICS
@pytest.mark.parametrize("where", ERRORS)
def test_its_error_comes_through_and_changes_nothing(where: str, numerics: str) -> None:
    penalties = S.Penalties(presence_penalty=1, penalty_last_n=2)
    coin = S.XTC(xtc_probability=0.5, xtc_threshold=0.001, seed=4)
    fails = Fails(where)
    row = ROW.copy()
    row[3] = -np.inf
    chain = S.SamplerChain([penalties, coin, fails, S.Dist(1)], numerics=numerics)
    for _ in range(3):
        with pytest.raises(ERRORS[where]):
            chain.sample(row)
    assert (chain.history, chain.position) == ([], 0)
    fails.where = "nowhere"
    sound = S.SamplerChain([penalties, coin, S.Dist(1)], numerics=numerics)
    assert [chain.sample(row) for _ in range(9)] == [sound.sample(row) for _ in range(9)]
    with pytest.raises(ParameterError, match="no rollback"):
        chain.rollback(1)


@NUMERICS
def test_what_has_no_apply_is_refused(numerics: str) -> None:
    with pytest.raises(ParameterError, match=r"needs apply\(candidates\)"):
        S.SamplerChain([object()], numerics=numerics)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(StateError("no"), StateError), (ParameterError("p", "no"), ParameterError),
     (KeyboardInterrupt(), KeyboardInterrupt), (ValueError("odd"), StateError)],
)  # fmt: skip
def test_an_error_of_one_leaves_all_as_they_were(
    error: BaseException, raised: type[BaseException]
) -> None:
    class Kept:
        def __init__(self, name: str, pending: bytes | None) -> None:
            self.name, self.pending, self.now = name, pending, name.encode()

        def written(self) -> bytes:
            return self.now

        def restore(self, state: bytes) -> None:
            self.now = state
            if state == b"bad":
                raise error

    kept: list[Any] = [Kept("a", b"new"), Kept("b", None), Kept("c", b"bad"), Kept("d", b"new")]
    with pytest.raises(raised) as caught:
        restore_users(kept)
    assert (caught.value is error) is (raised is type(error))
    assert caught.value is error or "c cannot read its state: odd" in str(caught.value)
    assert [each.now for each in kept] == [b"a", b"b", b"c", b"d"]
    restore_users(kept[:2])
    assert [each.now for each in kept] == [b"new", b"b", b"c", b"d"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_cannot_be_inserted_as_a_whole_is_not_inserted(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = S.SamplerChain([S.Temperature(temperature=0.9), S.TopP(top_p=0.8), S.Dist()], seed=2)
    inner = [
        S.SamplerChain([*([S.TopK(top_k=5), S.MinP(min_p=0.1)] * 2)[:n], S.XTC(0.5)])
        for n in range(5)
    ]
    run(chain, 3)
    twin, kernels = chain.clone(), [type(each) for each in chain.kernels.samplers]

    def fails(*_: Any) -> Any:
        raise RuntimeError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(S.XTC, "native", fails)
        for each in inner:
            with pytest.raises(RuntimeError, match="not today"):
                chain.insert(at, each)
            assert [type(kernel) for kernel in chain.kernels.samplers] == kernels
            assert len(chain) == 3
    assert run(chain.clone(), 5) == run(twin, 5)
    chain.insert(at, inner[2])
    assert [each.name for each in chain][at : at + 3] == ["top_k", "min_p", "xtc"]


class Plain:
    """Has nothing but apply(), and what a test gives it."""

    def __init__(self, **methods: Any) -> None:
        vars(self).update(methods)

    def apply(self, candidates: S.Candidates) -> None:
        """Nothing."""


def test_a_state_is_bytes() -> None:
    user = Plain(state_write=lambda: "text", state_read=lambda state: None)
    chain = S.SamplerChain([user, S.Dist(1)])
    with pytest.raises(
        ParameterError, match=r"state_write\(\) of Plain gave str: it must give bytes"
    ):
        chain.state_write()
