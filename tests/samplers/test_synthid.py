"""``draw="synthid"``: transformers' coins and probabilities, the host's tokens, and the test's p."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import WatermarkKey, detect_synthid
from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, ints
from aleator.samplers import synthid
from aleator.samplers.synthid import coins, hashed, table, tournament
from aleator.samplers.watermark import new_context
from tests.samplers.steps import SHARES, check_draws, follows_shares, logs, normal_rows

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "synthid.json").read_text())
"""By transformers' SynthIDTextWatermarkLogitsProcessor: the keys of its docs and of synthid-text, two sets of
mine, and those of its tests."""
CASES = GOLDEN["cases"]
KEY = WatermarkKey(b"a key for tests, not for use")


def marked(n: int = 4, key: WatermarkKey = KEY) -> S.Dist:
    return S.Dist(draw="synthid", watermark_key_file=key, watermark_ngram=n)


def key_of(numbers: list[int]) -> WatermarkKey:
    return WatermarkKey(json.dumps(numbers).ljust(16).encode())


def written(found: np.ndarray) -> list[str]:
    return ["".join(map(str, each)) for each in found.tolist()]


def test_the_table_is_transformers_own() -> None:
    assert int(table().sum()) == GOLDEN["table_ones"]
    assert written(table()[None, :64]) == [GOLDEN["table_begins"]]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['ngram_len']}-{len(c['coins'])}")
def test_coins_and_probabilities_are_transformers_own(case: dict[str, Any]) -> None:
    row = Row.load(np.array(case["logits"], np.float32))
    context, keys = case["context"], case["keys"]
    assert hashed(1, context) == case["context_hash"]
    assert written(coins(row.ids, context, keys)) == case["coins"]
    numbers = key_of(keys).numbers
    shares = np.array(tournament(ints(row.weights()), row.ids, context, numbers))
    np.testing.assert_allclose(shares / shares.sum(), case["probabilities"], rtol=1e-6, atol=1e-9)
    n, text = case["ngram_len"] - 1, case["text"]
    found = [written(coins([text[i]], text[i - n : i], numbers))[0] for i in range(n, len(text))]
    assert found == case["text_coins"]
    new = [each for each, is_new in zip(found, case["new"], strict=True) if is_new]
    told = detect_synthid(text, key_of(keys), ngram=n)
    assert (told.n_scored, told.layers) == (len(new), len(keys))
    assert told.score == sum(each.count("1") for each in new)
    weights = np.linspace(10, 1, len(keys)) if len(keys) > 1 else np.ones(1)
    ones = np.array([[int(coin) for coin in each] for each in new])
    assert told.weighted_mean == pytest.approx(np.average(ones.mean(0), weights=weights))


def test_coins_fall_evenly() -> None:
    """As transformers' tests of "bias uniformity" ask, over n-grams and over the vocabulary."""
    random = np.random.default_rng(0)
    contexts = random.integers(0, 10_000, (2000, 4)).tolist()
    found = [coins(random.integers(0, 10_000, 50), each, [44, 5, 9]).mean() for each in contexts]
    assert np.mean(found) == pytest.approx(0.5, abs=0.01)
    found = [coins(range(10_000), each, [44, 5, 9]).mean() for each in contexts[:200]]
    assert np.mean(found) == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(("n_vocab", "n", "layers"), [(2, 9, 1), (100, 4, 1), (100, 9, 2)])
def test_drawn_tokens_have_the_bias_that_theory_says(n_vocab: int, n: int, layers: int) -> None:
    """As transformers' "bias test" asks: from uniform rows, a layer's mean is 1/2 + (1 - 1/V) / 4."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 65536, layers).tolist()
    means = []
    for _ in range(3000):
        context = random.integers(0, 10**9, n).tolist()
        shares = np.array(tournament([1 << 40] * n_vocab, range(n_vocab), context, numbers))
        means.append(shares @ coins(range(n_vocab), context, numbers) / shares.sum())
    expected = 0.5 + 0.25 * (1 - 1 / n_vocab)
    np.testing.assert_allclose(np.mean(means, 0), expected, atol=0.02 if layers > 1 else 0.01)


@pytest.mark.parametrize("numbers", [[1], [654, 400, 836, 123], list(range(64))])
def test_the_host_draws_what_the_reference_does(numbers: list[int]) -> None:
    chain = S.SamplerChain([S.TopK(top_k=3), marked(2, key_of(numbers))], seed=3, completion=2)
    check_draws(chain, normal_rows(150, 70))
    history = chain.history
    assert {new_context(history[:i], i, 2) is None for i in range(150)} == {True, False}


def test_large_flat_rows_are_the_reference_s() -> None:
    chain = S.SamplerChain([marked(1)], seed=3)
    check_draws(
        chain, (np.zeros(70_000, np.float32), *normal_rows(4, 5000, 0.01), *normal_rows(4, 300, 30))
    )


def test_what_is_not_keyed_is_drawn_by_mass() -> None:
    logits = normal_rows(100, 4)
    chain = S.SamplerChain([marked(2)], seed=9)
    ordinary = 0
    for row in logits:
        plain = S.SamplerChain([S.Dist()], seed=9)
        plain.position = chain.position
        again = new_context(chain.history, chain.position, 2) is None
        token = chain.sample(row)
        if again:
            ordinary += 1
            assert token == plain.sample(row)
    assert ordinary > 60  # 16 contexts of four tokens


def test_over_keys_the_distribution_is_the_model_s() -> None:
    tokens = []
    for i in range(10_000):
        chain = S.SamplerChain([marked(1, WatermarkKey(b"key number %10d" % i))], seed=i)
        chain.accept(3, generated=True)
        tokens.append(chain.sample(logs(SHARES)))
    assert follows_shares(tokens)


def test_p_is_counted_over_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small table all keys of two layers can be tried."""
    size = 32
    small = np.random.default_rng(3).integers(0, 2, size).astype(np.uint8)
    monkeypatch.setattr(synthid, "TABLE_SIZE", size)
    monkeypatch.setattr(synthid, "table", lambda: small)
    tokens = [1, 5, 2, 2, 7, 1, 9, 30, 4, 4, 4, 8]
    scores, p = [], {}
    for pair in product(range(size), repeat=2):
        found = detect_synthid(tokens, key_of(list(pair)), ngram=1)
        scores.append(found.score)
        p[found.score] = found
    for score, found in p.items():
        assert found.p_value == pytest.approx(np.mean(np.array(scores) >= score), rel=1e-9)
        assert found.weighted_log10_p <= 0


def test_it_is_found_with_the_key_alone() -> None:
    logits = normal_rows(200, 300)
    chain = S.SamplerChain([marked()], seed=1)
    tokens = [chain.sample(row) for row in logits]
    found = detect_synthid(tokens, KEY)
    assert (found.n_tokens, found.n_scored, found.layers) == (200, 196, 30)
    assert found.log10_p < -20
    assert found.weighted_log10_p < -20
    assert found.mean < found.weighted_mean
    assert detect_synthid(tokens, b"quite another key").p_value > 1e-3
    assert detect_synthid(tokens, KEY, ngram=3).p_value > 1e-3
    plain = S.SamplerChain([S.Dist()], seed=1)
    other = detect_synthid([plain.sample(row) for row in logits], KEY)
    assert other.p_value > 1e-3
    assert other.weighted_log10_p > -3


def test_p_is_uniform_without_the_watermark() -> None:
    """Rounded up, as it takes steps; of one text, over keys."""
    tokens = np.random.default_rng(2).integers(0, 60, 80)
    p = [detect_synthid(tokens, b"key number %10d" % i).p_value for i in range(300)]
    for limit in (0.5, 0.1, 0.02):
        share = np.mean(np.array(p) <= limit)
        assert share == pytest.approx(limit, abs=4 * (limit / 300) ** 0.5)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3, 4]])
def test_a_short_text_says_nothing(tokens: list[int]) -> None:
    found = detect_synthid(tokens, KEY)
    assert (found.n_scored, found.score, found.p_value, found.weighted_log10_p) == (0, 0, 1, 0)


def test_shares_have_40_bits() -> None:
    for weights in ([3 << 45, 5 << 44, 1 << 44], [1 << 40, 1], [(1 << 41) - 1, 1 << 50]):
        shares = tournament(weights, range(len(weights)), [1, 2], [])
        assert shares == [w >> sum(weights).bit_length() - 40 for w in weights]


def test_the_mean_of_a_single_coin() -> None:
    for token in range(8):
        told = detect_synthid([5, token], key_of([7]), ngram=1)
        coin = int(coins([token], [5], [7])[0, 0])
        assert (told.n_scored, told.mean, told.weighted_mean) == (1, coin, coin)


def test_numbers_come_from_a_list_or_from_the_secret() -> None:
    assert key_of([65536 + 7, 3]).numbers == (7, 3)
    assert len(KEY.numbers) == 30
    assert max(KEY.numbers) < 65536
    assert WatermarkKey(b"[no JSON, so a secret]").numbers != KEY.numbers


def test_just_what_a_list_may_hold() -> None:
    assert key_of([2**63 - 1, 0]).numbers == (0xFFFF, 0)
    assert key_of([*range(64)]).numbers == (*range(64),)
    assert key_of([5]).numbers == (5,)
    with pytest.raises(ParameterError, match="each 0 to 2\\^63 - 1"):
        key_of([2**63])


@pytest.mark.parametrize(
    "numbers", [[], [-1, 2, 3, 4, 5, 6], [0.5] * 9, list(range(65)), [True] * 9]
)
def test_a_list_has_whole_numbers(numbers: list[Any]) -> None:
    with pytest.raises(ParameterError, match="give 1 to 64 whole numbers"):
        key_of(numbers)


@pytest.mark.parametrize("secret", [b"[654, 400, 836, 123,]", b" [654, 400, 836 123]", b"[" * 4000])
def test_a_list_with_a_slip_is_no_secret(secret: bytes) -> None:
    with pytest.raises(ParameterError, match="give 1 to 64 whole numbers"):
        WatermarkKey(secret)


def test_spaces_around_a_list_change_no_numbers() -> None:
    assert WatermarkKey(b" [654, 400, 836]").numbers == WatermarkKey(b"[654, 400, 836] ").numbers


def test_explanations_say_what_a_draw_is_keyed_by() -> None:
    chain = S.SamplerChain([S.TopK(top_k=5), marked(2, key_of([1, 2, 3]))], seed=1)
    first, *others = normal_rows(12, 30)
    assert "synthid: an ordinary draw" in str(chain.explain(first))
    for row in (first, *others):
        chain.sample(row)
        found = chain.explain(row)
        draw = found.draw
        if draw is None or draw.mark is None or draw.mark.score is None:
            continue
        context = [token.id for token in draw.mark.context]
        assert context == list(chain.history[-2:])
        assert draw.mark.score == pytest.approx(coins([draw.token.id], context, [1, 2, 3]).mean())
        assert f"mean coin {draw.mark.score:.4f} after [{context[0]}]" in str(found)
        assert found.to_dict()["draw"]["mark"]["score"] == draw.mark.score
        break
    else:
        pytest.fail("no draw was keyed")


def test_the_bound_of_the_weighted_mean_is_the_least_over_all_tilts() -> None:
    """Chernoff's, by the sums of all keys."""
    h = np.random.default_rng(4).integers(0, 2**64, 40, dtype=np.uint64)
    layer, weights = synthid._Layer(h), np.array([1.75, 1.0, 0.25])
    sums = layer.least + np.arange(len(layer.chance))
    for score in (45.0, 60.0, 75.0, 90.0):
        bounds = [
            sum(np.log(layer.chance @ np.exp(t * w * sums)) for w in weights) - t * score
            for t in np.linspace(0, 2, 4001)
        ]
        assert layer.log_bound(score, weights) == pytest.approx(min(0.0, *bounds), abs=1e-5)


def test_the_bound_is_the_same_in_any_order_of_layers() -> None:
    """Sums of floats are exact before they are rounded, as `sum` is not, and rounds by Python's version."""
    h = np.random.default_rng(5).integers(0, 2**64, 40, dtype=np.uint64)
    layer, weights = synthid._Layer(h), np.linspace(10.0, 1.0, 30) / 5.5
    rng = np.random.default_rng(6)
    bounds = {layer.log_bound(700.0, rng.permutation(weights)).hex() for _ in range(20)}
    assert len(bounds) == 1
    assert layer.log_bound(700.0, weights) < 0


def test_what_is_found_is_as_recorded() -> None:
    tokens = np.random.default_rng(15).integers(0, 50, 120).tolist()
    found = detect_synthid(tokens, KEY, ngram=2)
    assert (found.n_scored, found.score) == (118, 1806.0)
    told = (found.mean, found.weighted_mean, found.log10_p, found.weighted_log10_p)
    recorded = (0.5101694915254237, 0.5138515488018702, -0.9691270273269161, -0.5031655153711675)
    assert told == pytest.approx(recorded, rel=1e-6)
