"""Ollama's endpoints through the application."""

from __future__ import annotations

from typing import Any

import pytest

from aleator import __version__
from aleator.engine.replay import KEY
from aleator.server.dialects.ollama import _size
from tests.server.conftest import Client, MakeClient
from tests.server.speaking import TEMPLATE, WEATHER, lines_of

HI = [{"role": "user", "content": "Who goes there?"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
NAME = "shakespeare:latest"


@pytest.fixture(scope="module")
def asks(make_client: MakeClient) -> Client:
    return make_client(chat_template=TEMPLATE)


def body_of(n: int = 12, **more: Any) -> dict[str, Any]:
    return {"model": NAME, "options": {"num_predict": n, "seed": 1}, **more}


def test_a_stream_says_what_is_given_at_once(asks: Client) -> None:
    body = body_of(16, messages=HI, think=True, logprobs=True, top_logprobs=1)
    body["options"]["reasoning_budget"] = 4
    whole = asks.made("/api/chat", stream=False, **body)
    lines = lines_of(asks.post("/api/chat", **body))
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    for name in ("content", "thinking"):
        said = "".join(line["message"].get(name, "") for line in lines)
        assert said == whole["message"][name] != ""
    assert [e for line in lines for e in line.get("logprobs", [])] == whole["logprobs"]
    assert len(whole["logprobs"]) == whole["eval_count"] == lines[-1]["eval_count"]
    assert whole["logprobs"][0].keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert whole["model"] == NAME
    assert whole["prompt_eval_count"] > 4
    for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        assert isinstance(whole[name], int)
    assert whole["created_at"].endswith("Z")


def test_the_text_is_that_of_a_chat(asks: Client) -> None:
    chat = asks.made("/v1/chat/completions", messages=HI, seed=1, max_tokens=12)
    text = chat["choices"][0]["message"]["content"]
    whole = asks.made("/api/chat", stream=False, **body_of(messages=HI))
    assert whole["message"] == {"role": "assistant", "content": text}
    assert whole["done_reason"] == "length"
    made = asks.made("/api/generate", stream=False, **body_of(prompt=HI[0]["content"]))
    assert made["response"] == text
    lines = lines_of(asks.post("/api/generate", **body_of(prompt=HI[0]["content"])))
    assert "".join(line["response"] for line in lines) == text


def test_a_raw_prompt_is_a_completion(asks: Client) -> None:
    text = asks.made("/v1/completions", prompt="ROMEO:", seed=1, max_tokens=12)["choices"][0][
        "text"
    ]
    made = asks.made("/api/generate", stream=False, raw=True, **body_of(prompt="ROMEO:"))
    assert made["response"] == text
    response = asks.post("/api/generate", raw=True, system="x", **body_of(prompt="ROMEO:"))
    assert response.json()["error"].startswith("system='x': with raw=true")


def test_calls_are_whole_and_their_arguments_objects(asks: Client) -> None:
    body = body_of(80, messages=HI, tools=[TOOL], think=False, format="")
    body["options"]["grammar"] = (
        'root ::= "<tool_call>{\\"name\\": \\"weather\\", \\"arguments\\": "'
        '"{\\"city\\": \\"Verona\\"}}</tool_call>"'
    )
    whole = asks.made("/api/chat", stream=False, **body)
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Verona"}}
    assert whole["done_reason"] == "stop"
    lines = lines_of(asks.post("/api/chat", **body))
    assert [c for x in lines for c in x["message"].get("tool_calls", [])] == [call]
    messages = [*HI, whole["message"], {"role": "tool", "tool_name": "weather", "content": "Rain."}]
    assert asks.made("/api/chat", stream=False, **body_of(2, messages=messages))["done"] is True


def test_records_make_the_text_again(asks: Client) -> None:
    body = body_of(messages=HI, aleator_replay=True)
    (record,) = asks.made("/api/chat", stream=False, **body)[KEY]
    assert lines_of(asks.post("/api/chat", **body))[-1][KEY] == [record]
    chat: dict[str, Any] = {"messages": HI, "seed": 1, "max_tokens": 12, "aleator_replay": True}
    assert asks.made("/v1/chat/completions", **chat)[KEY] == [record]


def test_nothing_to_answer_is_a_loaded_model(asks: Client) -> None:
    chat = asks.made("/api/chat", model=NAME, messages=[], keep_alive=0)
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "load", "")
    made = asks.made("/api/generate", model=NAME)
    assert (made["done"], made["done_reason"], made["response"]) == (True, "load", "")


def test_models(asks: Client) -> None:
    (model,) = asks.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == asks.service.name
    assert model["details"]["family"] == "llama"
    assert model["details"]["quantization_level"] == "F16"
    assert model["size"] == asks.service.model.weights.size_bytes
    (running,) = asks.get("/api/ps").json()["models"]
    assert running["digest"] == model["digest"]
    shown = asks.made("/api/show", model=NAME, verbose=True)
    assert shown["template"] == TEMPLATE
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert (
        shown["model_info"]["llama.context_length"]
        == asks.service.model.weights.config.context_length
    )
    assert asks.get("/api/version").json() == {"version": __version__}


def test_vectors(asks: Client) -> None:
    made = asks.made("/api/embed", model=NAME, input=["My lord", "ale"], keep_alive="5m")
    vectors = asks.made("/v1/embeddings", input=["My lord", "ale"])
    assert made["embeddings"] == [entry["embedding"] for entry in vectors["data"]]
    assert made["prompt_eval_count"] == vectors["usage"]["prompt_tokens"]
    (cut,) = asks.made("/api/embed", model=NAME, input="x", dimensions=3)["embeddings"]
    assert cut == asks.service.model.embed("x", dimensions=3).tolist()
    options: dict[str, Any] = {"num_ctx": 64, "temperature": None}
    assert asks.made("/api/embed", model=NAME, input="x", dimensions=3, options=options)[
        "embeddings"
    ] == [cut]
    for options in {"num_ctx": 10**6}, {"num_ctxx": 1}:
        assert asks.post("/api/embed", model=NAME, input="x", options=options).status_code == 400
    older = asks.made("/api/embeddings", model=NAME, prompt="x", keep_alive=-1)
    assert older == {"embedding": asks.service.model.embed("x", normalize=False).tolist()}
    error = asks.post("/api/embeddings", model=NAME, prompt="").json()["error"]
    assert error.startswith("prompt is an empty text")
    error = asks.post("/api/embed", model=NAME, input="x", dimensions=257).json()["error"]
    assert error.startswith("dimensions=257: give 1 to 256")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/chat", {"messages": HI, "typo": 1}, 400, "there is no field 'typo'"),
        ("/api/chat", {"messages": HI, "options": {"num_predict": -5}}, 400, "options.num_predict=-5"),
        ("/api/chat", {"messages": HI, "format": {"type": "nothing"}}, 400, "nothing"),
        ("/api/chat", {"messages": HI, "think": "low"}, 400, "think: the chat template does not read"),
        ("/api/chat", {"model": "gpt", "messages": HI}, 404, "model='gpt'"),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, 400, "pictures are not supported"),
        ("/api/show", {"model": None}, 400, "model is missing"),
    ],
)  # fmt: skip
def test_errors_name_fields_as_the_client_does(
    asks: Client, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    response = asks.post(path, **{"model": NAME, **body})
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert said in response.json()["error"]


def test_a_model_that_shows_no_tools_only_completes(make_client: MakeClient) -> None:
    assert make_client().made("/api/show", model=NAME)["capabilities"] == ["completion"]


@pytest.mark.parametrize(
    ("n", "shown"), [(999, "999"), (1000, "1.0K"), (1_250_000, "1.2M"), (7 * 10**9, "7.0B")]
)
def test_numbers_of_parameters_are_short(n: int, shown: str) -> None:
    assert _size(n) == shown
