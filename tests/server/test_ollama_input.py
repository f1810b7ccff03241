"""Requests of Ollama as chats."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.server.chat import ChatRequest
from aleator.server.dialects.nested import Nested
from aleator.server.dialects.ollama_input import (
    CHAT,
    GENERATION,
    chat_of,
    generation_of,
    messages_of,
    seconds_of,
)

HI = [{"role": "user", "content": "Hi"}]


def asked(**body: Any) -> ChatRequest:
    return chat_of(CHAT.read({"model": "m", "messages": HI, **body}), 64)


def test_options_have_our_names() -> None:
    """Those of Ollama's own example, but for what it asks of the machine."""
    made = asked(
        options={
            "num_keep": 5, "seed": 42, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0,
            "typical_p": 0.7, "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2,
            "presence_penalty": 1.5, "frequency_penalty": 1.0, "mirostat": 1, "mirostat_tau": 0.8,
            "mirostat_eta": 0.6, "penalize_newline": True, "stop": ["\n", "user:"], "numa": False,
            "num_ctx": 64, "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "low_vram": False,
            "vocab_only": False, "use_mmap": True, "use_mlock": False, "num_thread": 8,
        }
    )  # fmt: skip
    assert made.options == {
        "n_keep": 5, "seed": 42, "max_tokens": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0,
        "typical_p": 0.7, "penalty_last_n": 33, "temperature": 0.8, "repetition_penalty": 1.2,
        "presence_penalty": 1.5, "frequency_penalty": 1.0, "mirostat": 1, "mirostat_tau": 0.8,
        "mirostat_eta": 0.6, "stop": ["\n", "user:"],
    }  # fmt: skip


def test_calls_and_their_results_find_each_other() -> None:
    def call(name: str, **more: str) -> dict[str, Any]:
        return {**more, "function": {"name": name, "arguments": {"a": 1}, "index": 0}}

    messages = [
        *HI,
        {
            "role": "assistant",
            "thinking": "t",
            "tool_calls": [call("f"), call("g"), call("g", id="own")],
        },
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3", "tool_call_id": "own"},
        {"role": "tool", "content": "4"},
        {"role": "tool", "content": "5", "tool_call_id": "own"},
        {"role": "assistant", "content": "6"},
        {"role": "system", "content": None},
    ]
    made = messages_of(Nested("", {"messages": messages}, "an object"))
    assert made[1]["reasoning_content"] == "t"
    assert [each["id"] for each in made[1]["tool_calls"]] == ["call00000", "call00001", "own"]
    assert made[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert made[2:] == [
        {"role": "tool", "content": "1", "name": "g", "tool_call_id": "call00001"},
        {"role": "tool", "content": "2", "tool_call_id": "call00000"},
        {"role": "tool", "content": "3", "tool_call_id": "own"},
        {"role": "tool", "content": "4"},
        {"role": "tool", "content": "5", "tool_call_id": "own"},
        {"role": "assistant", "content": "6"},
        {"role": "system", "content": ""},
    ]


def test_what_is_asked_of_a_chat() -> None:
    schema = {"type": "object", "properties": {}}
    assert asked(format=schema).options == {"json_schema": schema}
    assert asked(format="json").options == {"json_schema": {"type": "object"}}
    assert asked(format="").options == {}
    assert asked(think=True).enable_thinking is True
    assert asked(think=False).enable_thinking is False
    made = asked(think="low")
    assert (made.enable_thinking, made.template_arguments) == (None, {"reasoning_effort": "low"})
    assert asked(logprobs=True, top_logprobs=2).options == {"logprobs": 2}
    assert asked(options={"num_predict": -2}).options == {"max_tokens": -1}
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert asked(tools=tools, keep_alive="5m").tools == tools


def test_a_prompt_is_a_message_of_the_user() -> None:
    body = GENERATION.read(
        {"model": "m", "prompt": "Hi", "system": "Be brief.", "template": "", "context": []}
    )
    assert generation_of(body, 64).messages == [{"role": "system", "content": "Be brief."}, *HI]


@pytest.mark.parametrize(
    ("body", "name", "said"),
    [
        ({"model": None}, "model", "missing"),
        ({"options": {"temprature": 1}}, "options.temprature", "did you mean temperature"),
        ({"options": {"num_ctx": 65}}, "options.num_ctx", "the server has 64 positions"),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline", "logit_bias"),
        ({"options": {"num_predict": 3, "max_tokens": 4}}, "options.max_tokens", "given twice"),
        ({"options": {"logprobs": 3}}, "options.logprobs", "there is no field"),
        ({"format": "xml"}, "format", 'give "json"'),
        ({"think": 3}, "think", "give true, false"),
        ({"top_logprobs": 2}, "top_logprobs", "it needs logprobs"),
        (
            {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            "messages[0].images",
            "pictures are not supported",
        ),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role", "give 'user'"),
        (
            {"messages": [{"role": "user", "content": "x", "thinking": "y"}]},
            "messages[0].thinking",
            "unknown",
        ),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]},
            "messages[0].tool_call_id",
            "no call before it",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function",
            "give an object",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    body: dict[str, Any], name: str, said: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        asked(**body)
    assert caught.value.parameter == name
    assert said in str(caught.value)


@pytest.mark.parametrize("field", ["suffix", "template", "context", "images"])
def test_what_generate_does_not_do(field: str) -> None:
    value = [1] if field in ("context", "images") else "x"
    with pytest.raises(ParameterError, match=field):
        GENERATION.read({"model": "m", "prompt": "x", field: value})


def test_lenient() -> None:
    body = CHAT.read(
        {"model": "m", "messages": [{**HI[0], "typo": 1}], "typo": 1, "options": {"typo": 1}}, True
    )
    assert chat_of(body, 64) == ChatRequest(messages=HI)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0, 0.0), (300, 300.0), (1.5, 1.5), (-1, -1.0), ("0", 0.0), ("5m", 300.0), ("1h30m", 5400.0),
        ("-1m", -60.0), ("+.5s", 0.5), ("1.5h", 5400.0), ("250ms", 0.25), ("1s2us3ns", 1.000002003),
        ("3µs", 3e-6), (10**400, 1e18),
    ],
)  # fmt: skip
def test_durations(value: Any, wanted: float) -> None:
    assert seconds_of(value) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    "value", ["", "-", "5", "5 m", "m", "5x", "1h-3m", "٣s", True, [], {}, float("nan"), "1s" * 33]
)
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"keep_alive.*give seconds"):
        seconds_of(value)
    assert seconds_of("1s" * 32) == 32.0
