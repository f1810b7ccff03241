"""``use_beam_search``: beams in completions and chats, in vLLM's fields; and ``kept``: masks of kept tokens."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from tests.server.conftest import Client, MakeClient
from tests.server.test_openai_chat import HI, WEATHER

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
BEAMS: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 8, "use_beam_search": True, "n": 2}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"best_of": 4},
        {"best_of": 3, "length_penalty": 0.5, "early_stopping": "never", "stop": ["e"]},
        {"best_of": 3, "stochastic": True, "seed": 7},
        {"best_of": 3, "guided_regex": "aye|no|never", "temperature": 0.7},
    ],
)
def test_completions_are_those_of_the_model(
    client: Client, model: aleator.LanguageModel, more: dict[str, Any]
) -> None:
    response = client.post(COMPLETIONS, **BEAMS, return_token_ids=True, **more)
    assert response.status_code == 200, response.text
    assert "x-aleator-replay" not in response.headers
    made = response.json()
    given = {{"guided_regex": "regex"}.get(name, name): value for name, value in more.items()}
    n = given.pop("best_of", 2)
    found = model.beams("ROMEO:", num_beams=n, num_return_sequences=2, max_tokens=8, **given)
    for i, (choice, beam) in enumerate(zip(made["choices"], found, strict=True)):
        assert choice["index"] == i
        assert (choice["text"], tuple(choice["token_ids"])) == (beam.text, beam.tokens)
        assert choice["aleator_beam"] == {
            "score": beam.score,
            "logprob": beam.logprob,
            "logprobs": list(beam.logprobs),
        }
        assert choice["finish_reason"] == ("length" if beam.stop_reason == "length" else "stop")
        assert choice["stop_reason"] == ("e" if beam.stop_reason == "stop" else None)
    usage = made["usage"]
    assert usage["prompt_tokens"] == len(model.prompt_tokens("ROMEO:"))
    assert usage["completion_tokens"] == sum(len(each.tokens) for each in found)


def test_several_prompts(client: Client, model: aleator.LanguageModel) -> None:
    prompts = ["ROMEO:", "JULIET:\nO"]
    made = client.made(COMPLETIONS, **{**BEAMS, "prompt": prompts})
    options: dict[str, Any] = {"num_beams": 2, "num_return_sequences": 2, "max_tokens": 8}
    texts = [each.text for prompt in prompts for each in model.beams(prompt, **options)]
    assert [each["text"] for each in made["choices"]] == texts
    assert [each["index"] for each in made["choices"]] == [0, 1, 2, 3]
    assert made["usage"]["prompt_tokens"] == sum(len(model.prompt_tokens(p)) for p in prompts)


def test_chats_are_those_of_the_model(client: Client, model: aleator.LanguageModel) -> None:
    body = {**HI, "use_beam_search": True, "n": 2, "best_of": 3, "return_token_ids": True}
    made = client.made(CHATS, **{**body, "max_tokens": 8})
    prompt = made["prompt_token_ids"]
    found = model.beams(
        prompt, num_beams=3, num_return_sequences=2, max_tokens=8, stop=model.vocab.chat_stop
    )
    assert [each["message"]["content"] for each in made["choices"]] == [b.text for b in found]
    assert [tuple(each["token_ids"]) for each in made["choices"]] == [b.tokens for b in found]
    assert [each["aleator_beam"]["score"] for each in made["choices"]] == [b.score for b in found]
    assert made["usage"]["completion_tokens"] == sum(len(b.tokens) for b in found)
    assert made["usage"]["prompt_tokens"] == len(prompt)


def test_a_call_is_searched(client: Client) -> None:
    body = {**HI, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 80}
    made = client.made(CHATS, **body, use_beam_search=True, n=2)
    for choice in made["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == WEATHER["function"]["name"]


def test_samplers_of_the_server_are_not_those_of_beams(
    make_client: MakeClient, model: aleator.LanguageModel
) -> None:
    client = make_client(defaults={"temperature": 0.0, "mirostat": 2, "max_tokens": 5})
    body = {name: value for name, value in BEAMS.items() if name != "max_tokens"}
    made = client.made(COMPLETIONS, **body)
    found = model.beams("ROMEO:", num_beams=2, num_return_sequences=2, max_tokens=5)
    assert [each["text"] for each in made["choices"]] == [each.text for each in found]


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (COMPLETIONS, {"stream": True}, "stream"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"logprobs": 0}, "logprobs"),
        (COMPLETIONS, {"aleator_replay": True}, "aleator_replay"),
        (COMPLETIONS, {"kept": True}, "kept"),
        (COMPLETIONS, {"thinking_token_budget": 5}, "thinking_token_budget"),
        (COMPLETIONS, {"banned_strings": ["x"]}, "banned_strings"),
        (COMPLETIONS, {"temperature": 0}, "temperature"),
        (COMPLETIONS, {"n": 5}, "n"),
        (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of"),
        (COMPLETIONS, {"length_penalty": 11}, "length_penalty"),
        (COMPLETIONS, {"stochastic": True, "early_stopping": True}, "early_stopping"),
        (COMPLETIONS, {"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
        (CHATS, {"stream": True}, "stream"),
        (CHATS, {"logprobs": True}, "logprobs"),
        (CHATS, {"id_slot": 0}, "id_slot"),
        (CHATS, {"use_beam_search": False, "best_of": 2}, "best_of"),
        ("/v1/responses", {}, "use_beam_search"),
    ],
)
def test_what_does_not_go_together(
    client: Client, path: str, more: dict[str, Any], param: str
) -> None:
    own = {
        COMPLETIONS: {"prompt": "ROMEO:", "max_tokens": 4},
        CHATS: {**HI, "max_tokens": 4},
        "/v1/responses": {"input": "a"},
    }
    before = client.service.engine.stats.submitted
    error = client.refused(path, **{**own[path], "use_beam_search": True, **more})
    assert error["param"] == param
    assert client.service.engine.stats.submitted == before


def test_values_that_say_nothing_are_taken(client: Client, model: aleator.LanguageModel) -> None:
    off = {"use_beam_search": False, "length_penalty": 1, "early_stopping": False}
    made = client.made(COMPLETIONS, prompt="ROMEO:", max_tokens=6, seed=3, **off)
    assert made["choices"][0]["text"] == model.generate("ROMEO:", max_tokens=6, seed=3).text


def test_options_that_ask_for_nothing_go_together_with_beams(client: Client) -> None:
    nothing: dict[str, Any] = {
        "reasoning_budget": -1,
        "guidance_scale": 1,
        "banned_strings": [],
        "complete_grammar": False,
    }
    assert (
        client.made(COMPLETIONS, **BEAMS, **nothing)["choices"]
        == client.made(COMPLETIONS, **BEAMS)["choices"]
    )


def test_tokens_that_end_texts_by_the_server_s_options_end_beams(
    make_client: MakeClient, model: aleator.LanguageModel
) -> None:
    first = model.beams("ROMEO:", num_beams=2, max_tokens=8)[0].tokens[2]
    made = make_client(defaults={"stop_token_ids": [first]}).made(COMPLETIONS, **BEAMS)
    alone = make_client().made(COMPLETIONS, **BEAMS, stop_token_ids=[first])
    assert (
        made["choices"] == alone["choices"] != make_client().made(COMPLETIONS, **BEAMS)["choices"]
    )


def test_what_a_server_bans_or_marks_is_not_evaded(
    make_client: MakeClient, model: aleator.LanguageModel
) -> None:
    key = Path(__file__).parents[1] / "golden" / "watermark_key.txt"
    for defaults, named in (
        ({"banned_strings": ["th"]}, "banned_strings"),
        ({"banned_regex": "th"}, "banned_regex"),
        ({"draw": "watermark", "watermark_key_file": key}, "draw"),
        ({"phases": {"answer": {"draw": "watermark"}}, "watermark_key_file": key}, "phases"),
    ):
        error = make_client(defaults=defaults).refused(COMPLETIONS, **BEAMS)
        assert error["param"] == "use_beam_search"
        assert f"started with {named}" in error["message"]
    found = model.beams("ROMEO:", num_beams=2, num_return_sequences=2, max_tokens=8)
    word = found[0].tokens[1]
    held = make_client(defaults={"bad_words": [[word]]}).made(
        COMPLETIONS, **BEAMS, return_token_ids=True
    )
    assert all(word not in each["token_ids"] for each in held["choices"])
    held = make_client(defaults={"bad_words": [[word]]}).made(
        COMPLETIONS, **BEAMS, return_token_ids=True, preset="neutral"
    )
    assert all(word not in each["token_ids"] for each in held["choices"])


def test_a_search_that_is_cut_off_is_an_error(client: Client) -> None:
    body = {**BEAMS, "max_tokens": 400, "ignore_eos": True, "deadline": 1e-6}
    error = client.refused(COMPLETIONS, 400, **body)  # what clients do not try again
    assert (error["code"], error["param"]) == ("cut_off", "deadline")


# Masks of kept tokens

KEPT: dict[str, Any] = {"max_tokens": 12, "seed": 7, "top_k": 9, "kept": True}


def masks_of(model: aleator.LanguageModel, told: dict[str, Any]) -> Any:
    """Which tokens were kept at each place: bool [tokens, V]."""
    rows = [np.frombuffer(base64.b64decode(each), np.uint8) for each in told["masks"]]
    return np.unpackbits(np.stack(rows), axis=1, bitorder="little")[:, : len(model.vocab)] == 1


def test_kept_tokens_of_completions(client: Client, model: aleator.LanguageModel) -> None:
    made = client.made(COMPLETIONS, prompt="ROMEO:", **KEPT, logprobs=0, n=2)
    alone = model.generate_batch(["ROMEO:"], n=2, logprobs=0, **KEPT)
    for choice, generation in zip(made["choices"], alone, strict=True):
        kept = [each.kept for each in generation.logprobs or [] if each.kept is not None]
        masks = masks_of(model, choice["aleator_kept"])
        assert [np.flatnonzero(row).tolist() for row in masks] == [e.ids.tolist() for e in kept]
        assert masks.sum(1).max() <= 9
        assert choice["aleator_kept"]["logprobs"] == [each.logprob for each in kept]
    without = client.made(COMPLETIONS, prompt="ROMEO:", **{**KEPT, "kept": False}, logprobs=0)
    assert without["choices"][0]["text"] == made["choices"][0]["text"]
    assert "aleator_kept" not in without["choices"][0]


def test_kept_tokens_of_chats(client: Client, model: aleator.LanguageModel) -> None:
    body = {**HI, **KEPT, "logprobs": True, "return_token_ids": True}
    (choice,) = client.made(CHATS, **body)["choices"]
    masks = masks_of(model, choice["aleator_kept"])
    assert len(masks) == len(choice["token_ids"])
    assert masks[np.arange(len(masks)), choice["token_ids"]].all()


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"logprobs": None},
        {"max_tokens": None},
        {"max_tokens": -1},
        {"max_tokens": 10**6},
        {"max_tokens": 60_000, "n": 2},
        {"prompt": ["a"] * 100, "max_tokens": 2000},
        {"numerics": "llama.cpp"},
    ],
)
def test_masks_that_cannot_be_sent_are_refused(client: Client, more: dict[str, Any]) -> None:
    body = {"prompt": "ROMEO:", **KEPT, "logprobs": 0, **more}
    error = client.refused(COMPLETIONS, **{k: v for k, v in body.items() if v is not None})
    assert "kept=" in error["message"]


def test_texts_that_are_too_many_for_masks_are_told_so(client: Client) -> None:
    body = {**KEPT, "prompt": ["a"] * 2048, "n": 128, "max_tokens": 1}
    message = client.refused(COMPLETIONS, **body, logprobs=0)["message"]
    assert message.endswith("ask for fewer texts")


def test_a_limit_is_named_as_it_was_written(client: Client) -> None:
    body: dict[str, Any] = {"prompt": "a", "kept": True, "logprobs": 0, "n_predict": "many"}
    assert client.refused(COMPLETIONS, **body)["param"] == "n_predict"
