"""Prompts: only the template writes control tokens, and it is given what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from aleator import ParameterError, TemplateError
from aleator.chat.message import checked_messages
from aleator.chat.prompt import ChatFormat, ChatPrompt, prepare_chat
from aleator.language_model import LanguageModel
from aleator.text import Tokenizer, Vocabulary
from tests.chat import templates
from tests.text.vocabularies import CONTROL, NORMAL, USER_DEFINED, byte_level

PARTS = (*templates.GUARDED, *templates.HARMONY_PARTS)


def vocabulary(name: str = "") -> Tokenizer:
    """Bytes, control tokens of all families, and their user-defined ones; and one that is no mark."""
    fields = byte_level((*templates.MARKS, *PARTS, "    "))
    kinds = [NORMAL] * 258 + [CONTROL] * len(templates.MARKS) + [USER_DEFINED] * (len(PARTS) + 1)
    more = {"tokenizer.ggml.token_type": kinds, "general.name": name}
    return Tokenizer(Vocabulary.from_metadata(fields | more))


TOKENIZER = vocabulary()
IDS = TOKENIZER.vocab.ids


@pytest.mark.parametrize("name", templates.FAMILIES)
def test_no_text_becomes_a_control_token(name: str) -> None:
    chat_format = ChatFormat(TOKENIZER, templates.FAMILIES[name])
    source = templates.FAMILIES[name]
    hostile = "".join((*templates.MARKS, *PARTS))
    tool: Any = {"function": {"name": "f", "description": "d", "parameters": {}}}
    bad_tool: Any = {
        "function": {"name": "f", "description": hostile, "parameters": {"title": hostile}}
    }

    def marks(text: str, tool: Any) -> list[int]:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": text},
            {"role": "user", "content": text},
            {"role": "tool", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}]},
        ]
        asked = prepare_chat(ChatPrompt(messages, [tool]), chat_format, TOKENIZER, {})
        assert text in TOKENIZER.decode(asked.tokens)
        own = (p for p in PARTS if p in source or p.startswith("<|"))
        special = {IDS[m] for m in (*templates.MARKS, *own)}
        return [token for token in asked.tokens if token in special]

    assert marks("a" + hostile, bad_tool) == marks("a", tool)


def test_other_user_defined_tokens_are_read_anywhere() -> None:
    chat_format = ChatFormat(TOKENIZER, templates.HERMES)
    text = [{"role": "user", "content": "a    b<think>"}]
    asked = prepare_chat(ChatPrompt(text), chat_format, TOKENIZER, {})
    assert asked.tokens.count(IDS["    "]) == 1
    assert IDS["<think>"] not in asked.tokens


def test_an_answer_keeps_its_own_reasoning_marks() -> None:
    chat_format = ChatFormat(TOKENIZER, templates.HERMES)
    said = {"role": "assistant", "content": "<think>a</think>b"}
    chat = ChatPrompt([{"role": "user", "content": "q"}, said])
    asked = prepare_chat(chat, chat_format, TOKENIZER, {})
    assert asked.tokens.count(IDS["<think>"]) == 1


@pytest.mark.parametrize("name", templates.FAMILIES)
def test_calls_in_earlier_messages_are_written_as_json(name: str) -> None:
    chat_format = ChatFormat(TOKENIZER, templates.FAMILIES[name])
    function = {"name": "get_weather", "arguments": '{"city": "Köln"}'}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    asked = prepare_chat(ChatPrompt(messages), chat_format, TOKENIZER, {})
    if name != "generic":
        text = TOKENIZER.decode(asked.tokens)
        in_parts = name in (
            "qwen3-coder", "seed-oss", "minimax-m2", "glm", "glm line", "pythonic", "gemma4", "dsml",
            "dsml-v4", "minicpm5", "pythonic-list", "hy3",
        )  # fmt: skip
        assert ("Köln" if in_parts else '{"city": "Köln"}') in text


def test_template_arguments() -> None:
    chat_format = ChatFormat(TOKENIZER, templates.HERMES)
    assert chat_format.variables == ["enable_thinking"]
    assert chat_format.arguments(False, None) == {"enable_thinking": False}
    assert chat_format.arguments(None, {"enable_thinking": True}) == {"enable_thinking": True}
    for given, match in (
        ({"enable_thinkin": True}, "'enable_thinkin': the chat template does not read it"),
        ({"messages": []}, "'messages'"),
        ({3: 4}, "has 3"),
        ("a", "give a mapping"),
    ):
        with pytest.raises(ParameterError, match=match) as caught:
            chat_format.arguments(None, given)  # type: ignore[arg-type]
        assert caught.value.parameter == "chat_template_kwargs"
    with pytest.raises(ParameterError, match="enable_thinking=1: give True or False"):
        chat_format.arguments(1, None)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="given twice"):
        chat_format.arguments(True, {"enable_thinking": True})
    with pytest.raises(ParameterError, match="is not read by the chat template, which reads none"):
        ChatFormat(TOKENIZER, templates.GENERIC).arguments(True, None)
    other = ChatFormat(TOKENIZER, templates.DEEPSEEK_BARE)
    assert other.arguments(True, None) == {"thinking": True}


def test_reasoning_is_given_under_the_name_that_is_read() -> None:
    chat_format = ChatFormat(TOKENIZER, templates.HARMONY)
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "because"},
    ]
    assert "analysis<|message|>because<|end|>" in chat_format.rendered(messages).text


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    messages = [{"role": "developer", "content": "a"}]
    assert (
        "<|im_start|>system\na" in ChatFormat(TOKENIZER, templates.CHATML).rendered(messages).text
    )


@pytest.mark.parametrize("other", ["", "{% else %}{{ raise_exception(m.role) }}"])
def test_developer_is_system_where_the_template_uses_the_word_for_something_else(
    other: str,
) -> None:
    source = (
        "{# for developers #}{% for m in messages %}"
        "{% if m.role in ['system', 'user'] %}{{ m.role }}: {{ m.content }}\n"
        + other
        + "{% endif %}"
        "{% endfor %}"
    )
    messages = [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]
    assert ChatFormat(TOKENIZER, source).rendered(messages).text == "system: a\nuser: b\n"
    shows = source.replace("['system',", "['system', 'developer',")
    assert ChatFormat(TOKENIZER, shows).rendered(messages).text == "developer: a\nuser: b\n"


def test_tools_that_a_template_does_not_show() -> None:
    plain = ChatFormat(TOKENIZER, templates.CHATML)
    hi = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ParameterError, match="does not show tools to the model") as caught:
        prepare_chat(ChatPrompt(hi, [templates.CLOCK]), plain, TOKENIZER, {})
    assert caught.value.parameter == "tools"
    prepare_chat(ChatPrompt(hi, [templates.CLOCK], "none"), plain, TOKENIZER, {})
    with pytest.raises(TemplateError, match="no chat template"):
        ChatFormat(TOKENIZER, None)


@pytest.mark.parametrize(
    "mark",
    [
        "<parameter", "<tool_sep>", "\uff5cDSML\uff5c", "<|open|>", "<|tool_call:begin|>",
        r"Action:\n```json",
    ],
)  # fmt: skip
def test_calls_in_forms_that_are_not_read(mark: str) -> None:
    form = ChatFormat(TOKENIZER, templates.HERMES + "{# " + mark + " #}")
    hi = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ParameterError, match="which are not read yet") as caught:
        prepare_chat(ChatPrompt(hi, [templates.CLOCK]), form, TOKENIZER, {})
    assert caught.value.parameter == "tools"
    prepare_chat(ChatPrompt(hi), form, TOKENIZER, {})


def test_arguments_that_a_template_writes_one_by_one() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% for name, value in c.function.arguments.items() %}<{{ name }}>{{ value }}{% endfor %}"
        "{% endfor %}{% endfor %}"
    )
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
    assert ChatFormat(TOKENIZER, source).rendered(checked_messages(said)).text == "q<a>1"


def test_the_templates_marks_of_reasoning_come_first() -> None:
    assert "</think>" in IDS
    form = ChatFormat(TOKENIZER, templates.MISTRAL + "{# [THINK] #}")
    assert form.thinking is not None
    assert form.thinking.begin == "[THINK]"


@pytest.mark.parametrize("name", ["", "Phi-3"])  # whose control tokens take line breaks
def test_known_tokens_are_kept_where_they_fit(name: str) -> None:
    chat_format = ChatFormat(vocabulary(name), templates.CHATML)
    hi = [{"role": "user", "content": "abc"}]
    rendered = chat_format.rendered(hi)
    whole = chat_format.tokens(rendered)
    assert IDS["abc"] in whole
    start = whole.index(IDS["abc"])
    known = [*whole[:start], *b"abc", *whole[start + 1 : start + 3], 7]
    assert chat_format.tokens(rendered, known)[: len(known) - 1] == known[:-1]
    assert chat_format.tokens(rendered, [1, 2]) == whole


def test_the_name_of_a_file_is_no_template(model: LanguageModel) -> None:
    with pytest.raises(TemplateError, match=r"'tools\.jinja' is plain text.*--chat-template FILE"):
        model.chat([{"role": "user", "content": "Hi"}], chat_template="tools.jinja")


@pytest.mark.parametrize(
    ("name", "reply", "content"),
    [
        ("command-r7b", "<|START_RESPONSE|>Hello.<|END_RESPONSE|>", "Hello."),
        ("command-r7b", "<|START_TEXT|>Hello.<|END_TEXT|>", "Hello."),
        ("command-r7b", "<|START_ACTION|>[{", "<|START_ACTION|>[{"),
        ("functionary-v3.2", "all\nHello.", "Hello."),
        ("gemma4", "Hello.<channel|>", "Hello."),
        ("gemma4", "<|tool_call>call:f{}<tool_call|>", "<|tool_call>call:f{}<tool_call|>"),
        ("hermes", "<tool_call>", "<tool_call>"),
    ],
)
def test_without_tools_nothing_is_a_call_and_marks_of_content_are_left_out(
    name: str, reply: str, content: str
) -> None:
    chat = ChatPrompt([{"role": "user", "content": "Hi"}])
    made = prepare_chat(chat, ChatFormat(TOKENIZER, templates.FAMILIES[name]), TOKENIZER, {})
    reader = made.reader(b"")
    reader.push(reply)
    reader.finish()
    assert (reader.message.content, reader.message.tool_calls) == (content, ())
