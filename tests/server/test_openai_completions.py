"""``/v1/completions``: the texts and log-probabilities of ``generate``, in OpenAI's form."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
import threading
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from starlette.requests import Request

import aleator
from aleator.generate.logprobs import Logprobs
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_infill import infilling
from aleator.server.vectors import vectors_of
from aleator.text.tokenizer import Tokenizer
from tests.server.conftest import Client, MakeClient
from tests.server.live import until

PATH = "/v1/completions"
ROMEO: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 20, "seed": 7}


def test_text_and_logprobs_are_those_of_generate(
    client: Client, model: aleator.LanguageModel
) -> None:
    alone = model.generate("ROMEO:", max_tokens=20, seed=7, logprobs=3, temperature=1.5, top_k=0)
    made = client.made(PATH, **ROMEO, logprobs=3, temperature=1.5, top_k=0)
    (choice,) = made["choices"]
    assert choice["text"] == alone.text
    told = alone.logprobs or []
    lists = choice["logprobs"]
    assert lists["tokens"] == [each.chosen.text for each in told]
    assert lists["token_logprobs"] == [each.chosen.logprob for each in told]
    assert lists["top_logprobs"] == [{t.text: t.logprob for t in each.top} for each in told]
    lengths = map(len, lists["tokens"])
    assert lists["text_offset"] == [0, *itertools.accumulate(lengths)][:-1]
    assert made["usage"]["prompt_tokens"] == len(alone.request.tokens)
    assert made["usage"]["completion_tokens"] == 20
    assert (choice["finish_reason"], made["seed"]) == ("length", 7)
    assert made["system_fingerprint"] == client.service.fingerprint
    assert aleator.__version__ in made["system_fingerprint"]


def test_n_are_distinct_and_those_of_generate_batch(
    client: Client, model: aleator.LanguageModel
) -> None:
    prompts = ["ROMEO:", "JULIET:"]
    alone = model.generate_batch(prompts, n=3, max_tokens=12, seed=5)
    made = client.made(PATH, prompt=prompts, n=3, max_tokens=12, seed=5)
    assert [each["text"] for each in made["choices"]] == [each.text for each in alone]
    assert [each["index"] for each in made["choices"]] == [*range(6)]
    assert len({each["text"] for each in made["choices"]}) == 6
    assert made["usage"]["completion_tokens"] == 72
    assert made["usage"]["prompt_tokens"] == sum(len(model.prompt_tokens(p)) for p in prompts)


def test_an_unseeded_request_reports_the_seed_that_it_drew(client: Client) -> None:
    response = client.post(PATH, prompt="ROMEO:", max_tokens=12, n=2)
    first = response.json()
    assert response.headers["x-aleator-seed"] == str(first["seed"])
    again = client.made(PATH, prompt="ROMEO:", max_tokens=12, n=2, seed=first["seed"])
    assert again["choices"] == first["choices"]
    assert client.made(PATH, prompt="ROMEO:", max_tokens=1, seed=-1)["seed"] != first["seed"]


@pytest.mark.parametrize(
    ("form", "allowed"),
    [
        ({"guided_choice": ["yes?", "(no)"]}, r"yes\?|\(no\)"),
        ({"structured_outputs": {"choice": ["a.b", "c|d"]}}, r"a\.b|c\|d"),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"structured_outputs": {"json": {"enum": ["x"]}}}, '"x"'),
        ({"structured_outputs": {"grammar": 'root ::= "q"'}}, "q"),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {}}, None),
    ],
)
def test_forms_of_vllm(client: Client, form: dict[str, Any], allowed: str | None) -> None:
    (choice,) = client.made(PATH, **ROMEO, **form)["choices"]
    if allowed is None:
        assert [choice] == client.made(PATH, **ROMEO)["choices"]
    else:
        assert re.fullmatch(allowed, choice["text"])


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "regex": "b"}, "structured_outputs"),
    ],
)
def test_forms_that_are_refused(client: Client, form: dict[str, Any], name: str) -> None:
    assert client.refused(PATH, **ROMEO, **form)["param"] == name


def test_a_suffix_is_not_echoed(client: Client) -> None:
    error = client.refused("/v1/completions", prompt="a", suffix="b", echo=True)
    assert "suffix and echo are both given" in error["message"]


def test_timings_of_each_token(client: Client) -> None:
    asked = {**ROMEO, "timings_per_token": True}
    made = client.made(PATH, **asked)
    assert made["choices"] == client.made(PATH, **ROMEO)["choices"]
    assert made["timings"]["predicted_n"] == made["usage"]["completion_tokens"]
    *events, last = client.stream(PATH, **asked)
    counts = [each["timings"]["predicted_n"] for each in events]
    assert counts == list(range(1, len(counts) + 1))
    assert last["timings"]["predicted_n"] == made["usage"]["completion_tokens"]


def test_token_prompts(client: Client, model: aleator.LanguageModel) -> None:
    ids = list(model.prompt_tokens("ROMEO:"))
    for prompt in (ids, [ids]):
        made = client.made(PATH, **{**ROMEO, "prompt": prompt})
        assert made["choices"] == client.made(PATH, **ROMEO)["choices"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_gives_the_scores_of_the_prompt(
    client: Client, model: aleator.LanguageModel, as_ids: bool
) -> None:
    prompt: str | list[int] = "ROMEO:\nWhat light"
    if as_ids:
        prompt = model.tokenizer.encode("To be, or", add_special=False)
    tokens = model.prompt_tokens(prompt)
    thought = [each for each in model.prompt_logprobs(tokens, 2) if not isinstance(each, list)]
    made = client.made(PATH, prompt=prompt, max_tokens=1, logprobs=2, echo=True, seed=1)
    (choice,) = made["choices"]
    lists = choice["logprobs"]
    assert len(lists["tokens"]) == len(tokens) + 1
    assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
    for i, each in enumerate(thought):
        if each is not None:
            assert lists["token_logprobs"][i] == each.chosen.logprob
            assert lists["top_logprobs"][i] == {t.text: t.logprob for t in each.top}
    # As lm-eval's "gguf" model reads it: tokens begin where the text says.
    text = model.tokenizer.decode(tokens, skip_special=True) if isinstance(prompt, list) else prompt
    assert choice["text"].startswith(text)
    for token, offset in zip(lists["tokens"][1:], lists["text_offset"][1:], strict=True):
        assert choice["text"][offset:].startswith(token)
    assert lists["text_offset"][len(tokens)] == len(text)
    only = client.made(PATH, prompt=prompt, max_tokens=0, logprobs=2, echo=True, seed=1)
    assert only["choices"][0]["text"] == text
    assert only["choices"][0]["logprobs"]["token_logprobs"] == lists["token_logprobs"][:-1]
    assert only["choices"][0]["finish_reason"] == "length"
    assert only["usage"]["completion_tokens"] == 0


def test_a_prompt_of_one_token_has_no_scores(client: Client) -> None:
    (choice,) = client.made(PATH, prompt=[5], max_tokens=0, logprobs=1, echo=True)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None]


def test_scores_alone_are_made_by_the_engine_beside_others(client: Client) -> None:
    before = client.service.engine.stats
    asked = {"prompt": "ROMEO:\nWhat light", "max_tokens": 0, "logprobs": 2, "echo": True}
    whole = client.made(PATH, **asked)["choices"][0]
    after = client.service.engine.stats
    assert after.finished - before.finished == 1
    assert after.sampled_tokens == before.sampled_tokens
    events = client.stream(PATH, **asked)
    told = [lists for each in events for c in each["choices"] if (lists := c["logprobs"])]
    joined = [x for lists in told for x in lists["token_logprobs"]]
    assert joined == whole["logprobs"]["token_logprobs"]


def test_scores_are_those_of_score(client: Client, model: aleator.LanguageModel) -> None:
    context, end = "ROMEO:\nWhat light through", " yonder window breaks"
    score = model.score(context, end)
    assert not isinstance(score, list)
    made = client.made(PATH, prompt=context + end, max_tokens=1, logprobs=1, echo=True)
    lists = made["choices"][0]["logprobs"]
    first = next(i for i, offset in enumerate(lists["text_offset"]) if offset >= len(context))
    assert tuple(lists["token_logprobs"][first:-1]) == score.logprobs


def test_best_of(client: Client, model: aleator.LanguageModel) -> None:
    made = client.made(PATH, **ROMEO, n=2, best_of=4)
    alone = model.generate_batch(["ROMEO:"], n=4, max_tokens=20, seed=7, logprobs=0)
    means = {
        each.text: sum(t.chosen.logprob for t in each.logprobs or []) / len(each.tokens)
        for each in alone
    }
    best = sorted(means, key=lambda text: means[text], reverse=True)[:2]
    assert [each["text"] for each in made["choices"]] == best
    assert all(each["logprobs"] is None for each in made["choices"])
    assert made["usage"]["completion_tokens"] == 80


def test_stop_and_constraints(client: Client) -> None:
    whole = client.made(PATH, **ROMEO)["choices"][0]["text"]
    word = whole.split()[2]
    (choice,) = client.made(PATH, **ROMEO, stop=word)["choices"]
    assert whole.startswith(choice["text"])
    assert word not in choice["text"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)
    (choice,) = client.made(PATH, **ROMEO, guided_regex="[A-Z]{5}!")["choices"]
    assert (len(choice["text"]), choice["finish_reason"]) == (6, "stop")
    (choice,) = client.made(PATH, **ROMEO, response_format={"type": "json_object"})["choices"]
    assert choice["text"].startswith("{")


def test_names_of_control_tokens(client: Client, model: aleator.LanguageModel) -> None:
    end = model.vocab.tokens[model.vocab.eos or 0]
    prompt = f"ROMEO:{end}JULIET:"
    parsed = client.made(PATH, prompt=prompt, max_tokens=1)
    as_text = client.made(PATH, prompt=prompt, max_tokens=1, parse_special=False)
    n = len(model.prompt_tokens(prompt))
    assert as_text["usage"]["prompt_tokens"] == n
    assert (
        parsed["usage"]["prompt_tokens"] == len(model.prompt_tokens(prompt, parse_special=True)) < n
    )


def test_what_echo_tells_of_the_prompt_is_computed_once(
    client: Client, model: aleator.LanguageModel
) -> None:
    service, prompts = client.service, ["ROMEO: What light " * 9, "JULIET:"]
    tokens = [model.prompt_tokens(each) for each in prompts]
    client.made(PATH, prompt=prompts, max_tokens=1)  # is in the prompt cache now
    before = service.engine.stats
    made = client.made(PATH, prompt=prompts, max_tokens=2, logprobs=3, echo=True, seed=1, n=2)
    computed = service.engine.stats.prompt_tokens - before.prompt_tokens
    assert sum(map(len, tokens)) <= computed <= sum(map(len, tokens)) + 2
    plain = client.made(PATH, prompt=prompts, max_tokens=2, logprobs=3, seed=1, n=2)
    for i, choice in enumerate(made["choices"]):
        thought = [x for x in model.prompt_logprobs(tokens[i // 2], 3) if isinstance(x, Logprobs)]
        told = choice["logprobs"]["token_logprobs"]
        assert told[0] is None
        n = len(tokens[i // 2])
        assert told[1:n] == [each.chosen.logprob for each in thought]
        top = choice["logprobs"]["top_logprobs"][1:n]
        assert [max(each.values()) for each in top] == [each.top[0].logprob for each in thought]
        assert told[n:] == plain["choices"][i]["logprobs"]["token_logprobs"]
        assert choice["text"] == prompts[i // 2] + plain["choices"][i]["text"]


def test_a_prompt_whose_time_is_over_has_no_log_probabilities(client: Client) -> None:
    body = {"prompt": "ROMEO:" * 100, "max_tokens": 2, "logprobs": 1, "echo": True}
    made = client.made(PATH, **body, deadline=1e-9)["choices"][0]
    assert made["finish_reason"] == "length"
    assert made["logprobs"]["tokens"] == []


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"logprobs": 1, "echo": True}], ids=str)
def test_streams_say_what_responses_say(client: Client, more: dict[str, Any]) -> None:
    body = {**ROMEO, "n": 2, "stop": ["thou", "I "], **more}
    made = client.made(PATH, **body)
    events = client.stream(PATH, **body, stream_options={"include_usage": True})
    last = events.pop()
    assert last["choices"] == []
    assert last["usage"].keys() == made["usage"].keys()
    assert last["usage"]["total_tokens"] == made["usage"]["total_tokens"]
    assert all(each["usage"] is None for each in events)
    assert len({each["id"] for each in events}) == 1
    for choice in made["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert "".join(each["text"] for each in mine) == choice["text"]
        assert [each["finish_reason"] for each in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]
        if choice["logprobs"] is not None:
            for name, values in choice["logprobs"].items():
                assert [x for each in mine for x in each["logprobs"][name]] == values
    assert [e for e in client.stream(PATH, **ROMEO) if "usage" in e] == []


def test_the_text_of_a_request_beside_others(client: Client, make_client: MakeClient) -> None:
    alone = [client.made(PATH, **{**ROMEO, "seed": seed, "logprobs": 1}) for seed in range(4)]
    others = [client.service.engine.submit("JULIET:", max_tokens=150, seed=s) for s in range(3)]
    beside = [client.made(PATH, **{**ROMEO, "seed": seed, "logprobs": 1}) for seed in range(4)]
    for each in others:
        each.cancel()
    assert [each["choices"] for each in beside] == [each["choices"] for each in alone]
    guessing = make_client(defaults={"spec_type": "ngram"})
    guessed = [guessing.made(PATH, **{**ROMEO, "seed": seed, "logprobs": 1}) for seed in range(4)]
    assert [each["choices"] for each in guessed] == [each["choices"] for each in alone]


def test_defaults_hold_where_a_request_says_nothing(
    make_client: MakeClient, client: Client
) -> None:
    greedy = make_client(defaults={"temperature": 0.0, "max_tokens": 6})
    made = greedy.made(PATH, prompt="ROMEO:")
    assert made["usage"]["completion_tokens"] == 6
    plain = client.made(PATH, prompt="ROMEO:", temperature=0.0, max_tokens=6)
    assert made["choices"] == plain["choices"]
    warm = greedy.made(PATH, **ROMEO, preset="llama.cpp")
    assert warm["choices"] == client.made(PATH, **ROMEO, preset="llama.cpp")["choices"]


def test_models(client: Client, make_client: MakeClient) -> None:
    (only,) = client.get("/v1/models").json()["data"]
    assert only["id"] == "shakespeare.gguf"
    assert client.get("/v1/models/shakespeare").json()["id"] == "shakespeare"
    assert client.get("/v1/models/gpt-4").status_code == 404
    body = {"prompt": "ROMEO:", "max_tokens": 1}
    error = client.refused(PATH, 404, model="gpt-4", **body)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert make_client(any_model=True).made(PATH, model="gpt-4", **body)["model"] == "gpt-4"
    named = make_client(alias=("bard", "shakes"))
    assert named.get("/v1/models").json()["data"][0]["id"] == "bard"
    assert named.made(PATH, model="shakes", **body)["model"] == "shakes"


def test_prompts_longer_than_the_context(client: Client) -> None:
    error = client.refused(PATH, prompt=[1] * 2000, max_tokens=1)
    assert error["code"] == "context_length_exceeded"


def test_deadlines(client: Client) -> None:
    (choice,) = client.made(PATH, prompt="ROMEO:", max_tokens=900, deadline=1e-6)["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"]) < 3000


def test_a_full_queue(model: aleator.LanguageModel) -> None:
    goes_on = threading.Event()

    def held(chain: aleator.SamplerChain, logits: object) -> None:
        goes_on.wait(60)

    with model.engine(n_seq_max=1, max_queue=0) as engine:
        full = Client(model, engine)
        other = engine.submit("ROMEO:", max_tokens=9, on_logits=held)
        response = full.post(PATH, prompt="JULIET:", max_tokens=1)
        goes_on.set()
        other.cancel()
        other.wait()
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        # Of several completions none begins where one cannot.
        assert full.post(PATH, prompt="JULIET:", n=5, max_tokens=900).status_code == 429
        until(lambda: not engine.stats.running and not engine.stats.waiting)
        assert full.made(PATH, prompt="JULIET:", max_tokens=1)["choices"][0]["text"]
    assert full.post(PATH, prompt="JULIET:", max_tokens=1).status_code == 503


def test_text_between_two_texts() -> None:
    names = ["<pre>", "<suf>", "<mid>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "c", *names],
        "tokenizer.ggml.token_type": [1, 1, 1, 3, 3, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.fim_pre_token_id": 3,
        "tokenizer.ggml.fim_suf_token_id": 4,
        "tokenizer.ggml.fim_mid_token_id": 5,
    }
    tokenizer = Tokenizer(aleator.text.Vocabulary.from_metadata(metadata))
    assert infilling(tokenizer, "ab", "c", True) == [3, 0, 1, 4, 2, 5]
    assert infilling(tokenizer, [1], "c", True) == [3, 1, 4, 2, 5]


async def test_those_who_wait_for_the_vectors_of_others_take_no_threads(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, goes_on = client.service, threading.Event()
    vector = np.ones((1, 2), np.float32)
    monkeypatch.setattr(
        service.model, "embed", lambda *given, **named: vector if goes_on.wait(30) else vector[:0]
    )
    asked = Request({"type": "http"}, cast(Any, asyncio.Event().wait))  # its client stays
    work = partial(vectors_of, service.model, "input", [[1]], "mean", True)
    made = [asyncio.ensure_future(service.scored(asked, work)) for _ in range(60)]
    try:
        async with asyncio.timeout(10):
            await asyncio.sleep(0.1)
            assert await in_thread(lambda: 5) == 5
    finally:
        goes_on.set()
    assert await asyncio.gather(*made) == [(vector, 1)] * 60


def test_a_context_shift_without_an_end_has_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = client.service.model.weights.config
    short = dataclasses.replace(config, context_length=30)
    monkeypatch.setattr(client.service.model.weights, "config", short)
    endless = {"prompt": "ROMEO:", "seed": 1, "ignore_eos": True, "context_shift": True}
    for more in ({}, {"max_tokens": -1}):
        made = client.made(PATH, **endless, **more)
        assert made["usage"]["completion_tokens"] == 30
        assert made["choices"][0]["finish_reason"] == "length"
    assert client.made(PATH, **endless, max_tokens=40)["usage"]["completion_tokens"] == 40


def test_a_prompt_is_healed(client: Client, model: aleator.LanguageModel) -> None:
    asked = {"prompt": "ROMEO:\nI th", "max_tokens": 10, "seed": 3, "heal": True}
    alone = model.generate("ROMEO:\nI th", max_tokens=10, seed=3, heal=True)
    made = client.made(PATH, **asked, logprobs=0, return_token_ids=True)
    (choice,) = made["choices"]
    assert choice["text"] == alone.text
    assert choice["token_ids"] == alone.tokens
    assert choice["prompt_token_ids"] == list(alone.request.tokens)
    offsets = choice["logprobs"]["text_offset"]
    names = choice["logprobs"]["tokens"]
    again = sum(len(model.vocab.token_bytes(t)) for t in alone.request.taken_back[1])
    ends = list(itertools.accumulate(map(len, names)))
    assert offsets == [max(0, end - again) for end in [0, *ends[:-1]]]
    streamed = client.stream(PATH, **asked)
    assert "".join(each["choices"][0]["text"] for each in streamed) == alone.text
    assert client.refused("/v1/chat/completions", messages=[], heal=True)["param"] == "heal"
