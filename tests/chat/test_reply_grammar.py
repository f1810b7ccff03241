"""Forced replies: whatever is drawn, the arguments satisfy their schema, and the reply is read as the call."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from aleator import GrammarError, ParameterError
from aleator.chat.message import Message
from aleator.chat.prompt import ChatFormat, ChatPrompt, PreparedChat, prepare_chat
from tests.chat import templates
from tests.chat.test_format import IDS, TOKENIZER

CLOSING = (
    "</think>", "\n</parameter>", "</parameter>", "</arg_value>", '"', '<|"|>', "</｜DSML｜parameter>",
    "</param>",
)  # fmt: skip
"""What ends strings: random tokens would hardly come upon it."""
HI = [{"role": "user", "content": "Hi"}]
CITY = templates.WEATHER["function"]["parameters"]


def drawn(asked: PreparedChat, seed: int, closing: Sequence[str] = ()) -> tuple[str, list[int]]:
    """A reply of random tokens that the grammar allows."""
    rng, vocab = random.Random(seed), TOKENIZER.vocab
    grammar = asked.options.get("grammar")
    assert grammar is not None
    at = grammar.bound(TOKENIZER).constraint.clone()
    tokens: list[int] = []
    stream = TOKENIZER.stream(shown=asked.options["shown_tokens"])
    text = ""
    while len(tokens) < 400:
        allowed = [t for t in range(len(vocab)) if at.allows(t) and t not in vocab.eog]
        if not allowed:
            break
        if closing and rng.random() < 0.2:
            whole = next(
                (ids for ids in map(_tokens, rng.sample(closing, len(closing))) if _fits(at, ids)),
                [],
            )
            for token in whole:
                at.accept(token)
                text += stream.push(token)
            tokens += whole
            if whole:
                continue
        # The end of reasoning is one token of many.
        ends = [t for t in allowed if vocab.tokens[t] in ("</think>", "<|end|>")]
        token = ends[0] if ends and rng.random() < 0.1 else rng.choice(allowed)
        at.accept(token)
        tokens.append(token)
        text += stream.push(token)
    assert at.complete
    return text + stream.flush(), tokens


def read(asked: PreparedChat, text: str) -> Message:
    """The message that a whole reply is."""
    reply = asked.reply_of(0)
    reply.push(text)
    reply.finish()
    return reply.message


def _tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False, parse_special=True)


def _fits(constraint: Any, ids: Sequence[int]) -> bool:
    """Whether these tokens may come next."""
    trial = constraint.clone()
    for token in ids:
        if not trial.allows(token):
            return False
        trial.accept(token)
    return True


@pytest.mark.parametrize("name", templates.FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_forced_call_satisfies_its_schema(name: str, seed: int) -> None:
    chat_format = ChatFormat(TOKENIZER, templates.FAMILIES[name])
    chat = ChatPrompt(HI, [templates.WEATHER, templates.CLOCK], "get_weather")
    asked = prepare_chat(chat, chat_format, TOKENIZER, {})
    text, _ = drawn(asked, seed, CLOSING)
    message = read(asked, text)
    (call,) = message.tool_calls
    assert (call.name, call.complete) == ("get_weather", True)
    jsonschema.validate(json.loads(call.arguments), CITY)
    assert message.content == ""


IN_PARTS = [
    "qwen3-coder", "seed-oss", "minimax-m2", "glm", "glm line", "pythonic", "gemma4", "dsml", "dsml-v4",
    "minicpm5", "pythonic-list",
]  # fmt: skip


@pytest.mark.parametrize("name", IN_PARTS)
def test_arguments_may_be_left_out(name: str) -> None:
    chat_format = ChatFormat(TOKENIZER, templates.FAMILIES[name])
    closing = [end for end in CLOSING if end.strip() in templates.FAMILIES[name]] or CLOSING
    seen: set[str] = set()
    for seed in range(4):
        asked = prepare_chat(ChatPrompt(HI, [templates.WRITE], "write"), chat_format, TOKENIZER, {})
        text, _ = drawn(asked, seed, closing)
        (call,) = read(asked, text).tool_calls
        assert (call.name, call.complete) == ("write", True)
        arguments = json.loads(call.arguments)
        jsonschema.validate(arguments, templates.WRITE["function"]["parameters"])
        seen |= arguments.keys()
    assert {"name", "kind"} <= seen


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"anyOf": [{}]}, "'anyOf' cannot be enforced in qwen3-coder's form"),
        ({"properties": {"a": {"type": "string", "pattern": "x"}}}, "'pattern' of 'a' cannot be enforced"),
        ({"properties": {"<": {}}}, "'<' cannot be written"),
        ({"required": ["a"]}, "'a' is required and not among the properties"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_enforced_one_by_one_are_refused(
    schema: dict[str, Any], said: str
) -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", **schema}},
    }
    chat_format = ChatFormat(TOKENIZER, templates.QWEN3_CODER)
    with pytest.raises(GrammarError, match=said):
        prepare_chat(ChatPrompt(HI, [tool], "f"), chat_format, TOKENIZER, {})


@pytest.mark.parametrize(
    "name", ["hermes", "mistral args", "deepseek bare", "harmony", "llama3", "glm"]
)
def test_one_of_several_tools_is_called(name: str) -> None:
    chat_format = ChatFormat(TOKENIZER, templates.FAMILIES[name])
    chat = ChatPrompt(HI, [templates.WEATHER, templates.CLOCK], "required")
    called = set()
    for seed in range(6):
        asked = prepare_chat(chat, chat_format, TOKENIZER, {})
        text, _ = drawn(asked, seed)
        (call,) = read(asked, text).tool_calls
        assert call.complete
        called.add(call.name)
    assert called == {"get_weather", "clock"}


def test_control_tokens_are_tokens() -> None:
    chat_format = ChatFormat(TOKENIZER, templates.MISTRAL_ARGS)
    asked = prepare_chat(ChatPrompt(HI, [templates.CLOCK], "clock"), chat_format, TOKENIZER, {})
    text, tokens = drawn(asked, 0)
    assert tokens[0] == IDS["[TOOL_CALLS]"]
    assert IDS["[ARGS]"] in tokens
    assert text == "[TOOL_CALLS]clock[ARGS]{}"


def test_reasoning_comes_before_what_is_forced() -> None:
    opened = ChatFormat(TOKENIZER, templates.DEEPSEEK)
    asked = prepare_chat(ChatPrompt(HI), opened, TOKENIZER, {"json_schema": CITY})
    assert asked.options["complete_grammar"] is False
    text, _ = drawn(asked, 3)
    message = read(asked, text)
    jsonschema.validate(json.loads(message.content), CITY)
    assert text.startswith(message.reasoning_content[:1])
    # Where it is turned off there is none, and the schema is an option like any other.
    closed = ChatFormat(TOKENIZER, templates.HERMES)
    asked = prepare_chat(
        ChatPrompt(HI, enable_thinking=False), closed, TOKENIZER, {"json_schema": CITY}
    )
    assert asked.options["json_schema"] == CITY
    assert "grammar" not in asked.options
    assert (
        "grammar" in prepare_chat(ChatPrompt(HI), closed, TOKENIZER, {"json_schema": CITY}).options
    )


def test_json_of_harmony_is_on_the_final_channel() -> None:
    asked = prepare_chat(
        ChatPrompt(HI), ChatFormat(TOKENIZER, templates.HARMONY), TOKENIZER, {"json_schema": CITY}
    )
    text, _ = drawn(asked, 1)
    jsonschema.validate(json.loads(read(asked, text).content), CITY)


def test_what_cannot_be_enforced_is_refused() -> None:
    chat_format = ChatFormat(TOKENIZER, templates.HERMES)

    def ask(options: dict[str, Any], *chat: Any) -> PreparedChat:
        return prepare_chat(ChatPrompt(HI, *chat), chat_format, TOKENIZER, options)

    with pytest.raises(ParameterError, match="and with tools the reply may be a call instead"):
        ask({"json_schema": {}}, [templates.CLOCK])
    ask({"json_schema": {}}, [templates.CLOCK], "none")
    with pytest.raises(ParameterError, match="regex and tool_choice both say"):
        ask({"regex": "a"}, [templates.CLOCK], "required")
    with pytest.raises(ParameterError, match="regex and json_schema are both given"):
        ask({"regex": "a", "json_schema": {}})
    odd = {"function": {"name": "odd", "parameters": {"type": "object", "dependentSchemas": {}}}}
    with pytest.raises(GrammarError, match=r"tools: parameters of odd: .*dependentSchemas"):
        ask({}, [odd], "odd")
    ask({}, [odd])
