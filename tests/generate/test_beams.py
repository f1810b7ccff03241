"""Beams against a plain search that computes every text anew, and stochastic beams against the whole tree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

import aleator
from aleator import ContextFull, LanguageModel, ParameterError, SamplingParams
from aleator.core.errors import Aborted
from aleator.generate import Batch, Context
from aleator.generate.beam_chain import ranked
from aleator.generate.beam_options import BeamOptions
from aleator.generate.beams import Beam, BeamSearch, cells_of_beams, longest
from aleator.generate.completion import Completion, Request
from aleator.generate.logprobs import log_softmax
from aleator.generate.options import GenerateOptions
from aleator.samplers import Candidates, SamplerChain

PROMPT = "ROMEO:\nWhat"
Texts = list[tuple[tuple[int, ...], float]]


def row_of(model: LanguageModel, tokens: tuple[int, ...]) -> Any:
    """Logits after a text, computed in a context of its own."""
    context = Context(model, n_ctx=len(tokens))
    return np.asarray(context.decode(Batch.one(list(tokens))))[-1]


def probabilities(
    model: LanguageModel, prompt: tuple[int, ...], made: tuple[int, ...], params: SamplingParams
) -> Iterator[tuple[int, float]]:
    """What a chain leaves after a prompt and tokens: (token, log-probability), ids ascending."""
    chain = params.chain(model.tokenizer if model.vocab.has_text else model.vocab)
    chain.accept_many(prompt)
    chain.accept_many(made, generated=True)
    candidates = Candidates(row_of(model, prompt + made))
    chain.apply(candidates)
    logprobs = log_softmax(candidates.logits)
    yield from zip(candidates.ids.tolist(), logprobs.tolist(), strict=True)


def plain(
    model: LanguageModel,
    prompt: tuple[int, ...],
    n: int,
    most: int,
    penalty: float = 1.0,
    early: bool | str = False,
    ends: tuple[int, ...] = (),
    **sampling: Any,
) -> Texts:
    """A search as transformers defines it, without a cache: all children of all beams, sorted."""
    params = SamplingParams(**sampling)
    running: Texts = [((), 0.0)]
    finished: Texts = []
    for length in range(1, most + 1):
        children = [
            (-(total + logprob), i, token)
            for i, (made, total) in enumerate(running)
            for token, logprob in probabilities(model, prompt, made, params)
        ]
        goes_on: Texts = []
        for rank, (negative, i, token) in enumerate(sorted(children)):
            tokens = (*running[i][0], token)
            if token not in ends and length < most:
                goes_on.append((tokens, -negative))
            elif rank < n:
                finished.append((tokens, -negative / length**penalty))
        finished = sorted(finished, key=lambda each: -each[1])[:n]
        running = goes_on[:n]
        if not running or (early is True and len(finished) == n):
            break
        far = early == "never" and penalty > 0
        best = running[0][1] / (most if far else length) ** penalty
        if len(finished) == n and best <= finished[-1][1]:
            break
    return finished


def ends_of(model: LanguageModel) -> tuple[int, ...]:
    """Tokens that are common in the bundled model's texts, so that texts end early."""
    return tuple(model.tokenizer.encode(word, add_special=False)[0] for word in (",", "\n", "!"))


def pairs(found: list[Beam]) -> Texts:
    return [(each.tokens, each.score) for each in found]


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [1.0, 0.0, -1.5, 2.0])
def test_beams_are_those_of_a_plain_search(
    model: LanguageModel, penalty: float, early: bool | str
) -> None:
    ends, prompt = ends_of(model), model.prompt_tokens(PROMPT)
    found = model.beams(
        PROMPT,
        num_beams=3,
        num_return_sequences=3,
        max_tokens=8,
        length_penalty=penalty,
        early_stopping=early,
        stop_token_ids=ends,
    )
    assert pairs(found) == plain(model, prompt, 3, 8, penalty, early, (*ends, *model.vocab.eog))
    for each in found:
        total = 0.0
        for logprob in each.logprobs:
            total += logprob
        assert each.logprob == total
        assert each.score == total / len(each.tokens) ** penalty


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 2},
        {"temperature": 0.6, "top_p": 0.8},
        {"repetition_penalty": 1.5, "penalty_last_n": -1},
        {"min_tokens": 4, "no_repeat_ngram_size": 1},
        {"logit_bias": {15: 9.0}, "min_p": 0.02},
    ],
)
def test_samplers_decide_on_the_probabilities(
    model: LanguageModel, sampling: dict[str, Any]
) -> None:
    found = model.beams(PROMPT, num_beams=2, num_return_sequences=2, max_tokens=6, **sampling)
    prompt = model.prompt_tokens(PROMPT)
    assert pairs(found) == plain(model, prompt, 2, 6, ends=tuple(model.vocab.eog), **sampling)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "jamba"])
def test_windows_and_states_are_forked_exactly(name: str, tmp_path: Path) -> None:
    model = aleator.load(write_model(tmp_path / "m.gguf", SPECS[name]), n_threads=1, n_ctx=64)
    prompt = (3, 5, 7, 11, 2, 9, 4, 8)
    found = model.beams(prompt, num_beams=4, num_return_sequences=4, max_tokens=7)
    assert pairs(found) == plain(model, prompt, 4, 7)


def test_one_beam_is_greedy(model: LanguageModel) -> None:
    (beam,) = model.beams(PROMPT, num_beams=1, max_tokens=12)
    greedy = model.generate(PROMPT, temperature=0, max_tokens=12, preset="greedy")
    assert (list(beam.tokens), beam.text) == (greedy.tokens, greedy.text)
    assert beam.stop_reason == "length"
    assert beam.complete is None


def decodes(
    monkeypatch: pytest.MonkeyPatch, model: LanguageModel, **options: Any
) -> tuple[int, list[Beam]]:
    """Steps of a search, and what it finds."""
    made, decode = [], Context.decode

    def counted(context: Context, batch: Batch) -> Any:
        made.append(len(batch))
        return decode(context, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", counted)
        found = model.beams(PROMPT, num_beams=3, num_return_sequences=3, max_tokens=24, **options)
    return len(made), found


def test_early_stopping_ends_sooner(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ends_of(model)
    steps = {
        early: decodes(
            monkeypatch, model, early_stopping=early, stop_token_ids=ends, length_penalty=1.0
        )[0]
        for early in (True, False, "never")
    }
    assert steps[True] <= steps[False] < steps["never"] <= 24
    # A score without a penalty only falls, so what stands at the end is what can be at best.
    canonical = decodes(
        monkeypatch, model, early_stopping="never", stop_token_ids=ends, length_penalty=0.0
    )
    longer = decodes(
        monkeypatch, model, early_stopping=False, stop_token_ids=ends, length_penalty=0.0
    )
    assert canonical == longer


def test_ends_and_stop_strings(model: LanguageModel) -> None:
    (comma, line, _), eog = ends_of(model), model.vocab.eog
    found = model.beams(
        PROMPT, num_beams=4, num_return_sequences=4, max_tokens=12, stop=["I"],
        early_stopping="never",
    )  # fmt: skip
    assert {each.stop_reason for each in found} == {"stop", "length"}
    for each in found:
        whole = model.tokenizer.decode(each.tokens)
        assert each.text == whole.partition("I")[0]
        assert (each.stop_reason == "stop") == ("I" in whole)
    (ended,) = model.beams(PROMPT, num_beams=2, max_tokens=30, stop_token_ids=[comma])
    assert ended.tokens[-1] == comma
    assert ended.stop_reason == "stop_token"
    assert line not in eog
    # The token that ends a text counts for its score, and is not in its text.
    biased = model.beams(PROMPT, num_beams=2, logit_bias={next(iter(eog)): 40.0})
    assert (biased[0].text, len(biased[0].tokens), biased[0].stop_reason) == ("", 1, "eog")


def test_all_texts_of_a_grammar_are_found(model: LanguageModel) -> None:
    found = model.beams(
        "Say ",
        num_beams=64,
        num_return_sequences=64,
        early_stopping="never",
        grammar='root ::= "aye" | "no" | "never"',
    )
    assert {each.text for each in found} == {"aye", "no", "never"}
    assert len({each.tokens for each in found}) == len(found) > 3  # spellings
    assert math.isclose(math.fsum(math.exp(each.logprob) for each in found), 1.0, rel_tol=1e-12)
    assert all(each.complete and each.stop_reason == "grammar" for each in found)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    short = model.beams("Say ", num_beams=2, max_tokens=1, regex="[a-z]{30}")
    assert (short[0].complete, short[0].stop_reason) == (False, "length")


def test_the_context_ends_texts_and_refuses_prompts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["llama"])
    model = aleator.load(path, n_threads=1, n_ctx=16)
    (found,) = model.beams(list(range(3, 13)), num_beams=3)
    assert (len(found.tokens), found.stop_reason) == (7, "context")
    with pytest.raises(ContextFull, match="20 tokens and the context 16 positions"):
        model.beams(list(range(3, 23)))


def test_equal_scores_stand_by_beam_and_token() -> None:
    scores = np.array([1.0, 2.0, 2.0, -math.inf, 1.0, 2.0, 0.5])
    for first in (1, 2, 3, 9):
        assert list(ranked(scores, first)) == [1, 2, 5, 0, 4, 6]
    assert list(ranked(np.full(3, -math.inf), 2)) == []


def test_ties_of_a_whole_search(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "aleator.generate.beam_chain.log_softmax", lambda z: np.full(len(z), -math.log(len(z)))
    )
    found = model.beams(PROMPT, num_beams=3, num_return_sequences=3, max_tokens=2, top_k=4)
    prompt = model.prompt_tokens(PROMPT)
    first = sorted(t for t, _ in probabilities(model, prompt, (), SamplingParams(top_k=4)))
    second = [t for t, _ in probabilities(model, prompt, (first[0],), SamplingParams(top_k=4))]
    assert [each.tokens for each in found] == [(first[0], token) for token in second[:3]]


# Stochastic beams


# The cache


def search_in(
    context: Context,
    model: LanguageModel,
    params: SamplingParams | None = None,
    max_tokens: int = 6,
    **options: Any,
) -> BeamSearch:
    """A search in a context."""
    chosen = params or SamplingParams(seed=1)
    request = Request(model.prompt_tokens(PROMPT), chosen, GenerateOptions(max_tokens=max_tokens))
    chain = chosen.chain(model.tokenizer)
    chain.accept_many(request.tokens)

    def new_completion(chain: SamplerChain) -> Completion:
        return Completion(request, chain, model.tokenizer.stream(), model.vocab)

    n_seq_max, n_tokens = context.n_seq_max, len(model.vocab)
    chosen_options = BeamOptions(**options)
    return BeamSearch(n_seq_max, request, chain, chosen_options, new_completion, 64, n_tokens)


def test_errors_leave_the_cache_as_it_was(model: LanguageModel) -> None:
    stop: list[int] = []
    context = Context(
        model, n_ctx=128, n_seq_max=5, abort_callback=lambda: bool(stop) and stop.pop() == 0
    )
    context.decode(Batch.one(list(model.prompt_tokens("To be")), 0, seq=4))
    before, used = context.state_write(), context.cache.used
    for step in (1, 3):
        stop[:] = [0, *[1] * (step - 1)]
        with pytest.raises(Aborted):
            search_in(context, model, num_beams=4).run(context, context.cache)
        assert (context.state_write(), context.cache.used) == (before, used)
    stop.clear()

    def interrupted() -> bool:
        raise KeyboardInterrupt

    context.abort_callback = interrupted
    with pytest.raises(KeyboardInterrupt):
        search_in(context, model, num_beams=4).run(context, context.cache)
    assert (context.state_write(), context.cache.used) == (before, used)
    context.abort_callback = None
    search = search_in(context, model, num_beams=4, num_return_sequences=4)
    found = search.run(context, context.cache)
    assert found == model.beams(PROMPT, num_beams=4, num_return_sequences=4, max_tokens=6, seed=1)
    assert (context.state_write(), context.cache.used) == (before, used)


def test_forks_share_cells(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, most, n = model.prompt_tokens(PROMPT), 6, 4
    context, used = model.context(n_ctx=len(prompt) + n * (most - 1), n_seq_max=n), []
    decode = Context.decode

    def watched(context: Context, batch: Batch) -> Any:
        made = decode(context, batch)
        used.append(context.cache.used)
        return made

    monkeypatch.setattr(Context, "decode", watched)
    search_in(context, model, num_beams=n, max_tokens=most).run(context, context.cache)
    assert used[0] == len(prompt)
    assert all(cells <= len(prompt) + n * step for step, cells in enumerate(used))
    assert context.cache.used == 0


def test_the_models_own_context_and_prompt_cache_stay(model: LanguageModel) -> None:
    whole = model.generate(PROMPT, max_tokens=12, seed=1).text
    under_way = model.generate(PROMPT, max_tokens=12, seed=1)
    begun = next(under_way)
    first = model.beams(PROMPT, max_tokens=5)
    assert begun + "".join(under_way) == whole
    assert model.beams(PROMPT, max_tokens=5)[0].tokens == first[0].tokens
    cold = aleator.load(n_threads=1, prompt_cache=False)
    assert pairs(cold.beams(PROMPT, max_tokens=5)) == pairs(first)
    streams = aleator.load(n_threads=1, policy="streams", prompt_cache=False)
    assert pairs(streams.beams(PROMPT, max_tokens=5)) == pairs(first)


def test_too_few_or_used_sequences_are_refused(model: LanguageModel) -> None:
    context = model.context(n_ctx=64, n_seq_max=2)
    with pytest.raises(ParameterError, match=r"num_beams=3: .* 2 sequences.*n_seq_max"):
        search_in(context, model, num_beams=3)
    context.decode(Batch.one([1, 2], 0, seq=1))
    with pytest.raises(ParameterError, match="sequence 1 holds tokens, and beams need 0 to 1"):
        search_in(context, model, num_beams=2).run(context, context.cache)


@pytest.mark.parametrize(
    ("options", "name", "says"),
    [
        ({"num_beams": 0}, "num_beams", "1 to 4096"),
        ({"early_stopping": "maybe"}, "early_stopping", "True, False or 'never'"),
        ({"length_penalty": 11}, "length_penalty", "-10 to 10"),
        ({"stochastic": True, "length_penalty": 0}, "length_penalty", "leave one out"),
        ({"stochastic": True, "early_stopping": True}, "early_stopping", "leave one out"),
        ({"temperature": 0}, "temperature", "leave it out"),
        ({"preset": "greedy"}, "temperature", "leave it out"),
        ({"xtc_probability": 0.5}, "xtc_probability", "xtc draws"),
        ({"mirostat": 2}, "mirostat", "leave it out"),
        ({"draw": "gumbel"}, "draw", "beams draw none"),
        ({"phases": {"answer": {"draw": "gumbel"}}}, "draw", "beams draw none"),
        ({"adaptive_target": 0.5}, "adaptive_target", "leave it out"),
        ({"numerics": "llama.cpp"}, "numerics", "give 'portable'"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
        ({"logprobs": 3}, "logprobs", "there is no option"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(
    model: LanguageModel, options: dict[str, Any], name: str, says: str
) -> None:
    with pytest.raises(ParameterError, match=says) as error:
        model.beams(PROMPT, **options)
    assert error.value.parameter == name


def test_generate_says_where_beams_are(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match=r"beams\(\) searches"):
        model.generate(PROMPT, num_beams=4)  # type: ignore[call-arg]


def test_a_session_goes_on_with_beams(model: LanguageModel, tmp_path: Path) -> None:
    begun = model.generate(PROMPT, max_tokens=4, seed=2, temperature=1.0)
    model.save_session(tmp_path / "session", begun)
    tokens = [*begun.request.tokens, *begun.tokens]
    found = model.beams(model.load_session(tmp_path / "session"), max_tokens=5)
    assert pairs(found) == pairs(model.beams(tokens, max_tokens=5))


@pytest.mark.parametrize("longer", "xyz")
def test_one_beam_may_go_on_where_others_are_complete(
    longer: str, model: aleator.LanguageModel
) -> None:
    """A grammar of three texts, of which one takes more than a token: it is worth as much at any place."""
    ways = [letter + "w" * 6 if letter == longer else letter for letter in "xyz"]
    grammar = "root ::= " + " | ".join(f'"{way}"' for way in ways)
    found = model.beams(PROMPT, grammar=grammar, num_beams=2, num_return_sequences=2, max_tokens=12)
    assert {beam.text for beam in found} <= set(ways)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("prompt", "n_ctx", "wanted", "most"),
    [(5, 5, None, 1), (5, 9, None, 5), (5, 9, 4, 4), (5, 9, 5, 5), (5, 9, 6, 5), (1, 9, 1, 1)],
)
def test_the_longest_beam_and_the_cells_of_all(
    prompt: int, n_ctx: int, wanted: int | None, most: int
) -> None:
    """The last token of a beam needs no position, and no cell."""
    request: Any = SimpleNamespace(
        remaining=(1,) * prompt, options=SimpleNamespace(max_tokens=wanted)
    )
    assert longest(request, n_ctx) == most
    for n in (1, 3):
        assert cells_of_beams(request, n, n_ctx) == prompt + n * (most - 1)
        assert cells_of_beams(request, n, n_ctx, shared=False) == n * (prompt + most - 1)


def test_beams_that_cannot_be_have_no_length() -> None:
    request: Any = SimpleNamespace(remaining=(1,) * 5, options=SimpleNamespace(max_tokens=0))
    with pytest.raises(ContextFull, match="has 5 tokens and the context 4 positions"):
        longest(request, 4)
    with pytest.raises(ParameterError, match="max_tokens=0: beams have at least 1 token"):
        longest(request, 5)
