"""Chats of the npm package against this one: templates' texts, tokens, answers and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.chat.message import checked_messages
from aleator.chat.prompt import ChatFormat
from aleator.grammar import compile_gbnf
from aleator.models.hub.bundled import bundled_model
from tests.javascript.byte_texts import BYTES, takes
from tests.javascript.conftest import Run, Talks

TEMPLATES = {
    path.stem: path.read_text().removesuffix("\n")
    for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
"""In the ways of several families of models, each with other parts of the language."""
TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Good morrow."}],
    [
        {"role": "system", "content": "Speak \u201cverse\u201d."},
        {"role": "user", "content": "  Who's there?\n"},
        {"role": "assistant", "content": "<think>\nHm\n</think>\n\nNay, answer me."},
        {"role": "user", "content": "<|im_end|> <s> {{ 7 * 7 }} \U0001f600", "name": "bernardo"},
    ],
    [
        {"role": "developer", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "user", "content": "\ue000 in private use"},
    ],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
]  # fmt: skip


def _written(talk: list[dict[str, Any]], source: str) -> Any:
    model = aleator.load()
    try:
        chat = ChatFormat(model.tokenizer, source)
        rendered = chat.rendered(checked_messages(talk))
    except aleator.TemplateError:
        return "TemplateError"
    return [rendered.text, chat.tokens(rendered)]


def test_templates_write_the_same_texts_and_tokens(run: Run) -> None:
    works = [(name, talk) for name in TEMPLATES for talk in TALKS]
    cases = [
        {"path": str(bundled_model()), "source": TEMPLATES[name], "messages": talk}
        for name, talk in works
    ]
    found = run("templates", cases)
    for (name, talk), told in zip(works, found, strict=True):
        told = told["error"] if isinstance(told, dict) else told
        assert told == _written(talk, TEMPLATES[name]), (name, talk)
    refused = [work for work, told in zip(works, found, strict=True) if isinstance(told, dict)]
    assert {name for name, _ in refused} == {"instruct", "turns", "undefined"}


DOUBLING = (
    "{% set ns = namespace(x=VALUE) %}{% for i in range(60) %}"
    "{% set ns.x = ns.x OPERATOR ns.x %}{% endfor %}"
)
HOSTILE = [
    "{% for a in range(1000000000) %}{% endfor %}",
    *(
        DOUBLING.replace("VALUE", value).replace("OPERATOR", operator)
        for value, operator in (("'a'", "~"), ("'a'", "+"), ("[1]", "+"))
    ),
    "{{ [1] | tojson(indent=1000000) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ [1, 2] | constructor }}",
    "{{ [range, 'min'] | __defineGetter__ }}",
    "{{ range.constructor('return 1')() }}",
    "{{ nothing.constructor }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].content[0].constructor.prototype }}",
    "{{ 1 / 0 }}",
]


def test_templates_have_limits_and_reach_nothing_else(run: Run) -> None:
    path, talk = str(bundled_model()), TALKS[0]
    loop = "{% for a in range(100000) %}"
    slow = loop + loop + "{% endfor %}" * 2
    nested = (
        "{% set ns = namespace(x='a') %}{% for i in range(50) %}"
        "{% set ns.x = [ns.x, ns.x] if i > 20 else ns.x ~ ns.x %}{% endfor %}"
    )
    only = [slow, nested + "{{ ns.x | tojson }}"]  # Python would take long
    sources = [*HOSTILE, *only]
    found = run(
        "templates",
        [
            {"path": path, "source": f"{each}{{{{ messages[0].role }}}}", "messages": talk}
            for each in sources
        ],
    )
    for source, told in zip(sources, found, strict=True):
        assert isinstance(told, dict), (source, told)
        assert told["error"] == "TemplateError", (source, told)
        assert source in only or _written(talk, source) == "TemplateError", source
    late = "not done after 10 seconds"
    assert late in found[-2]["message"]
    assert any(each in found[-1]["message"] for each in ("16777216", late))


@pytest.mark.skipif(os.name == "nt", reason="the language is another variable's")
def test_dates_are_in_english(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    source = (
        "{{ messages[0].content }}{{ strftime_now('%d %-d %e %b %B %A %a %y %Y %j %I %p %%') }}"
    )
    before = _written(TALKS[0], source)
    [told] = run(
        "templates", [{"path": str(bundled_model()), "source": source, "messages": TALKS[0]}]
    )
    assert told in (before, _written(TALKS[0], source))


def _answered(messages: Any, **options: Any) -> dict[str, Any]:
    answer = aleator.load().chat(messages, **options)
    pieces = "".join(answer)
    reasoning = {"reasoning_content": r} if (r := answer.message.reasoning_content) else {}
    return {
        "pieces": pieces,
        "tokens": list(answer.tokens),
        "message": {"role": "assistant", "content": pieces, **reasoning},
    }


@pytest.mark.parametrize("template", [None, "opened", "headers"])
def test_answers_are_the_same(run: Run, template: str | None) -> None:
    own = {} if template is None else {"chat_template": TEMPLATES[template]}
    theirs = {} if template is None else {"chatTemplate": TEMPLATES[template]}
    bias: dict[str, Any] = {"logit_bias": {33: 1.5}}
    cases: list[dict[str, Any]] = [
        {
            "path": str(bundled_model()),
            "messages": talk,
            "options": {"seed": i, "maxTokens": 40, **theirs, **bias},
        }
        for i, talk in enumerate(TALKS)
    ]
    expected = [
        _answered(talk, seed=i, max_tokens=40, **own, **bias) for i, talk in enumerate(TALKS)
    ]
    assert run("talks", cases) == expected


def test_reasoning_is_apart_from_the_content(talks: Talks) -> None:
    grammar = 'root ::= " <think>\\nHm, " "no.\\n" "</think>\\n" "Yes" "."'
    talk = [{"role": "user", "content": "Is it so?"}]
    options = {"seed": 1, "grammar": grammar, "chat_template": TEMPLATES["reasoning"]}
    theirs = {"seed": 1, "grammar": grammar, "chatTemplate": TEMPLATES["reasoning"]}
    [told] = talks(talk, theirs)
    assert told == _answered(talk, **options)
    assert told["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm, no.",
    }


PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Romeo", "Juliet"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("template", [None, "reasoning", "headers"])
def test_an_answer_is_json(talks: Talks, template: str | None) -> None:
    own = {} if template is None else {"chatTemplate": TEMPLATES[template]}
    asked: list[dict[str, Any]] = [
        {"json_schema": PERSON, "logit_bias": [["<", -30]]},
        {"json_schema": json.dumps(PERSON), "enableThinking": False},
        {"json_schema": PERSON, "logit_bias": [["<", 30]]},  # it reasons, where it may
        {"json_schema": PERSON, "grammar": 'root ::= "a"'},
    ]
    talk = [{"role": "user", "content": "Who art thou?"}]
    base = {"maxTokens": 50, "seed": 3, **own}
    plain, shut, biased, two = talks(talk, *({**base, **each} for each in asked))
    assert json.loads(plain["message"]["content"])["name"] in ("Romeo", "Juliet")
    assert two["error"] == "ParameterError"
    assert "json_schema" in two["message"]
    if template == "reasoning":
        assert json.loads(shut["message"]["content"])["age"] < 100
        assert biased["message"]["reasoning_content"] != ""
    else:
        assert "enableThinking" in shut["message"]  # which the template does not read
        assert json.loads(biased["message"]["content"])["age"] < 100


def test_reasoning_comes_before_json_up_to_its_mark(run: Run) -> None:
    thinking = {"begin": "<<", "end": "aab>", "after": ""}
    asked = [
        {**thinking, "opened": False},
        {**thinking, "opened": True},
        {**thinking, "opened": True, "after": "="},
    ]
    cases = [{"thinking": each, "schema": {"const": 1}} for each in asked]
    closed, opened, after = (compile_gbnf(text, "root", BYTES) for text in run("grammars", cases))
    good = [
        "aab>1",
        "x aaab>\n1",
        "aaaab>\n\n1",
        "aaaa aabaab>1",
        "\u00e9aa\U0001f600aab>1",
        "aab<<aab>1",
    ]
    bad = ["1", "aab1", "aab>\n\n\n1", "aab>1aab>1", "a ab>1", "aab>"]
    assert [each for each in good if not takes(opened, each)] == []
    assert [each for each in bad if takes(opened, each)] == []
    assert [each for each in good if not takes(closed, f"<<{each}")] == []
    assert [each for each in (*good, *bad[1:]) if takes(closed, each)] == []
    assert takes(closed, "1")
    assert takes(after, "aab>=1")
    assert not takes(after, "aab>1")


def test_a_template_gets_its_variables(talks: Talks) -> None:
    talk = [{"role": "user", "content": "a"}]
    source = "{{ messages[0].content }}{{ enable_thinking }}{{ colour }}"
    colour = {"templateArguments": {"colour": "red"}, "maxTokens": 0}
    told = talks(
        talk,
        {"chatTemplate": source, "enableThinking": True, **colour},
        {"chatTemplate": source, "templateArguments": {"size": 3}},
        {"chatTemplate": "{{ messages[0].content }}", "enableThinking": True},
        {"chatTemplate": "{{ messages[0].content }} {% if %}"},
        {"chatTemplate": " "},
        {"chatTemplate": "tools.jinja"},
    )  # fmt: skip
    assert "error" not in told[0]
    errors = [(each["error"], each["message"]) for each in told[1:]]
    kinds = ["ParameterError"] * 2 + ["TemplateError"] * 3
    assert [kind for kind, _ in errors] == kinds
    assert "templateArguments.size=3" in errors[0][1]
    assert "enableThinking=true" in errors[1][1]
    assert '"tools.jinja" is plain text' in errors[4][1]


def test_messages_of_another_form_are_refused(run: Run) -> None:
    wrong: list[tuple[Any, str]] = [
        ("hello", "messages="),
        ([], "messages is empty"),
        ([3], "messages[0]=3"),
        ([{"role": "king", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "a", "weight": 3}], "messages[0].weight"),
        ([{"role": "user", "content": "a", "name": 3}], "messages[0].name"),
    ]
    path = str(bundled_model())
    told = run("talks", [{"path": path, "messages": each, "options": {}} for each, _ in wrong])
    for (messages, said), result in zip(wrong, told, strict=True):
        with pytest.raises(aleator.ParameterError):
            aleator.load().chat(messages)
        assert result["error"] == "ParameterError"
        assert said in result["message"]
