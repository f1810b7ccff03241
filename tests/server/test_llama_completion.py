"""llama-server's ``/completion``: fields, responses, streams, and what is refused by name."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.samplers.candidates import Candidates
from aleator.server.dialects.llama_fields import FIELDS, options_of
from tests.server.conftest import Client, MakeClient

PROMPT = "ROMEO:"


@pytest.fixture(scope="module")
def plain(make_client: MakeClient) -> Client:
    return make_client()


def stream(client: Client, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which ends without a word of its own."""
    response = client.post("/completion", stream=True, **body)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_the_text_is_what_the_library_makes(
    plain: Client, model: aleator.LanguageModel, path: str
) -> None:
    made = plain.made(path, prompt=PROMPT, n_predict=20, seed=7, return_tokens=True)
    alone = model.generate(PROMPT, max_tokens=20, seed=7)
    assert made["content"] == alone.text
    assert made["tokens"] == alone.tokens
    assert made["stop"] is True
    assert made["stop_type"] == "limit"
    assert made["stopping_word"] == ""
    assert made["truncated"] is False
    assert made["tokens_predicted"] == 20
    assert made["tokens_evaluated"] == len(alone.request.tokens)
    assert made["tokens_cached"] == len(alone.request.tokens) + 19
    assert made["prompt"] == "<|endoftext|>ROMEO:"
    assert made["has_new_line"] == ("\n" in alone.text)
    assert made["id_slot"] == -1
    assert made["generation_settings"]["seed"] == 7
    timings = made["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == len(alone.request.tokens)
    assert timings["predicted_n"] == 20
    assert timings["predicted_per_second"] == pytest.approx(19e3 / timings["predicted_ms"])


def test_a_stream_tells_what_the_response_tells(plain: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 25, "seed": 3, "n_probs": 2, "timings_per_token": True}
    whole = plain.made("/completion", return_tokens=True, **body)
    *events, last = stream(plain, **body)
    assert "".join(each["content"] for each in events) == whole["content"]
    assert [t for each in (*events, last) for t in each["tokens"]] == whole["tokens"]
    told = [p for each in events for p in each["completion_probabilities"]]
    assert told == whole["completion_probabilities"]
    assert all(each["stop"] is False and each["timings"] for each in events)
    assert last["content"] == ""
    same = ("stop_type", "tokens_predicted", "prompt", "truncated", "has_new_line")
    assert {name: last[name] for name in same} == {name: whole[name] for name in same}


def test_prompts_are_texts_tokens_both_or_objects(plain: Client) -> None:
    ids = plain.made("/tokenize", content=PROMPT, add_special=True)["tokens"]
    whole = plain.made("/completion", prompt=PROMPT, n_predict=6, seed=1)
    same = {"n_predict": 6, "seed": 1}
    assert plain.made("/completion", prompt=ids, **same)["content"] == whole["content"]
    mixed = [ids[0], PROMPT]
    assert plain.made("/completion", prompt=mixed, **same)["content"] == whole["content"]
    as_object = {"prompt_string": PROMPT}
    assert plain.made("/completion", prompt=as_object, **same)["content"] == whole["content"]
    several = plain.post("/completion", prompt=[PROMPT, ids, mixed, as_object], **same).json()
    assert [each["content"] for each in several] == [whole["content"]] * 4
    assert [each["index"] for each in several] == [0, 1, 2, 3]
    alone = plain.post("/completion", prompt=[PROMPT], **same).json()
    assert isinstance(alone, list)


def test_names_of_control_tokens_are_read_unless_asked_not_to(plain: Client) -> None:
    read = plain.made("/completion", prompt="<|endoftext|>a", n_predict=1)
    text = plain.made("/completion", prompt="<|endoftext|>a", n_predict=1, parse_special=False)
    assert read["tokens_evaluated"] == 3
    assert text["tokens_evaluated"] > 3


def test_completions_of_one_prompt_differ(plain: Client) -> None:
    made = plain.post("/completion", prompt=PROMPT, n_predict=12, seed=5, n_cmpl=3).json()
    assert len({each["content"] for each in made}) == 3
    first = plain.made("/completion", prompt=PROMPT, n_predict=12, seed=5)
    assert made[0]["content"] == first["content"]


def test_probabilities_before_sampling_are_the_models(
    plain: Client, model: aleator.LanguageModel
) -> None:
    made = plain.made("/completion", prompt=PROMPT, n_predict=8, seed=2, n_probs=3)
    alone = model.generate(PROMPT, max_tokens=8, seed=2, logprobs=3)
    assert alone.logprobs is not None
    for told, thought in zip(made["completion_probabilities"], alone.logprobs, strict=True):
        assert (told["id"], told["logprob"]) == (thought.chosen.token, thought.chosen.logprob)
        assert bytes(told["bytes"]) == thought.chosen.bytes
        assert [(t["id"], t["logprob"]) for t in told["top_logprobs"]] == [
            (t.token, t.logprob) for t in thought.top
        ]


@pytest.mark.parametrize(
    "more", [{}, {"numerics": "llama.cpp"}, {"grammar": 'root ::= "\\n" [A-Z ]+'}]
)
def test_probabilities_after_sampling_are_what_is_drawn_from(
    plain: Client, model: aleator.LanguageModel, more: dict[str, Any]
) -> None:
    body = {"prompt": PROMPT, "n_predict": 6, "seed": 2, "return_tokens": True, **more}
    quiet = plain.made("/completion", **body)
    made = plain.made("/completion", n_probs=5, post_sampling_probs=True, **body)
    assert made["tokens"] == quiet["tokens"]  # looking changes nothing
    seen: list[dict[int, float]] = []

    def look(chain: aleator.SamplerChain, logits: Any) -> None:
        candidates, copy = Candidates(logits), chain.clone()
        copy.apply(candidates)
        seen.append(dict(zip(candidates.ids.tolist(), candidates.probs.tolist(), strict=True)))

    model.generate(PROMPT, max_tokens=6, seed=2, on_logits=look, **more).wait()
    told = made["completion_probabilities"]
    assert [each["id"] for each in told] == quiet["tokens"]
    for each, probs in zip(told, seen, strict=False):
        assert each["prob"] == probs[each["id"]]
        best = sorted((p for p in probs.values() if p > 0), reverse=True)[:5]
        assert [t["prob"] for t in each["top_probs"]] == best


def test_probabilities_after_sampling_are_refused_where_there_are_several_draws(
    plain: Client,
) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "n_probs": 2, "post_sampling_probs": True}
    assert (
        plain.refused("/completion", banned_strings=["x"], **body)["param"] == "post_sampling_probs"
    )
    body |= {"numerics": "llama.cpp", "grammar": "root ::= [a-z]+"}
    assert plain.refused("/completion", **body)["param"] == "post_sampling_probs"


def test_stop_strings_and_ends_are_told_apart(plain: Client) -> None:
    whole = plain.made("/completion", prompt=PROMPT, n_predict=30, seed=7)["content"]
    word = whole[10:14]
    made = plain.made("/completion", prompt=PROMPT, n_predict=30, seed=7, stop=["@@", word])
    assert (made["stop_type"], made["stopping_word"]) == ("word", word)
    assert made["content"] == whole[: whole.index(word)]
    ended = plain.made("/completion", prompt=PROMPT, n_predict=30, grammar='root ::= "yes"')
    assert (ended["stop_type"], ended["content"]) == ("eos", "yes")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    made = plain.made("/completion", prompt=PROMPT, n_predict=60, json_schema=schema)
    assert isinstance(json.loads(made["content"])["a"], bool)
    assert made["generation_settings"]["grammar"]


def test_a_full_context_is_told_as_a_limit(make_client: MakeClient) -> None:
    ids = [50] * 1020
    made = make_client().made("/completion", prompt=ids, n_predict=50, ignore_eos=True)
    assert (made["stop_type"], made["truncated"]) == ("limit", True)
    assert made["tokens_predicted"] < 50


def test_no_tokens_compute_the_prompt_all_the_same(plain: Client) -> None:
    prompt = "KING RICHARD III:\nNow is the winter of our discontent"
    made = plain.made("/completion", prompt=prompt, n_predict=0, return_tokens=True)
    assert (made["content"], made["tokens"], made["tokens_predicted"]) == ("", [], 0)
    assert made["generation_settings"]["n_predict"] == 0
    again = plain.made("/completion", prompt=prompt, n_predict=1)
    assert again["timings"]["prompt_n"] == 1


def test_without_the_prompt_cache_all_is_computed_and_nothing_is_kept(plain: Client) -> None:
    body = {"prompt": "MENENIUS:\nWhat work's, my countrymen", "n_predict": 5, "seed": 1}
    first = plain.made("/completion", cache_prompt=False, **body)
    second = plain.made("/completion", **body)
    third = plain.made("/completion", cache_prompt=False, **body)
    assert first["content"] == second["content"] == third["content"]
    assert first["timings"]["cache_n"] == third["timings"]["cache_n"] == 0

    def cached() -> list[str]:
        engine = plain.service.engine
        return engine.visit(lambda c, seq: [t.namespace for t in c.cache.prefix or ()]).result(30)

    before = cached()
    assert not [name for name in before if "once" in name]
    moved = {"context_shift": True, "ignore_eos": True, "n_predict": plain.service.model.n_ctx}
    plain.made("/completion", cache_prompt=False, **{**body, **moved})
    assert cached() == before


def test_a_line_indented_too_little_ends_the_text(plain: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 60, "seed": 4}
    whole = plain.made("/completion", **body)["content"]
    made = plain.made("/completion", n_indent=2, **body)
    line = whole.index("\n")
    assert made["content"] == whole[: line + 1]
    assert made["stop_type"] == "limit"
    assert made["tokens_predicted"] < 60
    assert "".join(each["content"] for each in stream(plain, n_indent=2, **body)) == made["content"]


def test_time_ends_a_text_at_a_line_break(plain: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 300, "seed": 4, "ignore_eos": True}
    made = plain.made("/completion", t_max_predict_ms=0.001, **body)
    assert made["stop_type"] == "limit"
    assert made["content"].count("\n") >= 1
    assert made["tokens_predicted"] < 300


def test_fields_of_the_response_are_chosen(plain: Client) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/no", "nothing"]
    made = plain.made("/completion", prompt=PROMPT, n_predict=3, response_fields=fields)
    assert made.keys() == {"content", "generation_settings/n_predict"}
    assert made["generation_settings/n_predict"] == 3


@pytest.mark.parametrize("biases", [[["O", False], [47, -100]], {"O": False, "47": -100.0}])
def test_biases_have_llama_servers_forms(plain: Client, biases: Any) -> None:
    ids = plain.made("/tokenize", content="O")["tokens"]
    assert ids == [47]
    if isinstance(biases, list):
        biases = biases[:1]
    else:
        del biases["47"]
    made = plain.made(
        "/completion", prompt=PROMPT, n_predict=40, seed=1, logit_bias=biases, return_tokens=True
    )
    assert 47 not in made["tokens"]
    assert made["generation_settings"]["logit_bias"] == [{"bias": None, "token": 47}]


def test_ends_that_are_ignored_are_told_as_biases(
    plain: Client, model: aleator.LanguageModel
) -> None:
    made = plain.made("/completion", prompt=PROMPT, n_predict=2, ignore_eos=True)
    told = made["generation_settings"]["logit_bias"]
    assert told == [{"bias": None, "token": token} for token in sorted(model.vocab.eog)]


@pytest.mark.parametrize("given", ["kpt", "top_k;top_p;temperature", ["top_k", "top_p", "temp"]])
def test_samplers_are_named_in_three_ways(plain: Client, given: Any) -> None:
    made = plain.made("/completion", prompt=PROMPT, n_predict=2, samplers=given)
    assert made["generation_settings"]["samplers"] == ["top_k", "top_p", "temperature"]


def test_llama_cpps_numbers_are_a_field(plain: Client, model: aleator.LanguageModel) -> None:
    made = plain.made("/completion", prompt=PROMPT, n_predict=20, seed=9, numerics="llama.cpp")
    alone = model.generate(PROMPT, max_tokens=20, seed=9, numerics="llama.cpp")
    assert made["content"] == alone.text


def test_a_seed_that_was_drawn_is_told(plain: Client) -> None:
    for seed in (None, -1, 2**32 - 1):
        made = plain.made("/completion", prompt=PROMPT, n_predict=12, seed=seed)
        drawn = made["generation_settings"]["seed"]
        again = plain.made("/completion", prompt=PROMPT, n_predict=12, seed=drawn)
        assert again["content"] == made["content"]


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"temperature": -1}, {"temperature": 0}),
        ({"top_k": -5, "top_p": 2, "typical_p": 1.5}, {"top_k": 0, "top_p": 1, "typical_p": 1}),
        ({"xtc_threshold": 0.7, "xtc_probability": 1}, {"xtc_probability": 0}),
    ],
)
def test_what_llama_cpp_takes_for_off(
    plain: Client, given: dict[str, Any], same: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    texts = [
        plain.made("/completion", prompt=PROMPT, n_predict=12, seed=5, **body)["content"]
        for body in (same, given)
    ]
    assert texts[0] == texts[1]
    told = [message for message in caplog.messages if " is off in llama.cpp" in message]
    off = [name for name in given if name != "xtc_probability"]
    assert [message.partition("=")[0] for message in told] == off


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"min_p": 1.5}, "min_p"),
        ({"samplers": ["topk", "magic"]}, "samplers"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 99999999999, "numerics": "llama.cpp"}, "seed"),
        ({"n_predict": 3, "max_tokens": 4}, "max_tokens"),
        ({"n_probs": -1}, "n_probs"),
        ({"id_slot": 4}, "id_slot"),
        ({"n_cache_reuse": 16}, "n_cache_reuse"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"grammar": "root := x"}, "grammar"),
        ({"json_schema": {"type": "nothing"}}, "json_schema"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"response_fields": "content"}, "response_fields"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    plain: Client, body: dict[str, Any], param: str
) -> None:
    error = plain.refused("/completion", **{"prompt": PROMPT, "n_predict": 2, **body})
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["code"] == 400


def test_a_prompt_that_is_too_long_says_how_long(plain: Client) -> None:
    error = plain.refused("/completion", prompt=[50] * 2000)
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (2000, 1024)
    assert "exceeds the available context size" in error["message"]


def test_neutral_fields_of_clients_are_accepted(plain: Client) -> None:
    fields = {"n_discard": 0, "n_cache_reuse": 0, "lora": [], "image_data": [], "penalize_nl": True}
    fields |= {"grammar_lazy": False, "stream_options": {"include_usage": True}, "grammar": ""}
    fields |= {"sse_ping_interval": 5, "backend_sampling": True, "n_probs": None}
    made = plain.made("/completion", prompt=PROMPT, n_predict=4, seed=1, **fields)
    assert (
        made["content"] == plain.made("/completion", prompt=PROMPT, n_predict=4, seed=1)["content"]
    )


def test_impossible_tokens_have_a_logarithm_that_json_can_say(plain: Client) -> None:
    made = plain.made("/completion", prompt=PROMPT, n_predict=1, n_probs=2048)
    least = min(t["logprob"] for t in made["completion_probabilities"][0]["top_logprobs"])
    assert math.isfinite(least)
    assert np.isfinite(np.float32(least))


def test_what_is_not_built_is_said(plain: Client) -> None:
    for method, path in (
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/models/load"),
        ("GET", "/tools"),
        ("POST", "/props"),
        ("POST", "/models"),
        ("DELETE", "/models"),
        ("POST", "/mcp"),
        ("GET", "/v1/stream/some-id"),
    ):
        response = plain.request(method, path)
        assert response.status_code == 501, path
        assert response.json()["error"]["type"] == "not_supported_error"
    assert plain.get("/models").status_code == 200


def test_what_other_dialects_have_and_this_server_has_not_is_said_in_their_form(
    plain: Client,
) -> None:
    response = plain.request("POST", "/v1/images/generations")
    assert response.status_code == 501
    assert response.json()["error"]["code"] == "not_supported"
    response = plain.request("GET", "/v1/messages/batches/one")
    assert response.status_code == 501
    assert response.json()["type"] == "error"
    response = plain.request("POST", "/api/pull")
    assert response.status_code == 501
    assert "aleator serve -m" in response.json()["error"]
    assert plain.get("/v1/nothing").status_code == 404


def test_props_tell_what_a_request_gets_that_says_nothing(make_client: MakeClient) -> None:
    client = make_client(
        defaults={"temperature": 0.3, "max_tokens": 17, "seed": 5}, alias=("bard",)
    )
    props = client.get("/props").json()
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["n_predict"], params["seed"]) == (0.3, 17, 5)
    assert props["total_slots"] == 4
    assert props["model_alias"] == "bard"
    assert props["model_path"].endswith(".gguf")
    assert props["default_generation_settings"]["n_ctx"] == 1024
    made = client.made("/completion", prompt=PROMPT)
    assert made["tokens_predicted"] <= 17
    assert made["generation_settings"]["temperature"] == 0.3
    unseeded = make_client().get("/props").json()["default_generation_settings"]["params"]
    assert unseeded["seed"] == 2**32 - 1


@pytest.mark.parametrize(("given", "kept"), [(0, 1), (5, 6), (-1, -1)])
def test_what_is_kept_is_counted_without_bos(given: int, kept: int) -> None:
    assert options_of(FIELDS.read({"prompt": "a", "n_keep": given}), 1)["n_keep"] == kept
