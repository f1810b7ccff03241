"""The engine of the page without a server answers as the server does: tokens, masses, draws, errors."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from tests.javascript.conftest import Run
from tests.javascript.site_engine import Ask, Server, check_answers, posts, told
from tests.playground.conftest import ROOT, Client

PROMPT = {"prompt": "ROMEO:\n", "seed": 7, "max_tokens": 12, "top": 3}
CHAINS: list[dict[str, Any]] = [
    {"preset": "llama.cpp"},
    {"preset": "neutral", "temperature": 1.3, "xtc_probability": 0.5, "repetition_penalty": 1.2},
    {"preset": "neutral", "mirostat": 2, "mirostat_tau": 3.5},
    {"preset": "neutral", "adaptive_target": 0.3, "min_p": 0.01},
    {"preset": "vllm", "top_p": 0.9, "logit_bias": {"300": 1.5}, "bad_words": ["the", "my lord"]},
    {"preset": "neutral", "grammar": 'root ::= ("ay" | "nay") " "+ [a-z]*'},
    {"preset": "neutral", "grammar": 'root ::= "(" [a-z ]* ")"'},  # brought to its end
    {"preset": "akunu-balanced"},
    {
        "top_k": 30,
        "phases": {
            "code": {"begin": "e", "end": "t", "top_k": 3, "mirostat": 2},
            "answer": "greedy",
            "histories": "own",
        },
    },
    {
        "penalty_last_n": 9,
        "repetition_penalty": 1.2,
        "phases": {"thinking": {"begin": ":\n", "temperature": 1.5}, "x": {"begin": 300}},
    },
]


def requests(chain: dict[str, Any]) -> list[dict[str, Any]]:
    """A text, a branch of it, how it goes on, and questions about them."""
    other = {"preset": "neutral", "temperature": 1.6, "seed": 7}
    branch = {"parent": 0, "at": 4, "token": 300, "max_tokens": 5, "seed": 7, **chain}
    more = {"parent": 0, "max_tokens": 3, "seed": 7, **chain}
    return [
        *posts("/chain", chain),
        *posts("/texts", {**PROMPT, **chain}, branch, more),
        *posts("/texts/{0}/step", {"step": 5, "top": 5}),
        *posts("/texts/{1}/step", {"step": 4, "top": 5}, {"step": 6, "top": 5, **other}),
        *posts("/texts/{0}/resample", other),
        *posts("/texts/{1}/resample", chain),
        *posts("/texts/{0}/draws", {"step": 2, "n": 200}),
        *posts("/tokens", {"text": "To be, or néver"}),
    ]


@pytest.mark.parametrize("chain", CHAINS, ids=range(len(CHAINS)))
def test_answers_are_those_of_the_server(ask: Ask, client: Client, chain: dict[str, Any]) -> None:
    asked = requests(chain)
    if "grammar" in chain:  # which refuses the branch's token
        asked = [each for each in asked if "{1}" not in each["path"] and "at" not in each["body"]]
    check_answers(ask, client, asked)


OBEYED: list[dict[str, Any]] = [
    {"json_schema": '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'},
    {"json_schema": {"enum": ["Wherefore art thou?", {"a": [1, 2.5, None, "Romeo"]}]}, "temperature": 1.5},
    {"regex": "(Ay|Nay), (my|good) [a-z]{2,4}\\\\."},
]  # fmt: skip


@pytest.mark.parametrize("obeyed", OBEYED, ids=range(len(OBEYED)))
def test_schemas_and_expressions_give_the_text_of_their_grammar(
    ask: Ask, client: Client, obeyed: dict[str, Any]
) -> None:
    asked = requests({"preset": "neutral", **obeyed})
    asked = [each for each in asked if "{1}" not in each["path"] and "at" not in each["body"]]
    answers = ask(asked)
    grammar = answers[1][0]["grammar"]
    server = Server(client)
    for each, mine in zip(asked, answers, strict=True):
        body = {k: v for k, v in each["body"].items() if k not in ("json_schema", "regex")}
        if body != each["body"]:
            body["grammar"] = grammar
        wanted = server.ask(each["method"], each["path"], body)
        if each["path"] == "/texts":
            assert mine[0].pop("grammar") == grammar
        if each["path"] == "/chain":  # parameters stand in another order
            for spelling in ("cli", "json", "python"):
                assert sorted(mine.pop(spelling)) == sorted(wanted.pop(spelling))
        assert told(mine) == told(wanted), each


def test_saved_pages_are_those_of_the_server(ask: Ask, client: Client) -> None:
    chain = {"preset": "llama.cpp", "mirostat": 2, "seed": 7}
    asked = posts(
        "/texts",
        {**PROMPT, **chain},
        {"parent": 0, "at": 4, "token": 300, "max_tokens": 5, **chain},
        {"parent": 1, "max_tokens": 3, **chain},
        {"prompt": "</script>", "seed": 7, "max_tokens": 6, "preset": "neutral"},
    )
    shown = {"texts": [2, 0, 3], "current": 0, "step": 2, "view": "compare", "shade": "entropy"}
    more = {
        "compare": [0, 3],
        "draws": [{"id": 3, "step": 1}, {"id": 2, "step": 4}],
        "script": ["decode 0 2", "fork 0 1"],
    }
    asked += posts("/page", shown | more, {"texts": [1]})
    mine = ask(asked)
    server = Server(client)
    for each in asked[:4]:
        server.ask(**each)
    for each, page in zip(asked[4:], mine[4:], strict=True):
        body = numbered(each["body"], server.ids)
        wanted = client.request("POST", ROOT + "/page", json=body).text
        held, other = record(page), record(wanted)
        held["model"] = other["model"]  # the file's name, or the alias
        assert told(held) == told(other)
        assert re.sub(RECORD, "", page) == re.sub(RECORD, "", wanted)


RECORD = re.compile(r'(?<=id="record">).*?(?=</script>)', re.DOTALL)


def record(page: str) -> Any:
    """What a saved page holds."""
    [found] = RECORD.findall(page)
    return json.loads(found)


def numbered(body: dict[str, Any], ids: list[str]) -> dict[str, Any]:
    """A request for a page with the texts' ids in place of their numbers."""
    made = {**body, "texts": [{"id": ids[n], "name": f"text {n}"} for n in body["texts"]]}
    if "current" in body:
        made["current"] = ids[body["current"]]
        made["compare"] = [ids[n] for n in body["compare"]]
        made["draws"] = [{**each, "id": ids[each["id"]]} for each in body["draws"]]
    return made


WITH_OPTIONS: list[dict[str, Any]] = [
    {"prompt": "What light through yonder win", "heal": True},
    {"prompt": "ROMEO:\n", "stop_loops": {"repeats": 3}, "preset": "greedy", "max_tokens": 90},
    {"prompt": "ROMEO:\n", "stop_loops": "2,2", "top_k": 3},
    {"prompt": "ROMEO:<think>", "reasoning_budget": 3, "reasoning_budget_message": " Enough, \u00e9."},
    {"prompt": "ROMEO: T", "reasoning_budget": 2, "reasoning_budget_grace": 6, "reasoning_marks": ["T", "."]},
    {"messages": [{"role": "user", "content": "Who's there?"}], "stop_loops": [2, 4], "top_k": 2},
    {"prompt": "ROMEO:", "banned_strings": ["the", "e\n", " my", "I"], "max_tokens": 40},
    {"prompt": "ROMEO:", "banned_strings": ["a", "o", "I would not have been"], "top_k": 4},
    {"prompt": "ROMEO:", "banned_regex": [r"\b[a-n]{1,9}\b", {"regex": "[ou]", "probability": 0.5}]},
    {"prompt": "ROMEO:\n", "stop_loops": "2,2,1.5,3", "temperature": 0, "max_tokens": 30},
    {"prompt": "ROMEO:\n", "stop_loops": [2, 1, 9, 4], "mirostat": 2, "top_k": 2, "max_tokens": 30},
    {"prompt": "ROMEO: <think>\n", "phases": {"thinking": {"top_k": 2}, "answer": {"temperature": 1.4}}},
    {"prompt": "ROMEO:\n wi", "heal": True,
     "phases": {"x": {"begin": "\n", "end": "e", "top_k": 2, "mirostat": 1}}},
    {"messages": [{"role": "user", "content": "Who's there?"}],
     "phases": {"x": {"begin": "I", "end": ",", "top_k": 2}}},
]  # fmt: skip


@pytest.mark.parametrize("options", WITH_OPTIONS, ids=range(len(WITH_OPTIONS)))
def test_texts_with_options_are_those_of_the_server(
    ask: Ask, client: Client, options: dict[str, Any]
) -> None:
    if "banned_regex" in options:
        pytest.importorskip("re2")
    body = {"seed": 7, "max_tokens": 14, "top": 3, **options}
    beginning = ("prompt", "messages", "heal")
    more = {k: v for k, v in body.items() if k not in beginning} | {"parent": 0, "max_tokens": 6}
    asked = posts("/texts", body, more, {**more, "at": 2})
    check_answers(ask, client, asked + posts("/texts/{0}/step", {"step": 1, "top": 4}))


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"mirostat": 2, "top_k": 2}], ids=str)
def test_steps_after_loops_have_another_temperature(
    ask: Ask, client: Client, sampling: dict[str, Any]
) -> None:
    body = {"seed": 7, "stop_loops": "2,2,9,5", "top": 3, "max_tokens": 20, **sampling}
    begun, later = {**body, "prompt": "ROMEO: ay ay ay ay"}, {**body, "parent": 0, "at": 16}
    asked, steps = posts("/texts", begun, later), [{"step": i, "top": 2} for i in range(20)]
    asked += posts("/texts/{0}/step", *steps) + posts("/texts/{1}/step", *steps)
    stages = [each["stages"] for each in check_answers(ask, client, asked)[2:]]
    assert len({s["label"] for each in stages for s in each if s["name"] == "temperature"}) == 2


def test_conversations_are_those_of_the_server(ask: Ask, client: Client) -> None:
    options = {"seed": 7, "max_tokens": 12, "top": 3, "preset": "llama.cpp"}
    turns = [{"role": "user", "content": "Good <|im_end|> morrow."}]
    more = [{"role": "assistant", "content": "Nay."}, {"role": "user", "content": "Speak!"}]
    bodies = {"messages": turns, **options}, {"messages": turns + more, **options, "stop": ["e"]}
    check_answers(ask, client, posts("/texts", *bodies))


def test_the_declarations_are_the_servers(ask: Ask, client: Client) -> None:
    [mine] = ask([{"method": "GET", "path": ""}])
    wanted = client.get()
    names = {*wanted["parameters"], *wanted["options"]}
    assert set(mine.pop("lacking")) <= names
    wanted["model"]["n_ctx"] = mine["model"]["n_ctx"]
    wanted["memory"] = mine["memory"]
    assert told(mine) == told(wanted)


def test_what_cannot_be_is_told(ask: Ask) -> None:
    cases: list[tuple[str, dict[str, Any], str | None]] = [
        ("/texts", {"prompt": "x", "json_schema": "{"}, "json_schema"),
        ("/texts", {"prompt": "x", "json_schema": {"contains": {}}}, "json_schema"),
        ("/texts", {"prompt": "x", "regex": "("}, "regex"),
        ("/texts", {"prompt": "x", "regex": 5}, "regex"),
        ("/texts", {"prompt": "x", "regex": "a", "grammar": 'root ::= "a"'}, "regex"),
        ("/texts", {"prompt": "x", "phases": [{}]}, "phases"),
        ("/page", {}, "texts"),
        ("/page", {"texts": []}, "texts"),
        ("/cache", {"script": ["jump 1"]}, "script"),
        ("/page", {"texts": [{"id": "none"}]}, "id"),
        ("/page", {"texts": [{"id": "none"}], "compare": ["a"]}, "compare"),
        ("/texts", {"prompt": "x", "top_k": -1}, "top_k"),
        ("/texts", {"prompt": "x", "no_such": 1}, "no_such"),
        ("/texts", {"prompt": "x", "parent": "y"}, "parent"),
        ("/texts", {"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ("/texts", {"prompt": "x", "stop": ["ay", ""]}, "stop"),
        ("/texts", {"prompt": "x", "stop": 5}, "stop"),
        ("/texts", {"prompt": "x", "stop_loops": [1, 2]}, "stop_loops"),
        ("/texts", {"prompt": "x", "stop_loops": {"temperature": 0.1}}, "stop_loops"),
        ("/texts", {"prompt": "x", "heal": 1}, "heal"),
        ("/texts", {"prompt": "x", "heal": True, "grammar": 'root ::= "a"'}, "heal"),
        ("/texts", {"messages": [{"role": "user", "content": "a"}], "heal": True}, "heal"),
        (
            "/texts",
            {"messages": [{"role": "user", "content": "a"}], "reasoning_budget": 3},
            "reasoning_budget",
        ),
        (
            "/texts",
            {"prompt": "x", "reasoning_budget": 3, "reasoning_budget_message": "</think>"},
            "reasoning_budget_message",
        ),
        ("/texts", {"prompt": "x", "banned_strings": [5]}, "banned_strings"),
        ("/texts", {"prompt": "x", "banned_regex": ["a*"]}, "banned_regex"),
        ("/texts", {"prompt": [99999]}, "prompt"),
        ("/texts", {"prompt": {}}, "prompt"),
        ("/texts", {"parent": "none"}, "id"),
        ("/texts", {"parent": ""}, "id"),
        ("/texts/none/step", {"step": 0}, "id"),
        ("/texts", {"messages": ""}, "messages"),
        ("/texts", {"messages": [{"role": "king", "content": "a"}]}, "messages"),
        ("/texts", {"messages": [{"role": "user", "content": "a " * 9000}]}, "messages"),
        ("/tokens", {}, "text"),
        ("/chain", {"preset": "none"}, "preset"),
        ("/chain", {"grammar": "root ::= ]"}, "grammar"),
        ("/chain", {"draw": "watermark"}, "draw"),
        ("/chain", {"phases": {"answer": {"draw": "synthid"}}}, "phases"),
        ("/nothing", {}, None),
    ]
    answers = ask([each for path, body, _ in cases for each in posts(path, body)])
    assert [each["error"]["param"] for each in answers] == [param for _, _, param in cases]
    assert all(each["error"]["message"] for each in answers)
    assert answers[-4]["error"]["line"] == 1


def test_the_fingerprint_of_other_sizes(run: Run, written: Path) -> None:
    parts = [b"", b"a" * 127, b"b" * 128, b"c" * 129, bytes(range(256)) * 3]
    case = {"folder": written.as_uri(), "parts": [list(part) for part in parts]}
    [made] = run("digests", [case])
    assert made == [blake2b(part, digest_size=16).hexdigest() for part in parts]
