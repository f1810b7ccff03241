"""Bodies are read strictly: honoured or refused by name."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from make_site import on_the_site

from aleator.core.errors import ParameterError
from aleator.core.json_text import MOST_LEVELS
from aleator.engine.prompts import GENERATION, SAMPLING
from aleator.server import fields
from aleator.server.accepted import ACCEPTED
from aleator.server.bodies import parsed
from aleator.server.dialects import openai_chat, openai_completions
from aleator.server.errors import ApiError
from aleator.server.fields import Field, Fields
from tests.server.conftest import Client, MakeClient

ENDPOINTS = {"chat": openai_chat.FIELDS, "completions": openai_completions.FIELDS}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
TABLE = Fields(
    Field("prompt", fields.text, required=True, aliases=("text",)),
    Field("n", fields.whole(1, 9), 1),
)


@pytest.mark.parametrize(
    ("body", "name", "says"),
    [
        ({"prompt": "a", "temprature": 1}, "temprature", "did you mean temperature"),
        ({"prompt": "a", "zzzzz": 1}, "zzzzz", "docs/server.md"),
        ({"n": 1}, "prompt", "missing"),
        ({"prompt": None}, "prompt", "missing"),
        ({"prompt": 5}, "prompt", "give a text"),
        ({"prompt": "a", "text": "b"}, "text", "twice"),
        ({"prompt": "a", "temp": 1, "temperature": 1}, "temperature", "given twice, as temp"),
        ({"prompt": "a", "n": 10}, "n", "1 to 9"),
        ({"prompt": "a", "n": 1.0}, "n", "an integer"),
        ({"prompt": "a", "n": True}, "n", "an integer"),
        ({"prompt": "a", "audio": {}}, "audio", "not supported"),
        ({"prompt": "a", "reasoning_in_content": True}, "reasoning_in_content", "only false"),
        ({"prompt": "a", "preset": 5}, "preset", "text"),
        ({"prompt": "a", "sampling_device": "host"}, "sampling_device", "no field"),
        ({"prompt": "a", "namespace": "x"}, "namespace", "no field"),
        ({"prompt": "a", "\ud800": 1}, "\ud800", "surrogate"),
        ({"prompt": "\ud800"}, "prompt", "surrogate"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], name: str, says: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(says)) as caught:
        TABLE.read(body)
    assert caught.value.parameter == name


def test_what_clients_of_llama_server_send_is_taken() -> None:
    sent = {
        "reasoning_format": "auto", "parse_tool_calls": True,
        "backend_sampling": False, "n_probs": 0, "t_max_predict_ms": 0, "speculative.n_max": 16,
        "grammar_lazy": False, "return_tokens": False, "reasoning_budget_tokens": 5, "typical_p": 1,
    }  # fmt: skip
    body = TABLE.read({"prompt": "a", **sent})
    assert body.options == {"reasoning_budget": 5, "typical_p": 1}
    for name, value in (("reasoning_format", "none"), ("n_probs", 2)):
        with pytest.raises(ParameterError, match=f"{name}="):
            TABLE.read({"prompt": "a", name: value})


def test_what_is_read() -> None:
    body = TABLE.read(
        {"text": "a", "temp": 0.5, "max_completion_tokens": 3, "user": "u", "top_k": None,
         "logit_bias": {"12": 1, " the": -1}}
    )  # fmt: skip
    assert body.own == {"prompt": "a", "n": 1}
    assert body.options == {"temperature": 0.5, "max_tokens": 3, "logit_bias": {12: 1, " the": -1}}
    assert body.spelled["max_tokens"] == "max_completion_tokens"


def test_lenient_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        body = TABLE.read(
            {"prompt": "a", "temprature": 1, "reasoning_in_content": True}, lenient=True
        )
    assert body.options == {}
    assert "temprature" in caplog.text
    assert "reasoning_in_content" in caplog.text
    with pytest.raises(ParameterError):  # what is known must be right
        TABLE.read({"prompt": 5}, lenient=True)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_option_of_a_text_is_taken(name: str) -> None:
    table = ENDPOINTS[name]
    taken = {*table.options, *table.own}
    of_process = {
        "jump_forward", "sampling_device", "multi_step", "spec_type", "spec_draft_n_max", "namespace",
    }  # fmt: skip
    of_chats = {"echo", "heal", "parse_special"} if name == "chat" else set()
    shown = {"shown_tokens", "reasoning_marks"}
    assert {*GENERATION, *SAMPLING} - taken == of_process | of_chats | shown


def test_accepted_fields_are_no_options() -> None:
    for name, each in ACCEPTED.items():
        assert name not in fields.OPTIONS, name
        assert each.why


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
        (b"1" * 5000, "a number has more than 4300 digits"),
    ],
)
def test_what_is_no_json(data: bytes, says: str) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        parsed(data)
    assert caught.value.status == 400


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"[": ', "}")])
def test_depth(opening: str, closing: str) -> None:
    def body(levels: int) -> bytes:
        value = f"{opening * levels}1{closing * levels}"
        return f'{{"prompt": {{"{{[": "]"}}, "metadata": {value}}}'.encode()

    parsed(body(MOST_LEVELS - 1))
    for levels in (MOST_LEVELS, 300, 9_000):
        with pytest.raises(
            ApiError, match="'metadata' is nested more than 128 levels deep"
        ) as caught:
            parsed(body(levels))
        assert (caught.value.status, caught.value.param) == (400, "metadata")


def test_a_body_is_an_object() -> None:
    with pytest.raises(ApiError, match="object"):
        TABLE.read([1])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "temp": -1e40}, "temp"),
        (COMPLETIONS, {"prompt": "a", "top_p": 1.5}, "top_p"),
        ("/v1/responses", {"input": "a", "temperature": -1}, "temperature"),
        (COMPLETIONS, {"prompt": "a", "n_predict": 1.5}, "n_predict"),
        (COMPLETIONS, {"prompt": "a", "samplers": ["top_q"]}, "samplers"),
        (COMPLETIONS, {"prompt": "a", "sampler_seq": 5}, "sampler_seq"),
        (COMPLETIONS, {"prompt": "a", "seed": 2**64}, "seed"),
        (COMPLETIONS, {"prompt": "a", "numerics": "llama.cpp", "seed": 99999999999}, "seed"),
        (COMPLETIONS, {"prompt": "a", "guided_regex": "("}, "guided_regex"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"12": "x"}}, "logit_bias"),
        (COMPLETIONS, {"prompt": "a", "messages": HI}, "messages"),
        (COMPLETIONS, {"prompt": [1, 5000]}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2, "n": 3}, "best_of"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
        (COMPLETIONS, {"prompt": "a", "deadline": 0}, "deadline"),
        (CHAT, {"messages": HI, "prompt": "a"}, "prompt"),
        (CHAT, {"messages": HI, "echo": True}, "echo"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": HI, "response_format": {"type": "xml"}}, "response_format"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_object", "name": 1}}, "response_format"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_schema", "json_schema":
                {"schema": {"type": "array", "uniqueItems": True}}}}, "response_format"),
        (CHAT, {"messages": HI, "json_schema": {}, "response_format": {"type": "json_object"}},
         "response_format"),
        (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": HI, "stream": True, "stream_options": {"usage": True}}, "stream_options"),
        (CHAT, {"messages": HI, "tools": [{}]}, "tools"),
        (CHAT, {"messages": HI, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HI, "chat_template_kwargs": {"nonsense": 1}}, "chat_template_kwargs"),
        (CHAT, {"messages": HI, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HI, "chat_template": "{{ x }}"}, "chat_template"),
        (CHAT, {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {}}]}]}, "messages"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(
    client: Client, path: str, body: dict[str, Any], param: str
) -> None:
    error = client.refused(path, **body)
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"allowed_token_ids": [65], "regex": "b"},
        {"allowed_token_ids": [65], "logit_bias": {"65": "-inf"}},
        {"json_schema": {"type": "object", "properties": {f"k{i}": {} for i in range(3000)}}},
    ],
)
def test_a_request_that_leaves_no_token_is_wrong_itself(
    client: Client, body: dict[str, Any], stream: bool
) -> None:
    response = client.post(COMPLETIONS, prompt="ROMEO:", max_tokens=3, stream=stream, **body)
    told = response.text.removeprefix("data: ") if stream else response.text
    assert response.status_code == (200 if stream else 400)
    error = json.loads(told)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "no_token_left")


def test_lenient_servers(make_client: MakeClient) -> None:
    lenient = make_client(lenient=True)
    strict = {"prompt": "ROMEO:", "max_tokens": 3, "seed": 1}
    made = lenient.made(COMPLETIONS, **strict, temprature=5, reasoning_in_content=True)
    assert made["choices"] == lenient.made(COMPLETIONS, **strict)["choices"]


def test_every_accepted_field_is_documented() -> None:
    page = on_the_site((Path(__file__).parents[2] / "docs" / "server.md").read_text())
    for name in ACCEPTED:
        assert f"`{name}`" in page, name


def test_accepted_fields_change_nothing(client: Client) -> None:
    plain = client.made(COMPLETIONS, prompt="ROMEO:", max_tokens=5, seed=1)
    values = {n: (each.values or ("any",))[0] for n, each in ACCEPTED.items() if each.values != ()}
    more = client.made(COMPLETIONS, prompt="ROMEO:", max_tokens=5, seed=1, **values)
    assert json.dumps(more["choices"]) == json.dumps(plain["choices"])


def test_a_field_may_be_an_option_in_another_notation() -> None:
    table = Fields(Field("seed", fields.whole(0, 9), option=True))
    assert table.read({}).options == table.read({"seed": None}).options == {}
    made = table.read({"seed": 3})
    assert made.options == {"seed": 3}
    assert "seed" not in made.own
    with pytest.raises(ParameterError, match=r"^seed=10: give an integer, 0 to 9$"):
        table.read({"seed": 10})


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), 1.5, -1, [1]])
def test_numbers(value: Any) -> None:
    assert fields.number(0, 1)("x", 1) == 1.0
    with pytest.raises(ParameterError, match=r"^x=.*: give a number, 0 to 1$"):
        fields.number(0, 1)("x", value)
