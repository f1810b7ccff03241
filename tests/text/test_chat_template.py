from __future__ import annotations

import datetime
import json
from collections.abc import Callable

import pytest

from aleator.core.errors import ParameterError, TemplateError
from aleator.text import ChatTemplate, Tokenizer, Vocabulary
from tests.text.vocabularies import byte_level

VOCAB = Vocabulary.from_metadata(byte_level(("<s>", "</s>"), bos_token_id=258, eos_token_id=259))
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<ho>"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, VOCAB).render(MESSAGES, **variables)  # type: ignore[arg-type]


def test_a_real_template(tokenizer: Callable[[str], Tokenizer]) -> None:
    tok = tokenizer("qwen2")
    text = ChatTemplate(tok.vocab.chat_template, tok.vocab).render(MESSAGES[:1])
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tok.encode(text, add_special=False, parse_special=True)
    assert ids.count(151645) == 2
    assert tok.decode(ids) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}{{ unk_token }}", "<s></s>"),
        ("{% for m in messages %}\n  {{ m.role }}\n{% endfor %}\n", "  user\n  assistant\n"),
        ("  {% if true %}\na{% endif %}", "a"),
        ("{% for m in messages %}{{ loop.index }}{% break %}{% endfor %}", "1"),
        ("{% for m in messages if m.role == 'x' %}a{% else %}none{% endfor %}", "none"),
        ("{% for m in messages if m.content != 'hi' %}{{ loop.last }}{% endfor %}", "True"),
        ("{{ add_generation_prompt }}", "True"),
        ("{{ tools is none }}", "True"),
        ("{{ messages[1]['content'] | tojson }}", '"<ho>"'),
        ("{{ {'é': 1} | tojson(indent=2) }}", '{\n  "é": 1\n}'),
        ("{{ messages | map(attribute='role') | tojson }}", '["user", "assistant"]'),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 2 %}{{ ns.n ** 2 * 3 }}", "12"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('é') }}", "<é>"),
        ("{{ '%s!' % 'a' }}{{ '{:>3}'.format('b') }}{{ 'c' | center(3) }}", "a!  b c "),
        ("{{ messages | map(attribute='role') | join(',') }}", "user,assistant"),
        ("{{ enable_thinking is defined }}", "False"),
    ],
)
def test_language(source: str, text: str) -> None:
    assert render(source) == text


def test_variables() -> None:
    tools = [{"name": "f"}]
    assert render("{{ tools | tojson }}", tools=tools) == json.dumps(tools)
    assert render("{{ x }}", x=3) == "3"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"


def test_strftime_now() -> None:
    assert abs(int(render("{{ strftime_now('%Y') }}")) - datetime.date.today().year) <= 1


@pytest.mark.parametrize("source", [None, "", " \n"])
def test_missing_template(source: str | None) -> None:
    with pytest.raises(TemplateError, match=r"no chat template.*--chat-template"):
        ChatTemplate(source, VOCAB)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "line 2: Expected an expression"),
        ("{% for m in messages %}", "line 1: Unexpected end"),
        ("\n\n{{ x | nothing }}", "line 3: No filter named 'nothing'"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "cannot be compiled"),
    ],
)
def test_templates_that_do_not_parse(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(source, VOCAB)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "\n{{ raise_exception('System role not supported') }}",
            "line 2: it refuses the conversation: System role not supported: write what",
        ),
        # Of Mistral's and Qwen's, which take a system's message.
        ("{{ raise_exception('Only system and user roles are supported!') }}", "supported!$"),
        ("{{ raise_exception('System message must be at the beginning.') }}", "beginning.$"),
        ("a\nb\n{{ x.y }}", "line 3: 'x' is undefined"),
        ("{{ 1 // 0 }}", "line 1: integer division"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ [].clear() }}", "unsafe"),
        ("{% include 'x' %}", "line 1: no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_templates_that_fail(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


def test_a_template_extends_lists_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kimi K2's keep the calls' ids until the results come."""
    monkeypatch.setattr("aleator.text.chat_template.MAX_SECONDS", 600.0)  # a machine may be busy
    source = "{% set n = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = n.ids.append(i) %}{% endfor %}"
    assert render(source + "{{ n.ids.pop(0) }} {{ n.ids }}") == "0 [1, 2]"
    many = source.replace("range(3)", "range(100000)")
    with pytest.raises(TemplateError, match="a list of more than 100000 entries"):
        render(many + "{{ n.ids.append(1) }}")
    taken = "{{ n.ids.index(1) }} {{ n.ids.pop() }} {{ n.ids.append(1) or n.ids|length }}"
    assert render(many + taken) == "1 99999 100000"


@pytest.mark.parametrize("way", ["given.parts", "given.pair[0]", "given.pair[1].deep"])
def test_a_template_does_not_extend_lists_of_the_caller(way: str) -> None:
    given = {"parts": [1], "pair": ([1], {"deep": [1]})}
    with pytest.raises(TemplateError, match="unsafe"):
        render(f"{{% set own = {way} %}}{{{{ own.append(2) }}}}", given=given)
    assert given == {"parts": [1], "pair": ([1], {"deep": [1]})}


@pytest.mark.parametrize("messages", [["hi"], [{"content": "hi"}], [{"role": 1}]])
def test_messages_are_checked(messages: list[object]) -> None:
    with pytest.raises(ParameterError, match=r"messages\[0\] must be a mapping with a 'role'"):
        ChatTemplate("x", VOCAB).render(messages)  # type: ignore[arg-type]
