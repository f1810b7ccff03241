"""Sampling parameters that differ by phase of a text, over HTTP and on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aleator import LanguageModel
from aleator.models.weights import Weights
from tests.cli.conftest import Command
from tests.cli.conftest import aleator as aleator
from tests.server.conftest import REASONING, Client, MakeClient

PHASES: dict[str, Any] = {
    "speech": {"begin": ":\n", "end": "\n\n", "temperature": 1.3, "top_k": 0},
    "answer": {"temperature": 0.5},
    "histories": "own",
}
ASKED: dict[str, Any] = {"max_tokens": 40, "seed": 2, "phases": PHASES}


@pytest.fixture(scope="module")
def client(make_client: MakeClient) -> Client:
    return make_client(chat_template=REASONING)


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/v1/completions", lambda made: made["choices"][0]["text"]),
        ("/completion", lambda made: made["content"]),
        ("/api/generate", lambda made: made["response"]),
    ],
)
def test_every_dialect_takes_phases(
    client: Client, model: LanguageModel, path: str, read: Any
) -> None:
    body: dict[str, Any] = {"prompt": "ROMEO", **ASKED}
    if path == "/api/generate":
        options = {"num_predict": 40, "seed": 2, "phases": PHASES, "top_k": 40, "min_p": 0.05}
        body = {
            "model": "shakespeare",
            "prompt": "ROMEO",
            "raw": True,
            "stream": False,
            "options": options,
        }
    assert read(client.made(path, **body)) == model.generate("ROMEO", **ASKED).text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_chat_takes_phases(client: Client, model: LanguageModel, path: str) -> None:
    phases = {"thinking": {"temperature": 1.2}, "answer": {"temperature": 0}}
    hi = [{"role": "user", "content": "Speak."}]
    body: dict[str, Any] = {"seed": 2, "phases": phases}
    if path == "/v1/messages":
        body["model"] = "shakespeare"
        body["thinking"] = {"type": "enabled", "budget_tokens": 6}
    else:
        body |= {"reasoning_budget": 6, "chat_template_kwargs": {"enable_thinking": True}}
    body |= {"input": hi} if path.endswith("responses") else {"messages": hi}
    limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
    made = json.dumps(client.made(path, **body, **{limit: 60}))
    chat = model.chat(
        hi, chat_template=REASONING, enable_thinking=True, phases=phases, reasoning_budget=6, seed=2,
        max_tokens=60,
    )  # fmt: skip
    assert json.dumps(chat.message.content)[1:-1] in made
    assert {"thinking", "answer"} == set(chat.generation.chain.phases[-58:])


def test_what_is_wrong_names_the_field(client: Client) -> None:
    wrong: tuple[Any, ...] = (
        {"thnking": {}},
        {"answer": {"temprature": 1}},
        {"tool": {}},
        "answer",
    )
    for phases in wrong:
        error = client.refused("/v1/completions", prompt="a", max_tokens=1, seed=1, phases=phases)
        assert error["param"] == "phases"


WORDS = ("-p", "ROMEO", "-n", "40", "--seed", "2")
FLAGS = (
    "--phase", r"speech:begin=:", "--phase", "speech:temp=1.3", "--phase", "speech:top-k=0",
    "--phase", "answer:temperature=0.5", "--phase", "histories=own",
)  # fmt: skip


def test_the_command_line(aleator: Command, model: LanguageModel) -> None:
    made = aleator("generate", *WORDS, *FLAGS)
    asked = {
        **ASKED,
        "phases": {**PHASES, "speech": {"begin": ":", "temperature": 1.3, "top_k": 0}},
    }
    assert (made.code, made.out) == (0, model.generate("ROMEO", **asked).text)
    assert "phase: speech\nseed: 2\nparameters: " in made.err
    assert "temperature=1.3" in made.err
    whole = aleator("generate", *WORDS, "--phase", json.dumps(PHASES))
    assert whole.out == model.generate("ROMEO", **ASKED).text
    told = aleator("explain", *WORDS, *FLAGS)
    assert "  speech  " in told.out
    assert "  answer  " in told.out
    step = json.loads(aleator("explain", *WORDS, *FLAGS, "--json").out)["steps"][-1]
    assert step["phase"] == "speech"


def test_a_record_is_verified_by_the_command_line(aleator: Command, tmp_path: Any) -> None:
    path = str(tmp_path / "record.json")
    assert aleator("generate", *WORDS, *FLAGS, "--replay", path).code == 0
    assert aleator("replay", path, "--verify").code == 0


def test_what_a_model_recommends_is_said(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"temp": 0.6, "top_k": 20}
    monkeypatch.setattr(Weights, "recommended_sampling", lambda self: values)
    made = aleator("generate", *WORDS)
    assert (
        "the model recommends: temp=0.6 top_k=20 (--preset llama.cpp leaves that out)" in made.err
    )
    assert "temperature=0.6" in made.err
    plain = aleator("generate", *WORDS, "--preset", "llama.cpp")
    assert "recommends" not in plain.err
    assert plain.out != made.out
