"""Texts and branches: the tokens are those of ``generate``, and every step tells how its token was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel
from aleator.generate.session import Session
from aleator.server.app import create_app
from aleator.server.grammar_limits import Trials
from aleator.server.service import Service
from tests.playground.conftest import Client, MakeClient
from tests.playground.test_searching import searched

PROMPT = "ROMEO:\n"
GRAMMAR = 'root ::= ("yes" | "no" | "perhaps") (", " ("sir" | "madam"))* "."'
CHAINS: list[dict[str, Any]] = [
    {"preset": "llama.cpp"},
    {"preset": "neutral"},
    {"preset": "neutral", "mirostat": 2, "mirostat_tau": 3.0},
    {"preset": "llama.cpp", "mirostat": 1},
    {"preset": "llama.cpp", "numerics": "llama.cpp"},
    {"preset": "neutral", "samplers": ["xtc", "adaptive_p"], "adaptive_target": 0.3},
    {"preset": "llama.cpp", "xtc_probability": 0.5, "dry_multiplier": 0.8, "repetition_penalty": 1.2},
    {"preset": "neutral", "p_less": "normalized"},
    {"preset": "neutral", "top_h": 0.4, "min_k_tau": 3.0},
    {"preset": "neutral", "phases": {"code": {"begin": "e", "end": "t", "top_k": 3}}},
    {"preset": "llama.cpp", "grammar": GRAMMAR},
]  # fmt: skip


def generated(client: Client, prompt: Any, **options: Any) -> list[int]:
    return client.model.generate(prompt, **options).tokens


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: " ".join(map(str, chain.values()))[:40])
def test_a_text_is_that_of_generate_and_every_step_draws_its_token(
    client: Client, chain: dict[str, Any]
) -> None:
    written = client.write(prompt=PROMPT, seed=11, max_tokens=24, **chain)
    assert written.tokens == generated(client, PROMPT, seed=11, max_tokens=24, **chain)
    for i, told in enumerate(written.steps):
        assert told["step"] == i
        if "grammar" not in chain:  # whose end may be written in place of what is drawn
            assert not told["picked"]
            assert (
                client.post(f"/texts/{written.id}/step", step=i)["draw"]["token"] == told["token"]
            )
    assert written.start["seed"] == 11
    assert written.end["steps"] == len(written.tokens)


@pytest.mark.parametrize("chain", CHAINS[:4], ids=range(4))
def test_a_branch_goes_on_from_the_token_that_was_picked(
    client: Client, chain: dict[str, Any]
) -> None:
    text = client.write(prompt=PROMPT, seed=3, max_tokens=12, **chain)
    pick = next(
        each["token"] for each in text.steps[5]["top"] if each["token"]["id"] != text.tokens[5]
    )
    branch = client.write(parent=text.id, at=5, token=pick["id"], max_tokens=10, seed=3, **chain)
    assert branch.start["parent"] == text.id
    assert branch.start["inherited"] == 6
    prompt = [token["id"] for token in branch.start["prompt"]]
    if not chain.get("mirostat"):  # whose state a session of tokens alone does not have
        session = Session(
            tokens=(*prompt, *text.tokens[:5], pick["id"]), n_prompt=len(prompt), seed=3
        )
        assert branch.tokens == generated(client, session, max_tokens=10, **chain)
    for told in branch.steps:
        found = client.post(f"/texts/{branch.id}/step", step=told["step"])
        assert found["draw"]["token"] == told["token"]
    picked = client.post(f"/texts/{branch.id}/step", step=5)
    assert picked["picked"]
    assert picked["draw"]["token"]["id"] == text.tokens[5]
    assert picked["token"] == pick


@pytest.mark.parametrize(
    "options",
    [
        {"reasoning_budget": 3, "reasoning_budget_message": "So.", "reasoning_budget_grace": 2},
        {"stop_loops": {"repeats": 2, "min_tokens": 4}, "temperature": 0},
        {"banned_strings": ["th"], "banned_regex": [{"regex": "[aeiou]{2}", "probability": 0.5}]},
        {"heal": True},
    ],
    ids=range(4),
)
def test_a_text_with_other_options_is_that_of_generate(
    client: Client, options: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"seed": 11, "max_tokens": 24, **options}
    prompt = "ROMEO: <think>\nWhat"
    assert client.write(prompt=prompt, **asked).tokens == generated(client, prompt, **asked)


def test_nothing_before_a_branch_is_computed_again(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=4, max_tokens=30, preset="neutral")
    branch = client.write(parent=text.id, at=20, token=5, max_tokens=2, preset="neutral")
    n = len(branch.start["prompt"]) + 21
    assert branch.end["computed"] + branch.end["reused"] == n
    assert branch.end["computed"] == 1


def test_mirostat_goes_on_in_a_branch_with_its_state(client: Client) -> None:
    chain = {"preset": "neutral", "mirostat": 2, "seed": 8}
    text = client.write(prompt=PROMPT, max_tokens=20, **chain)
    again = client.write(parent=text.id, at=9, max_tokens=11, **chain)
    assert again.tokens == text.tokens[9:]


def test_a_text_is_continued_at_its_end(client: Client) -> None:
    chain = {"preset": "llama.cpp", "seed": 6}
    whole = client.write(prompt=PROMPT, max_tokens=20, **chain)
    part = client.write(prompt=PROMPT, max_tokens=8, **chain)
    rest = client.write(parent=part.id, max_tokens=12, **chain)
    assert part.tokens + rest.tokens == whole.tokens


def test_a_branch_without_a_seed_has_that_of_its_text(client: Client) -> None:
    text = client.write(prompt=PROMPT, max_tokens=10, preset="neutral")
    again = client.write(parent=text.id, at=2, max_tokens=8, preset="neutral")
    assert again.tokens == text.tokens[2:]


def test_what_is_told_of_a_step_is_what_explain_says(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=2, max_tokens=3, preset="llama.cpp", top=4)
    recording = client.recording(text)
    chain = recording.request.params.chain(client.model.tokenizer)
    chain.accept_many(recording.prompt)
    for i, told in enumerate(text.steps):
        found = chain.explain(recording.logits(i), client.model.vocab)
        assert found.draw is not None
        assert told["before"] == found.draw.before
        assert told["after"] == found.draw.probability
        assert told["entropy"] == found.before.entropy
        assert told["left"] == found.after.candidates
        assert [s["name"] for s in told["stages"]] == [s.name for s in found.active]
        assert [each["token"]["id"] for each in told["top"]] == [
            t.token.id for t in found.traces[:4]
        ]
        chain.accept(told["token"]["id"], generated=True)


def test_an_answer_is_that_of_chat(client: Client) -> None:
    messages = [{"role": "user", "content": "Good morrow."}]
    chain: dict[str, Any] = {"seed": 5, "preset": "llama.cpp", "max_tokens": 30}
    text = client.write(messages=messages, **chain)
    wanted = client.model.chat(messages, **chain)
    assert text.tokens == wanted.tokens
    assert "Good morrow." in "".join(each["text"] for each in text.start["prompt"])
    assert client.refused("/texts", messages=[{"role": "user"}])["param"] is not None
    assert client.refused("/texts", messages=messages, prompt="x")["param"] == "messages"


def test_the_probability_of_an_unlikely_pick_is_told(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=2, max_tokens=3, preset="llama.cpp")
    branch = client.write(parent=text.id, at=1, token=2047, max_tokens=1, preset="llama.cpp")
    found = client.post(f"/texts/{branch.id}/step", step=1)
    logits = np.asarray(client.recording(branch).logits(1), np.float64)
    weights = np.exp(logits - logits.max())
    assert found["before"] == pytest.approx(weights[2047] / weights.sum())


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "prompt"),
        ({"prompt": PROMPT, "parent": "x"}, "parent"),
        ({"prompt": PROMPT, "dry_base": 0.5}, "dry_base"),
        ({"prompt": PROMPT, "tempratur": 1}, "tempratur"),
        ({"prompt": PROMPT, "top": -1}, "top"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": PROMPT, "sampling_device": "device"}, "sampling_device"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: Client, body: dict[str, Any], parameter: str
) -> None:
    status = 404 if body.get("parent") == "x" and "prompt" not in body else 400
    error = client.refused("/texts", status, **body)
    assert error["param"] == parameter or (parameter == "parent" and error["param"] == "prompt")


def test_places_at_which_a_text_cannot_branch_are_refused(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=1, max_tokens=4, preset="neutral")
    assert client.refused("/texts", parent=text.id, at=5)["param"] == "at"
    assert client.refused("/texts", parent=text.id, at=4, token=1)["param"] == "at"
    assert client.refused("/texts", parent=text.id, at=1, token=99999)["param"] == "token"
    assert client.refused("/texts", 404, parent="nobody")["code"] == "no_such_text"


def test_a_grammar_that_the_text_breaks_refuses_the_branch(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=1, max_tokens=4, preset="neutral")
    error = client.refused("/texts", parent=text.id, at=3, grammar='root ::= "qqqq"')
    assert error["param"] == "token"


SLOW = {"type": "integer", "multipleOf": 249989}
"""Takes some seconds of native code."""


def test_a_grammar_that_takes_too_long_is_refused(make_client: MakeClient) -> None:
    client = make_client()
    text = client.write(prompt=PROMPT, seed=1, max_tokens=2, preset="neutral")
    service = client.app.state.service
    trials = Trials(str(client.model.weights.path), 20)
    service.grammars.trials = [trials]
    try:
        assert client.write(prompt=PROMPT, seed=1, max_tokens=2, regex="[a-z]+").tokens
        trials.seconds = 0.01
        messages = [{"role": "user", "content": "Hi"}]
        for path, body in (
            ("/texts", {"prompt": PROMPT}),
            ("/texts", {"messages": messages}),
            ("/chain", {}),
            (f"/texts/{text.id}/step", {"step": 1}),
        ):
            error = client.refused(path, **body, json_schema=SLOW)
            assert "--grammar-timeout" in error["message"]
    finally:
        service.grammars.close()


def test_the_end_of_the_server_and_its_limit_of_time_end_texts_too(make_client: MakeClient) -> None:
    text = make_client(request_timeout=1e-3).write(prompt=PROMPT, seed=1, ignore_eos=True)
    assert text.end["reason"] == "deadline"
    client = make_client()
    watched: list[Any] = []
    client.app.state.service.watch = watched.extend
    client.write(prompt=PROMPT, max_tokens=1)
    assert len(watched) == 1


def test_branches_of_branches_have_a_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.server.playground.recording.MOST_BRANCHES", 2)
    name = client.write(prompt=PROMPT, seed=1, max_tokens=2).id
    for _ in range(2):
        name = client.write(parent=name, at=1, max_tokens=2).id
    assert client.refused("/texts", parent=name, at=1)["param"] == "parent"


def test_a_text_is_marked_with_the_server_s_key(model: LanguageModel) -> None:
    key = Path(__file__).parents[1] / "golden" / "watermark_key.txt"
    asked: dict[str, Any] = {"seed": 5, "max_tokens": 12, "preset": "neutral", "draw": "watermark"}
    with model.engine(n_seq_max=2) as engine:
        service = Service(model, engine, defaults={"watermark_key_file": key})
        client = Client(model, engine)
        client.app = create_app(service)
        text = client.write(prompt=PROMPT, **asked)
        plain = client.write(prompt=PROMPT, **{**asked, "draw": "inverse"})
        mark = client.post(f"/texts/{text.id}/step", step=5)["draw"]["mark"]
        chain = {name: value for name, value in asked.items() if name != "max_tokens"}
        other = client.post(f"/texts/{plain.id}/resample", **chain)
    assert text.tokens == generated(client, PROMPT, **asked, watermark_key_file=key)
    assert plain.tokens == generated(client, PROMPT, **{**asked, "draw": "inverse"})
    assert mark.startswith("watermark")
    assert other["changed"]
    assert key.read_text().strip() not in str(text.start)


def test_what_a_server_bans_holds_here_too(model: LanguageModel) -> None:
    asked: dict[str, Any] = {"seed": 5, "max_tokens": 12, "preset": "neutral"}
    plain = model.generate(PROMPT, **asked)
    word, letter = plain.tokens[3], next(each for each in plain.text if each.isalpha())
    with model.engine(n_seq_max=2) as engine:
        client = Client(model, engine)
        client.app = create_app(Service(model, engine, defaults={"bad_words": [[word]]}))
        text = client.write(prompt=PROMPT, **asked)
        chain = {name: value for name, value in asked.items() if name != "max_tokens"}
        assert client.post(f"/texts/{text.id}/resample", **chain)["changed"] == {}
        *_, end = searched(client, prompt=PROMPT, num_beams=2, max_tokens=4)
        found = model.beams(PROMPT, num_beams=2, max_tokens=4, bad_words=[[word]])
        assert [each["id"] for each in end["texts"][0]["tokens"]] == list(found[0].tokens)
        client.app = create_app(Service(model, engine, defaults={"banned_strings": [letter]}))
        spelled = client.write(prompt=PROMPT, **asked)
        freed = client.write(prompt=PROMPT, **asked, banned_strings=[])
        told = client.refused("/beams", prompt=PROMPT)["message"]
    assert text.tokens == model.generate(PROMPT, **asked, bad_words=[[word]]).tokens != plain.tokens
    assert spelled.tokens == model.generate(PROMPT, **asked, banned_strings=[letter]).tokens
    assert freed.tokens == plain.tokens
    assert "started with banned_strings" in told
