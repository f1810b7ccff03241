"""Scores and vectors of texts, against one token at a time in a context of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aleator import ContextFull, LanguageModel, ParameterError, _native, load
from aleator.core.cancellation import cancelled_by
from aleator.core.threads import pool
from aleator.generate import Batch, Context
from aleator.generate.logprobs import log_softmax
from aleator.generate.scores import Score, groups

PROMPTS = ["ROMEO: ", "O, he is even in my mistress' case, ", "ROMEO: "]
ENDS = ["I am a king", "Just in her case!", "To be"]


def rows(model: LanguageModel, tokens: Any, **options: Any) -> list[Any]:
    """The rows of a text's tokens, one by one."""
    context = Context(model, n_ctx=len(tokens), **options)
    return [np.asarray(context.decode(Batch.one([int(t)])))[0] for t in tokens]


def direct(model: LanguageModel, prompt: str, end: str) -> Score:
    tokens = model.prompt_tokens(prompt + end)
    n = len(model.prompt_tokens(prompt.rstrip()))
    logits = rows(model, tokens)[n - 1 : -1]
    made = [float(log_softmax(r)[t]) for r, t in zip(logits, tokens[n:], strict=True)]
    greedy = all(int(np.argmax(r)) == t for r, t in zip(logits, tokens[n:], strict=True))
    return Score(tokens[n:], tuple(made), greedy)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """With micro-batches in which a row has the same bits as alone."""
    return load(n_threads=1, n_ubatch=8)


def test_scores_are_those_of_one_token_at_a_time(model: LanguageModel) -> None:
    made = model.score(PROMPTS, ENDS)
    assert isinstance(made, list)
    for prompt, end, score in zip(PROMPTS, ENDS, made, strict=True):
        assert score == direct(model, prompt, end)
        alone = model.score(prompt, end)
        assert isinstance(alone, Score)
        assert alone == score
        assert score.logprob == math.fsum(score.logprobs) < 0
        assert not score.greedy
    # The tokens of prompt and continuation are those of the whole text.
    assert model.tokenizer.decode(made[0].tokens) == " I am a king"


def test_one_prompt_with_several_continuations(model: LanguageModel) -> None:
    made = model.score("ROMEO: ", ENDS)
    assert isinstance(made, list)
    assert all(
        score == direct(model, "ROMEO: ", end) for score, end in zip(made, ENDS, strict=True)
    )


def test_tokens_and_texts_may_go_on_from_each_other(model: LanguageModel) -> None:
    prompt, end = model.prompt_tokens("ROMEO:"), model.tokenizer.encode(" To be", add_special=False)
    wanted = model.score(list(prompt), end)
    assert isinstance(wanted, Score)
    assert wanted.tokens == tuple(end)
    assert model.score(list(prompt), " To be") == wanted
    assert model.score("ROMEO:", end) == wanted


def test_the_greedy_text_is_greedy(model: LanguageModel) -> None:
    prompt = list(model.prompt_tokens("ROMEO:"))
    tokens = model.generate(prompt, temperature=0, max_tokens=8).tokens
    made = model.score(prompt, tokens)
    assert isinstance(made, Score)
    assert made.greedy
    assert made.tokens == tuple(tokens)
    other = model.score(prompt, [*tokens[:-1], tokens[-1] ^ 1])
    assert isinstance(other, Score)
    assert not other.greedy
    whole = model.prompt_logprobs([*prompt, *tokens])
    assert list(made.logprobs) == [x.chosen.logprob for x in whole[-8:]]  # type: ignore[union-attr]


def test_logprobs_of_a_prompt(model: LanguageModel) -> None:
    texts = ["ROMEO: I am", "To be, or not"]
    both = model.prompt_logprobs(texts, top=2)
    for text, made in zip(texts, both, strict=True):
        tokens = model.prompt_tokens(text)
        assert isinstance(made, list)
        assert made[0] is None
        assert len(made) == len(tokens)
        for row, token, entry in zip(rows(model, tokens), tokens[1:], made[1:], strict=False):
            assert entry is not None
            assert entry.chosen.token == token
            assert entry.chosen.logprob == log_softmax(row)[token]
            best = np.argsort(-row, kind="stable")[:2]
            assert [x.token for x in entry.top] == best.tolist()
    assert model.prompt_logprobs("a")[0] is None
    assert model.prompt_logprobs([5]) == [None]  # nothing is computed for a single token
    longer = [5, 6, 7]
    assert model.prompt_logprobs([[5], longer, [6]], top=1) == [
        [None],
        model.prompt_logprobs(longer, top=1),
        [None],
    ]


def output(decoder: Any, hidden: Any) -> Any:
    """The output matrix times hidden states."""
    made = np.empty((len(hidden), decoder.config.n_vocab), np.float32)
    _native.linear(pool(1), decoder.head.matrix, np.asarray(hidden), made)
    return made


@pytest.mark.parametrize("name", ["llama", "mamba", "gemma3"])
def test_vectors_are_what_the_output_matrix_gets(name: str, make_decoder: Any) -> None:
    decoder = make_decoder(name)
    tokens = [5, 9, 2, 7, 7, 1]
    batch = Batch.one(tokens, logits=True)
    hidden = Context(decoder, n_ctx=16, embeddings=True).decode(batch)
    logits = Context(decoder, n_ctx=16).decode(batch)
    assert tuple(hidden.shape) == (len(tokens), decoder.config.n_embd)
    found = output(decoder, hidden)
    cap = decoder.config.logit_softcap
    found = np.tanh(found / cap) * cap if cap else found
    assert np.allclose(found, logits, rtol=1e-5, atol=1e-5)


def test_hidden_states_have_the_bits_of_the_decoder(model: LanguageModel) -> None:
    """The identity changes no bit: the output matrix makes the logits of them."""
    tokens = model.prompt_tokens("ROMEO:")
    hidden = rows(model, tokens, embeddings=True)
    for state, logits in zip(hidden, rows(model, tokens), strict=True):
        assert np.array_equal(output(model.decoder, state[None])[0], logits)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_of_texts(model: LanguageModel, pooling: str) -> None:
    texts = ["To be, or not to be", "ROMEO", "A horse! a horse! my kingdom for a horse!"]
    made = model.embed(texts, pooling, normalize=False)
    assert made.shape == (3, 256)
    assert made.dtype == np.float32
    for text, vector in zip(texts, made, strict=True):
        states = np.array(rows(model, model.prompt_tokens(text), embeddings=True), np.float64)
        wanted = states.mean(0) if pooling == "mean" else states[-1]
        assert np.array_equal(vector, wanted.astype(np.float32))
    unit = model.embed(texts, pooling)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(unit * np.linalg.norm(made, axis=1, keepdims=True), made, atol=1e-4)
    assert np.array_equal(model.embed(texts[1], pooling), unit[1])


def test_texts_go_in_groups() -> None:
    texts = [range(n) for n in (3, 4, 9, 1, 1, 1, 1)]
    assert list(groups(texts, 3, 8)) == [range(2), range(2, 3), range(3, 6), range(6, 7)]
    assert list(groups([], 3, 8)) == []


def test_more_texts_than_are_computed_together(model: LanguageModel) -> None:
    texts = [f"{name}: I am" for name in ("ROMEO", "JULIET", "NURSE") for _ in range(13)]
    made = model.embed(texts)
    assert len(made) == 39
    assert np.array_equal(made[0], made[12])
    assert not np.allclose(made[0], made[13], atol=1e-2)


def test_wrong_values(model: LanguageModel) -> None:
    for call, match in (
        (lambda: model.embed("a", "least"), "pooling='least': give 'mean' or 'cls' or 'last'"),
        (lambda: model.embed("a", normalize=1), "normalize=1"),  # type: ignore[arg-type]
        (lambda: model.embed([]), "texts is empty"),
        (lambda: model.score(["a", "b"], ["c"]), "continuation has 1 texts for 2 prompts"),
        (lambda: model.score("a", []), "continuation is empty"),
        (lambda: model.score("a", 3), "prompt=3"),  # type: ignore[arg-type]
        (lambda: model.prompt_logprobs("a", top=-1), "top=-1: give 0 to 2048"),
    ):
        with pytest.raises(ParameterError, match=match):
            call()
    small = load(n_ctx=8, n_threads=1)
    with pytest.raises(ContextFull, match="and the context 8 positions"):
        small.embed("To be, or not to be, that is the question")


def test_work_that_is_given_up_leaves_nothing_behind(model: LanguageModel) -> None:
    text = "My lord, the king! " * 60  # more than one batch
    left = [None]
    with cancelled_by(lambda: left.pop()), pytest.raises(IndexError):
        model.embed(text)
    assert not left
    assert np.asarray(model.embed("My lord")).shape == (model.decoder.config.n_embd,)
