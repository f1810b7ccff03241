from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import WatermarkKey, detect_watermark
from aleator import samplers as S
from aleator.core.errors import ParameterError, StateError
from aleator.core.philox import uniform64
from aleator.samplers import watermark
from aleator.samplers.as_json import params_as_json, params_from_json
from aleator.samplers.base import Place
from aleator.samplers.watermark import DRAWN, HASH, VARIABLE, context_hash, log_erlang_tail
from tests.samplers.steps import SHARES, Row, follows_shares, logs, normal_rows

SECRET = b"a key for tests, not for use"
KEY = WatermarkKey(SECRET)


def marked(n: int = 4, key: WatermarkKey = KEY) -> S.Dist:
    return S.Dist(draw="watermark", watermark_key_file=key, watermark_ngram=n)


def drawn(sampler: S.Dist, logits: list[Row], seed: int = 1) -> list[int]:
    chain = S.SamplerChain([sampler], seed=seed)
    return [chain.sample(row) for row in logits]


@pytest.mark.parametrize("n", [1, 2, 4, 16])
def test_the_host_draws_what_the_reference_does(n: int) -> None:
    chain = S.SamplerChain([S.TopK(top_k=2), marked(n)], seed=3, completion=2)
    reference = S.ReferenceChain(chain)
    for token in (1, 2, 1, 2):
        chain.accept(token)
        reference.accept(token)
    kinds = set()
    for row in normal_rows(120, 3 if n < 16 else 40):
        kinds.add(context_hash(chain.history, chain.position, KEY, n) is None)
        expected = reference.apply(row).selected
        assert chain.sample(row) == expected
        assert expected is not None
        reference.accept(expected, generated=True)
    assert kinds == {True, False}


def test_the_numbers_are_those_of_key_and_context() -> None:
    chain = S.SamplerChain([marked(2)], seed=1)
    for token in (7, 300):
        chain.accept(token, generated=True)
    h = uniform64(KEY.seed, 300, uniform64(KEY.seed, 7, 2, HASH), HASH)
    u = [uniform64(KEY.seed, token, h, DRAWN) for token in range(1000)]
    assert chain.sample(np.zeros(1000, np.float32)) == int(np.argmax(u))


def test_a_key_gives_the_same_numbers_for_ever() -> None:
    assert (KEY, KEY.seed) == ("fingerprint:1af0a723b1c53f94", 0xC791767DE5F4D9D7)
    assert drawn(marked(2), normal_rows(12, 500)) == [
        63, 333, 364, 457, 497, 232, 339, 189, 223, 478, 364, 0,
    ]  # fmt: skip


def test_first_tokens_and_repeats_are_ordinary_draws() -> None:
    logits = normal_rows(200, 4)
    chain = S.SamplerChain([marked(2)], seed=9)
    ordinary, different = 0, 0
    for row in logits:
        gumbel = S.SamplerChain([S.Dist(draw="gumbel")], seed=9)
        gumbel.position = chain.position
        again = context_hash(chain.history, chain.position, KEY, 2) is None
        token = chain.sample(row)
        if again:
            ordinary += 1
            assert token == gumbel.sample(row)
        else:
            different += token != gumbel.sample(row)
    assert ordinary > 150  # 16 contexts of four tokens
    assert different > 3


def test_the_seed_begins_a_text_and_the_key_goes_on() -> None:
    logits = normal_rows(40, 1000, 0.1)
    assert drawn(marked(), logits, 1) != drawn(marked(), logits, 2)
    a, b = (S.SamplerChain([marked()], seed=seed) for seed in (1, 2))
    for chain in (a, b):
        for token in (5, 6, 7, 8):
            chain.accept(token, generated=True)
    assert [a.sample(row) for row in logits] == [b.sample(row) for row in logits]


def test_over_keys_the_distribution_is_the_model_s() -> None:
    tokens = []
    for i in range(20_000):
        chain = S.SamplerChain([marked(1, WatermarkKey(b"key number %10d" % i))], seed=1)
        chain.accept(3, generated=True)
        tokens.append(chain.sample(logs(SHARES)))
    assert follows_shares(tokens)


def test_over_contexts_the_distribution_is_the_model_s() -> None:
    chain = S.SamplerChain([marked(1)], seed=1)
    tokens = []
    for i in range(20_000):
        chain.reset()
        chain.accept(i, generated=True)
        tokens.append(chain.sample(logs(SHARES)))
    assert follows_shares(tokens)


def test_it_goes_back_and_its_state_is_kept() -> None:
    logits = normal_rows(60, 30)
    chain = S.SamplerChain([marked(2)], seed=4)
    tokens = [chain.sample(row) for row in logits]
    chain.rollback(40)
    assert [chain.sample(row) for row in logits[20:]] == tokens[20:]
    chain.rollback(30)
    other = S.SamplerChain([marked(2)], seed=4)
    other.state_read(chain.state_write())
    assert [other.sample(row) for row in logits[30:]] == tokens[30:]
    stranger = S.SamplerChain([marked(2, WatermarkKey(b"quite another key"))], seed=4)
    with pytest.raises(StateError, match="another chain"):
        stranger.state_read(chain.state_write())


def test_states_of_other_draws_are_as_they_were() -> None:
    place = Place(1, 0)
    assert S.Dist().configured(place, "portable")[2] == {"seed": 1, "draw": "inverse"}


@pytest.mark.parametrize("m", [1, 2, 3, 40])
@pytest.mark.parametrize("x", [0.01, 1.0, 7.5, 60.0])
def test_the_tail_is_its_sum(m: int, x: float) -> None:
    exact = math.exp(-x) * math.fsum(x**k / math.factorial(k) for k in range(m))
    assert math.exp(log_erlang_tail(m, x)) == pytest.approx(exact, rel=1e-12)


def test_the_tail_at_its_ends() -> None:
    assert log_erlang_tail(0, 0.0) == 0 == log_erlang_tail(5, 0.0)
    assert log_erlang_tail(1, 5000.0) == pytest.approx(-5000.0)
    assert math.exp(log_erlang_tail(10**6, 1e6)) == pytest.approx(0.5, abs=1e-3)


def test_the_luck_of_a_token_is_its_uniform_number() -> None:
    key = WatermarkKey(b"a key for tests, no other")
    dist = S.Dist(draw="watermark", watermark_key_file=key)
    for token in range(20):
        u = uniform64(key.seed, token, watermark.hash_of([1, 2, 3, 4], key), DRAWN)
        assert dist.watermark_score(token, [1, 2, 3, 4]) == u / 2**64 < 1


def test_the_largest_number_counts_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - u is at least 2^-64, however large u is."""
    for u, bits in ((2**64 - 1, 64), (2**64 - 2**12, 52), (2**63, 1)):
        monkeypatch.setattr(watermark, "_uniforms", lambda *given, u=u: np.full(3, u, np.uint64))
        told = detect_watermark([1, 2, 3, 4], b"a key for tests, no other", ngram=1)
        assert told.n_scored == 1
        assert told.score == pytest.approx(3 * bits * math.log(2), rel=1e-3)


def test_without_the_watermark_p_is_uniform() -> None:
    random = np.random.default_rng(8)
    found = [
        detect_watermark(random.integers(0, 500, 80), b"key number %10d" % i).p_value
        for i in range(2000)
    ]
    counts, _ = np.histogram(found, 20, (0, 1))
    assert float(((counts - 100) ** 2 / 100).sum()) < 50.8  # 19 degrees of freedom, alpha = 1e-4


def test_a_text_that_repeats_itself_says_little() -> None:
    found = detect_watermark([1, 2, 3, 4, 5] * 200, KEY)
    assert (found.n_tokens, found.n_scored) == (1000, 5)


def test_it_is_found_with_the_key_alone() -> None:
    tokens = drawn(marked(), normal_rows(150, 300))
    found = detect_watermark(tokens, KEY)
    assert found == detect_watermark(np.array(tokens), SECRET + b"\n")
    assert (found.n_tokens, found.n_scored) == (150, 146)
    assert found.log10_p < -50
    assert detect_watermark(tokens, b"quite another key").p_value > 1e-3
    assert detect_watermark(tokens, KEY, ngram=3).p_value > 1e-3
    assert detect_watermark(drawn(S.Dist(draw="gumbel"), normal_rows(150, 300)), KEY).p_value > 1e-3


def test_it_is_found_in_an_edited_text() -> None:
    tokens = drawn(marked(), normal_rows(300, 300))
    edited = list(tokens)
    for at in range(0, 300, 15):
        edited[at] = 0
    moved = [*range(40), *edited[100:250], *range(40)]
    whole, less, least = (detect_watermark(each, KEY).log10_p for each in (tokens, edited, moved))
    assert whole < less < least < -6


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3, 4]])
def test_a_short_text_says_nothing(tokens: list[int]) -> None:
    found = detect_watermark(tokens, KEY)
    assert (found.n_scored, found.score, found.p_value) == (0, 0, 1)


@pytest.mark.parametrize("tokens", [[-1], [2**31], [0.5], [[1]], "text"])
def test_tokens_are_checked(tokens: Any) -> None:
    with pytest.raises(ParameterError, match="tokens must be a sequence of token ids, 0 to"):
        detect_watermark(tokens, KEY)


def test_a_key_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    params = S.SamplingParams(draw="watermark", watermark_key_file=path)
    record = params_as_json(params)
    assert params_from_json(json.loads(json.dumps(record)), 1).watermark_key_file == KEY
    shown = [
        repr(params), str(KEY), repr(KEY), repr(marked()), marked().describe(), json.dumps(record),
        repr(params.chain()), repr(pickle.dumps(params)), repr(params.chain().state_write()),
    ]  # fmt: skip
    for each in shown:
        assert SECRET.decode() not in each
        assert str(KEY.seed) not in each
    assert pickle.loads(pickle.dumps(KEY)) is KEY
    with pytest.raises(ParameterError) as raised:
        S.SamplingParams(draw="watermark", watermark_key_file=Path(SECRET.decode()))
    assert SECRET.decode() not in str(raised.value)
    assert "the file cannot be read (No such file or directory)" in str(raised.value)
    with pytest.raises(ParameterError, match=f"a watermark needs a key: .* set {VARIABLE}"):
        S.SamplingParams(draw="watermark")
    monkeypatch.setenv(VARIABLE, SECRET.decode())
    assert S.SamplingParams(draw="watermark").watermark_key_file == KEY
    assert S.Dist(draw="watermark").watermark_key_file == KEY
    assert detect_watermark([1], None).fingerprint == KEY


@pytest.mark.parametrize(
    "own",
    [{}, {"draw": "gumbel"}, {"draw": "inverse"}, {"mirostat": 2}, {"phases": {"answer": {}}}],
)
def test_a_key_without_a_keyed_draw_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"would have no effect: .* uses no key") as raised:
        S.SamplingParams(watermark_key_file=KEY, **own)
    assert raised.value.parameter == "watermark_key_file"
    made = S.SamplingParams(watermark_key_file=KEY, phases={"answer": {"draw": "watermark"}})
    assert made.by_phase()["answer"].watermark_key_file == KEY
    assert made.replace(phases={}).watermark_key_file is None
    marked = S.SamplingParams(watermark_key_file=KEY, draw="synthid")
    assert marked.replace(draw="gumbel") == S.SamplingParams(draw="gumbel")


def test_text_names_no_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"sixteen bytes and more")
    for value in (str(path), 3, b"sixteen bytes and more", "fingerprint:0000000000000000"):
        with pytest.raises(ParameterError) as raised:
            S.SamplingParams(draw="watermark", watermark_key_file=value)  # type: ignore[arg-type]
        assert str(path) not in str(raised.value)


@pytest.mark.parametrize("secret", [b"", b"15 bytes is few", b"fifteen bytes..\n\n", b"x" * 4097])
def test_keys_have_a_length(secret: bytes) -> None:
    with pytest.raises(ParameterError, match="give 16 to 4096 random bytes, such as those of"):
        WatermarkKey(secret)


def test_llama_s_numbers_have_none() -> None:
    with pytest.raises(ParameterError, match="draw"):
        S.SamplerChain([marked()], "llama.cpp")


def test_a_fingerprint_is_looked_up_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert WatermarkKey.of_fingerprint(KEY) is KEY
    unknown = "fingerprint:0000000000000000"
    for secret in (None, SECRET.decode() + "other"):
        if secret is not None:
            monkeypatch.setenv(VARIABLE, secret)
        with pytest.raises(ParameterError, match="this process has no such key"):
            WatermarkKey.of_fingerprint(unknown)


@pytest.mark.parametrize("n", [16, 4096])
def test_the_shortest_and_the_longest_key_come_from_files_too(n: int, tmp_path: Path) -> None:
    """Whatever line break ends them; one byte more or less is refused."""
    secret, path = bytes(33 + i % 90 for i in range(n)), tmp_path / "key"
    for end in (b"", b"\n", b"\r\n"):
        path.write_bytes(secret + end)
        assert WatermarkKey.from_file(path) == WatermarkKey(secret + end) == WatermarkKey(secret)
    path.write_bytes(secret[:-1] if n == 16 else secret + b"x\r\n")
    with pytest.raises(
        ParameterError, match=f"the key has {'15' if n == 16 else 'more than 4,096'}"
    ):
        WatermarkKey.from_file(path)


def test_the_first_n_grams_of_a_text_are_scored_once() -> None:
    """Each distinct one with a token after it, at its first place."""
    for tokens, ngram, scored in (
        ([1, 2], 1, 1), ([1, 2, 1, 3], 1, 2), ([1, 2, 3, 1, 2, 4], 2, 3), ([1] * 9, 2, 1), ([1, 2, 3], 3, 0),
    ):  # fmt: skip
        assert detect_watermark(tokens, KEY, ngram=ngram).n_scored == scored
    tokens = [5, 6, 7, 5, 6, 8]
    u = [
        uniform64(KEY.seed, tokens[i], watermark.hash_of(tokens[i - 2 : i], KEY), DRAWN) / 2**64
        for i in (2, 3, 4)  # 8 follows what 7 has followed
    ]
    score = -sum(math.log(1 - each) for each in u)
    assert detect_watermark(tokens, KEY, ngram=2).score == pytest.approx(score)


def test_a_key_is_bytes() -> None:
    with pytest.raises(ParameterError, match="a watermark's key is bytes"):
        WatermarkKey("a text of sixteen")  # type: ignore[arg-type]
