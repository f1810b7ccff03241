"""Calls of tools in the npm package: prompts, replies however they are cut, forced calls."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

import aleator
from aleator.chat.families import family_of
from aleator.chat.message import checked_messages, checked_tools, chosen_tools
from aleator.chat.prompt import ChatFormat
from aleator.chat.reply import Reply, Thinking
from aleator.core.json_text import MOST_LEVELS
from aleator.grammar import compile_gbnf
from aleator.models.hub.bundled import bundled_model
from tests.chat import templates, test_damaged_calls, test_families
from tests.javascript.byte_texts import BYTES, takes
from tests.javascript.conftest import Refuses, Run, Talks

THINK = Thinking("<think>", "</think>")
TOOLS = [templates.WEATHER, templates.CLOCK, templates.WRITE]
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
REPLIES = [
    (name, text) for name, text, *_ in (*test_families.CASES, *test_damaged_calls.CASES)
]  # fmt: skip
HARMONY = (
    "<|channel|>analysis<|message|>Think {hard}.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
    '<|message|>{"a": [1.50, "\\u00e9"]}<|call|>'
)
VALUES = (
    r"""{a:1.50,b:1e400,c:-0.0,d:1e-7,e:123456789012345678901234567890,f:[1e16,1.0,0.00001234],g:{k:"\u00e9\n"}}""",
    r"""{a:{"1":2,"0":[],"x":1,"x":2},b: 007 ,c:NaN,d:true,e:"a\/b"}""",
)
LITERALS = (
    r"""f(a='\x41\u00e9\U0001F600\101\7', b="a\
b", c='''x"y\r''', d=(1,), e=(), f=0b1_01, g=-0xFF, h=1_0.5e-3, i=.5, j=5., k=1e5)""",
    r"""f(a='\d\/\'', b={'k': [None, True,],}, c=٣, d=١.٥)""",
    r"""f(a="\ud800x", b='\N', c=1)""", r"""f(a='\x4')""", r"""f(a='x
y')""", "f(a=+5, b=0x, c=1)", "f(a=00, b=-5)", "f(a=01)", "f(a='\\U00110000')",
)  # fmt: skip


def _cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _damaged(rng: random.Random, name: str, text: str) -> str:
    """A reply of which a part is lost, repeated, or another family's."""
    a, b = sorted(rng.choices(range(len(text) + 1), k=2))
    more: str = rng.choice(
        ("", text[a:b], rng.choice(REPLIES)[1], *'"{}[]\\,:\n', "\U0001f600", " ")
    )
    return text[:a] + more[:200] + text[rng.choice((a, b)) :]


def _cases() -> list[dict[str, Any]]:
    rng = random.Random(5)
    texts = [*REPLIES, ("harmony", HARMONY)]
    texts += [(name, f"No channels, and no calls of {name}.") for name in templates.FAMILIES]
    texts += [("gemma4", f"<|tool_call>call:f{each}<tool_call|>") for each in VALUES]
    texts += [("pythonic", f"a<|tool_call_start|>[{each}]<|tool_call_end|>b") for each in LITERALS]
    texts += [("hermes", f"<think>\nOne.\n</think>\n\n{text}") for _, text in REPLIES[:8]]
    texts += [(name, _damaged(rng, name, text)) for name, text in texts * 3]
    made = []
    for i, (name, text) in enumerate(texts):
        for size in (1, 3, 10_000) if i < len(REPLIES) else (rng.choice((1, 2, 7)),):
            thinking = {"thinking": dataclasses.asdict(THINK), "opened": i % 7 == 0}
            made.append(
                {"template": templates.FAMILIES[name], "pieces": _cut(text, size), **thinking}
            )
    return made


def _read(template: str, pieces: Sequence[str], opened: bool) -> dict[str, Any]:
    family = family_of(template)
    reply = Reply(family, None if family.thinking else THINK, opened, SCHEMAS, b"key")
    deltas = [[vars_of(each) for each in reply.push(piece)] for piece in pieces]
    deltas.append([vars_of(each) for each in reply.finish()])
    return {"name": family.name, "deltas": deltas, "message": reply.message.as_json()}


def vars_of(delta: Any) -> dict[str, Any]:
    return {name: getattr(delta, name) for name in ("kind", "text", "index", "id")}


def test_replies_are_read_the_same_however_they_are_cut(run: Run) -> None:
    cases = _cases()
    found = run("replies", [{**case, "tools": SCHEMAS} for case in cases])
    kinds = set()
    for case, told in zip(cases, found, strict=True):
        wanted = _read(case["template"], case["pieces"], case["opened"])
        assert told == wanted, "".join(case["pieces"])
        kinds |= {(told["name"], each["kind"]) for deltas in told["deltas"] for each in deltas}
    for name in templates.FAMILIES:
        assert {(name.split()[0], kind) for kind in ("content", "call", "arguments")} <= kinds


ARGUMENTS = '{"city": "Pa\\"ris \\u00e9", "days": 2, "at": 0.5}'
MORE = ARGUMENTS.replace("0.5", '[0.5, true, null, {"a": {}, "10": 1.0, "2": 1e16}]')


def _talk(arguments: str) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [
        {"role": "user", "content": "How <tool_call> is it?"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"t": 7}'},
        {"role": "assistant", "content": "Fair."},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]


HI = _talk(ARGUMENTS)[:1]
CALLS = "{% for m in messages %}{% for call in m.tool_calls or [] %}{% set a = call.function.arguments %}"
MAPPINGS = (
    CALLS
    + "{% for k, v in a.items() %}{{ k }}={{ v | tojson if v is mapping else v | string }}{% endfor %}"
)
"""Takes arguments as objects, as Qwen3-Coder's template."""
TEXTS = CALLS + "{{ '>>>' + a }}"
"""Takes arguments as text, as Functionary's."""
ENDS = "{% endfor %}{% endfor %}"


def test_prompts_have_tools_calls_and_results(run: Run) -> None:
    sources = [*templates.FAMILIES.values(), templates.GEMMA4 + "{# tool_responses #}"]
    sources += [MAPPINGS + ENDS, TEXTS + ENDS]
    path, tools = str(bundled_model()), [tool for tool, _ in checked_tools(TOOLS)]
    talks = [_talk(ARGUMENTS if "{{ v }}" in source else MORE) for source in sources]
    case = {"path": path, "tools": tools}
    works = list(zip(sources, talks, strict=True))
    found = run("templates", [{**case, "source": s, "messages": talk} for s, talk in works])
    for (source, talk), told in zip(works, found, strict=True):
        chat = ChatFormat(aleator.load().tokenizer, source)
        rendered = chat.rendered(checked_messages(talk), tools)
        assert told == [rendered.text, chat.tokens(rendered)], source


def _answer(answer: Any) -> dict[str, Any]:
    return {
        "pieces": "".join(answer), "tokens": list(answer.tokens), "message": answer.message.as_json()
    }  # fmt: skip


@pytest.mark.parametrize("name", ["hermes", "pythonic", "harmony"])
def test_an_answer_has_calls_with_their_ids(talks: Talks, name: str) -> None:
    said = {
        "hermes": 'Yes.<tool_call>{"name": "clock", "arguments": {}}</tool_call><tool_call>{"name": "x"}',
        "pythonic": "<|tool_call_start|>[clock(), get_weather(city='Rome')]<|tool_call_end|>",
        "harmony": HARMONY,
    }[name]
    source, talk = templates.FAMILIES[name], HI
    options: dict[str, Any] = {
        "grammar": f"root ::= {json.dumps(said)}",
        "seed": 2**40,
        "tools": TOOLS[1:2],
    }
    theirs = {**options, "chatTemplate": source}
    [told] = talks(talk, theirs)
    wanted = _answer(aleator.load().chat(talk, chat_template=source, **options))
    assert told == wanted
    assert len(told["message"]["tool_calls"][0]["id"]) == 9


NOTE: dict[str, Any] = json.loads(json.dumps(templates.WRITE))
del NOTE["function"]["parameters"]["properties"]["text"]  # which has no end


@pytest.mark.slow
def test_a_forced_call_is_what_its_grammar_gives_here(run: Run) -> None:
    model, tools = aleator.load(), [NOTE, templates.CLOCK]
    # A forced call has no stop strings; the bundled model's, an empty line, is in GigaChat's calls.
    object.__setattr__(model.vocab, "chat_stop", ())
    options: dict[str, Any] = {"seed": 3, "tools": tools, "completeGrammar": False}
    cases: list[dict[str, Any]] = []
    for i, source in enumerate(templates.FAMILIES.values()):
        for long in ("<think>", "</think>", "tools | tojson", "t | tojson"):  # a prompt takes time
            source = source.replace(
                long, "tools | length" if "tools" in long else "1" * ("t |" in long)
            )
        theirs = {**options, "chatTemplate": source, "toolChoice": "write" if i % 2 else "required"}
        cases.append({"path": str(bundled_model()), "messages": HI, "options": theirs})
    seen = set()
    for case, told in zip(cases, run("forced", cases), strict=True):
        source, grammar = case["options"]["chatTemplate"], told["grammar"]
        answer = model.chat(
            HI, chat_template=source, tools=tools, grammar=grammar, seed=3, complete_grammar=False
        )
        assert told["tokens"] == list(answer.tokens), source
        assert told["message"] == answer.message.as_json()
        assert told["reason"] == "tool_calls"
        [call] = told["message"]["tool_calls"]
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[name])
        seen |= {name, *arguments}
    assert seen == {"write", "clock", "name", "kind", "more"}


def test_reasoning_and_texts_without_quotes_end_at_their_marks(run: Run) -> None:
    tools = [templates.WRITE]
    case = {"path": str(bundled_model()), "messages": HI}
    options = {"tools": tools, "toolChoice": "required", "maxTokens": 0, "seed": 1}
    sources = [templates.HERMES, templates.DEEPSEEK, templates.QWEN3_CODER]
    hermes, deepseek, coder = (
        compile_gbnf(each["grammar"], "root", BYTES)
        for each in run(
            "forced",
            [{**case, "options": {**options, "chatTemplate": source}} for source in sources],
        )
    )
    call = '<tool_call>\n{"name": "write", "arguments": {"name": "a", "kind": "c"}}\n</tool_call>'
    assert all(takes(hermes, f"{before}{call}") for before in ("", "<think>\nHm</think>\n\n"))
    assert not takes(hermes, f"Hm{call}")
    assert not takes(hermes, call.replace('"c"', '"d"'))
    head = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```json\n"
    assert takes(deepseek, f'Hm</think>{head}{{"name": "a", "kind": "a b"}}')
    assert not takes(deepseek, f'{head}{{"name": "a", "kind": "a b"}}')
    head = "<tool_call>\n<function=write>\n<parameter=name>\n"
    text = "<parameter=text>\na < b\n</par\n</parameter>\n"
    tail = "</function>\n</tool_call>"
    kind = "\n</parameter>\n<parameter=kind>\na b\n</parameter>\n"
    assert takes(coder, f"{head}abc{kind}{tail}")
    assert takes(coder, f"{head}abc{kind}{text}<parameter=more>\n7\n</parameter>\n{tail}")
    assert not takes(coder, f"{head}{kind}{tail}")
    assert not takes(coder, f"{head}abcdef{kind}{tail}")
    assert not takes(coder, f"{head}abc{tail}")
    long = json.loads(json.dumps(templates.WRITE).replace('"maxLength": 5', '"maxLength": 2500'))
    given = {**options, "tools": [long], "chatTemplate": templates.QWEN3_CODER}
    [told] = run("forced", [{**case, "options": given}])
    longer = compile_gbnf(told["grammar"], "root", BYTES)
    assert takes(longer, f"{head}{'a' * 2500}{kind}{tail}")
    assert not takes(longer, f"{head}{'a' * 2501}{kind}{tail}")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": {}}, "tools={}: give an array"),
    ({"tools": [{"type": "function"}]}, "tools[0]="),
    ({"tools": [{"function": {"name": "two words"}}]}, "tools[0].function.name"),
    ({"tools": [templates.CLOCK, templates.CLOCK]}, "tools[1].function.name"),
    ({"tools": TOOLS, "toolChoice": "x"}, "give one of 'auto', 'none', 'required', 'get_weather'"),
    ({"toolChoice": "required"}, "toolChoice=\"required\": no tools are given"),
    ({"tools": TOOLS, "json_schema": {}}, "toolChoice: 'none'"),
    ({"tools": TOOLS, "toolChoice": "required", "regex": "a"}, "regex and toolChoice both"),
    ({"tools": TOOLS, "chatTemplate": templates.CHATML}, "does not show tools"),
    ({"tools": TOOLS, "chatTemplate": "{{ messages[0].tools }} Use {{ 'tools' }} tools."}, "does not show"),
    ({"tools": TOOLS, "templateArguments": {"tools": []}}, "templateArguments.tools=[]: chat gives it"),
    ({"tools": TOOLS, "chatTemplate": "{{ tools }}<tool_sep>"}, "calls with '<tool_sep>'"),
    ({"tools": [{"function": {"name": "f", "parameters": {"contains": {}}}}], "toolChoice": "f"},
     "tools: parameters of f: the JSON schema uses contains"),
]  # fmt: skip


def test_what_cannot_be_is_refused(talks: Talks) -> None:
    base: dict[str, Any] = {"maxTokens": 1, "chatTemplate": templates.HERMES}
    told = talks(HI, *(base | options for options, _ in WRONG))
    for (options, said), each in zip(WRONG, told, strict=True):
        kind = "GrammarError" if "parameters of" in said else "ParameterError"
        assert (each.get("error"), said in each["message"]) == (kind, True), (options, each)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("messages[0].tool_call_id", {"role": "tool", "tool_call_id": "x", "content": "a"}),
    ("arguments", {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
    ("tool_calls[0].function.name", {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "message"), BAD)
def test_calls_of_another_form_are_refused(
    talks: Talks, place: str, message: dict[str, Any]
) -> None:
    [told] = talks([message], {"chatTemplate": templates.HERMES})
    assert (told["error"], place in told["message"]) == ("ParameterError", True)
    with pytest.raises(aleator.ParameterError):
        checked_messages([message])


@pytest.mark.parametrize("name", ["messages", "tools", "toolChoice"])
def test_what_holds_itself_is_refused(refuses: Refuses, name: str) -> None:
    code = f"""
      const circle = []
      circle.push(circle)
      const all = {{ messages: [{{ role: 'user', content: 'Hi' }}], {name}: circle }}
      return model.chat(all.messages, all)
    """
    refuses({code: f"{name}: objects and arrays are nested more than {MOST_LEVELS} "})


def test_choices_of_tools(talks: Talks) -> None:
    """Without a call that is forced, tools are shown unless "none" or others are chosen."""
    source = templates.HERMES
    write = {"type": "function", "function": {"name": TOOLS[2]["function"]["name"]}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [write]}}
    asked: list[Any] = [None, "auto", "none", allowed]
    base: dict[str, Any] = {"seed": 1, "maxTokens": 8, "chatTemplate": source, "tools": TOOLS[1:]}
    found = talks(HI, *({**base, "toolChoice": choice} for choice in asked))
    for choice, told in zip(asked, found, strict=True):
        answer = aleator.load().chat(
            HI, chat_template=source, tools=TOOLS[1:], tool_choice=choice, seed=1, max_tokens=8
        )
        assert told == _answer(answer)
    assert chosen_tools("none", checked_tools(TOOLS)) == ([], [])
