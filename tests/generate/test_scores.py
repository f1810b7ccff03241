"""What texts are scored by, by itself: groups of texts, ratios of chains, chunks."""

from __future__ import annotations

import math
import random
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ParameterError
from aleator.generate import Batch, Context, scores, vectors
from aleator.generate.logprobs import log_softmax, top_logprobs
from aleator.generate.scores import (
    LARGEST,
    ROWS_BYTES,
    ChainScore,
    Importance,
    ScoredText,
    chain_scores_of,
    chunks_of,
    groups,
    perplexities,
    prompt_logprobs_of,
    rows_at_once,
    rows_of,
    scores_of,
)
from aleator.samplers import SamplerChain
from aleator.samplers import index as S
from aleator.samplers.kept_tokens import KeptRow
from tests.conftest import MakeDecoder


def test_groups_are_as_long_as_sequences_and_cells_allow() -> None:
    dice = random.Random(3)
    assert list(groups([], 1, 1)) == []
    for _ in range(300):
        texts = [[0] * dice.randrange(1, 6) for _ in range(dice.randrange(9))]
        most, cells = dice.randrange(1, 5), dice.randrange(1, 12)
        made = list(groups(texts, most, cells))
        assert [i for group in made for i in group] == list(range(len(texts)))
        for group, following in zip_longest(made, made[1:]):
            taken = sum(len(texts[i]) for i in group)
            assert len(group) == 1 or (len(group) <= most and taken <= cells)
            if following is not None:
                assert len(group) == most or taken + len(texts[following[0]]) > cells


def test_rows_at_once() -> None:
    assert rows_at_once(1) == ROWS_BYTES // 4
    assert rows_at_once(ROWS_BYTES // 36) == 9
    assert rows_at_once(ROWS_BYTES // 32) == rows_at_once(ROWS_BYTES) == 8


def scored(*logprobs: float) -> ChainScore:
    kept: Any = tuple(SimpleNamespace(logprob=each) for each in logprobs)
    return ChainScore((1,) * len(logprobs), logprobs, kept)


@pytest.mark.parametrize(
    ("own", "other", "log", "ratio"),
    [
        (-2.0, -1.0, 1.0, math.e),
        (-1.0, -math.inf, -math.inf, 0.0),
        (-math.inf, -math.inf, -math.inf, 0.0),
        (-math.inf, -1.0, math.inf, math.inf),
        (-LARGEST, 0.0, LARGEST, math.inf),
        (-700.0, 0.0, 700.0, math.exp(700.0)),
    ],
)
def test_ratios_of_tokens(own: float, other: float, log: float, ratio: float) -> None:
    found = Importance(behaviour=scored(own), target=scored(other))
    assert found.log_ratios == (log,)
    assert found.ratios == (ratio,)
    assert found.ratio == ratio


def test_the_ratio_of_a_text() -> None:
    found = Importance(behaviour=scored(-1.0, -3.0), target=scored(-2.0, -1.5))
    assert found.ratio == pytest.approx(math.exp(0.5))
    assert found.behaviour.logprob == -4.0
    lost = Importance(behaviour=scored(-math.inf, -1.0), target=scored(-1.0, -math.inf))
    assert lost.ratio == 0.0


def test_chunks() -> None:
    assert chunks_of(range(11), 4, None) == 2
    assert chunks_of(range(12), 4, None) == 3
    assert chunks_of(range(12), 4, 1) == 1
    assert chunks_of(range(12), 4, 9) == 3
    assert chunks_of(range(4), 4, None) == 1
    for n_ctx, chunks, says in ((3, None, "at least 4"), (4, 0, "at least 1"), (13, None, "fewer")):
        with pytest.raises(ParameterError, match=says):
            chunks_of(range(12), n_ctx, chunks)


@pytest.mark.parametrize("pooling", vectors.POOLING)
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_pooled(pooling: str, normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(1, 2, 3), (4,), (5, 6)]
    states = {(i, at): np.array([i + 1.0, at - 2.0, 0.0]) for i in range(3) for at in range(3)}
    states[1, 0] = np.zeros(3)

    def rows(_: object, wanted: Any) -> Any:
        for i, each in enumerate(wanted):
            for at in range(each.first, len(each.tokens)):
                yield i, at, states[i, at]

    monkeypatch.setattr(vectors, "rows_of", rows)
    context: Any = SimpleNamespace(decoder=SimpleNamespace(config=SimpleNamespace(n_embd=3)))
    found = np.stack(list(vectors.pooled_of_decoder(context, texts, pooling)))
    found = vectors.normalised(found) if normalize else found.astype(np.float32)
    for i, tokens in enumerate(texts):
        own = np.array([states[i, at] for at in range(len(tokens))])
        by = np.arange(1, len(own) + 1)
        expected = {
            "mean": own.mean(axis=0),
            "cls": own[0],
            "last": own[-1],
            "max": own.max(axis=0),
            "weightedmean": (own.T * by).sum(axis=1) / by.sum(),
            "mean_sqrt_len": own.sum(axis=0) / np.sqrt(len(own)),
        }[pooling]
        assert np.array_equal(vectors.pooled(own, pooling), expected)
        length = np.linalg.norm(expected) if normalize else 1.0
        np.testing.assert_allclose(found[i], expected / (length or 1.0), rtol=1e-6)
    assert found.dtype == np.float32


def test_states_that_are_not_pooled_stay_as_they_are(make_decoder: MakeDecoder) -> None:
    decoder = make_decoder("llama")
    made = Context(decoder, n_ctx=64, n_seq_max=3, embeddings=True, n_threads=1)
    alone = Context(decoder, n_ctx=64, embeddings=True, n_threads=1)
    texts = [(3, 5, 7), (4,), (5, 6)]
    for tokens, states in zip(texts, vectors.pooled_of_decoder(made, texts, "none"), strict=True):
        alone.cache.clear()
        own = np.array(alone.decode(Batch.one(tokens, 0, logits=True)))
        assert states.shape == (len(tokens), 64)
        assert np.array_equal(states, own)
        assert vectors.pooled(own, "none") is own


class Plain:
    """A context whose decodes are counted, and what it gives of a text that is computed alone."""

    def __init__(self, decoder: Any) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.context = Context(decoder, n_ctx=200, n_seq_max=6, n_ubatch=12, n_threads=1)
        self.other = Context(decoder, n_ctx=64, n_threads=1)
        self.n_vocab, decode = self.context.n_vocab, self.context.decode

        def counted(batch: Batch, draw: Any = None) -> Any:
            self.sizes.append((len(batch), len(batch.outputs())))
            return decode(batch, draw)

        self.context.decode = counted  # type: ignore[method-assign]

    def rows(self, tokens: Any) -> Any:
        self.other.cache.clear()
        return np.array(self.other.decode(Batch.one(tokens, 0, logits=True)))


def test_rows_of_several_texts_are_those_of_each(make_decoder: MakeDecoder) -> None:
    """Equal beginnings are computed once, and all in parts; nothing is left afterwards."""
    plain, dice = Plain(make_decoder("llama")), random.Random(4)
    for _ in range(6):
        known = [dice.randrange(60) for _ in range(12)]
        texts = []
        for _ in range(dice.randint(1, 6)):
            first = dice.randrange(9)
            beginning = known[:first] if dice.random() < 0.7 else known[:first][::-1]
            texts.append(
                ScoredText((*beginning, *dice.choices(range(60), k=dice.randint(1, 5))), first)
            )
        plain.sizes.clear()
        found = list(rows_of(plain.context, texts))
        assert [each[:2] for each in found] == [
            (i, at) for i, text in enumerate(texts) for at in range(text.first, len(text.tokens))
        ]
        for i, at, row in found:
            assert np.array_equal(row, plain.rows(texts[i].tokens)[at])
        before = sum(map(len, {text.tokens[: text.first] for text in texts}))
        parts = [(min(12, before - i), 0) for i in range(0, before, 12)]
        parts += [(min(12, len(found) - i),) * 2 for i in range(0, len(found), 12)]
        assert plain.sizes == parts
        assert plain.context.cache.used == 0
    rows: Any = rows_of(plain.context, [ScoredText((1, 2, 3)), ScoredText((4, 5))])
    next(rows)
    rows.close()
    assert plain.context.cache.used == 0


def test_scores_are_those_of_the_rows_before_the_tokens(make_decoder: MakeDecoder) -> None:
    plain = Plain(make_decoder("llama"))
    best = [3]
    for _ in range(5):
        best.append(int(plain.rows(best)[-1].argmax()))
    texts = [
        ((3, 1, 4, 1, 5), 1),
        (tuple(best), 1),
        (tuple(best), 4),
        ((9, 2), 2),
        ((*best[:4], 7, best[5]), 2),
    ]
    made = scores_of(plain.context, texts)
    samplers = [S.TopK(top_k=3), S.Temperature(temperature=0.7), S.Dist()]
    chains = [SamplerChain(samplers, seed=i) for i in range(len(texts))]
    for chain, (tokens, prompt) in zip(chains, texts, strict=True):
        chain.accept_many(tokens[:prompt])
    twins = [chain.clone() for chain in chains]
    kept = chain_scores_of(plain.context, texts, chains)
    for (tokens, prompt), score, own, chain in zip(texts, made, kept, twins, strict=True):
        rows = plain.rows(tokens)[prompt - 1 : -1]
        wanted = [log_softmax(row)[token] for row, token in zip(rows, tokens[prompt:], strict=True)]
        assert score.tokens == own.tokens == tokens[prompt:]
        assert score.logprobs == own.logprobs == tuple(wanted)
        assert score.logprob == math.fsum(wanted)
        assert score.greedy == all(map(int.__eq__, tokens[prompt:], rows.argmax(1).tolist()))
        for row, token, told in zip(rows, tokens[prompt:], own.kept, strict=True):
            assert told == KeptRow.of(chain, row).with_token(token)
            chain.accept(token, generated=True)
    assert [score.greedy for score in made] == [False, True, True, True, False]
    whole = [tokens for tokens, _ in texts]
    for tokens, all_told in zip(
        whole, prompt_logprobs_of(plain.context, whole, 2, bytes), strict=True
    ):
        pairs = zip(plain.rows(tokens), tokens[1:], strict=False)
        assert all_told == [None, *(top_logprobs(row, token, 2, bytes) for row, token in pairs)]


@pytest.mark.parametrize("n_ctx", [4, 5, 16])
def test_perplexities_are_those_of_the_second_halves(
    n_ctx: int, make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tokens = Plain(make_decoder("llama")), random.Random(1).choices(range(60), k=50)
    monkeypatch.setattr(scores, "ROWS_BYTES", 4 * plain.n_vocab * 3)
    losses: list[float] = []
    bos = None if n_ctx == 5 else 1
    for i, made in enumerate(perplexities(plain.context, tokens, n_ctx, 3, bos)):
        part = tokens[i * n_ctx : (i + 1) * n_ctx]
        part[0] = part[0] if bos is None else bos
        rows = plain.rows(part)
        losses += [-log_softmax(rows[at])[part[at + 1]] for at in range(n_ctx // 2, n_ctx - 1)]
        told = made.n_scored, made.n_ctx, made.chunk, made.n_chunks
        assert told == (len(losses), n_ctx, i + 1, 3)
        assert made.n_read == n_ctx * (i + 1)
        assert made.value == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
        spread = np.std(losses, ddof=0) / (len(losses) - 1) ** 0.5 if len(losses) > 1 else math.nan
        assert made.error == pytest.approx(made.value * spread, rel=1e-3, nan_ok=True)
        last = n_ctx - n_ctx // 2 - 1
        assert plain.sizes == [
            (n_ctx // 2, 1),
            *((min(3, last - j),) * 2 for j in range(0, last, 3)),
        ]
        plain.sizes.clear()
