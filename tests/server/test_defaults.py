"""What a server is started with, and requests that it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator import LanguageModel, ParameterError
from tests.server.conftest import Client, MakeClient

KEY = Path(__file__).parents[1] / "golden" / "watermark_key.txt"
LOOPS = {"repeats": 3, "min_tokens": 24, "temperature": 1.5, "for": 8}
ASKED: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 40, "seed": 1}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def options(client: Client, path: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    """The options of a request's record."""
    own: dict[str, Any] = {**ASKED, **body, "aleator_replay": True}
    if path == CHATS:
        own["messages"] = [{"role": "user", "content": own.pop("prompt")}]
    (record,) = client.made(path, **own)["aleator_replay"]
    return {**record["options"], **record["params"]}


@pytest.mark.parametrize(
    "own",
    [{"temperature": 2}, {"numerics": "llama.cpp"}, {"phases": {"answer": {"temperature": 0.5}}}],
)
def test_a_stretch_that_does_not_fit_is_left_out(
    make_client: MakeClient, model: LanguageModel, own: dict[str, Any]
) -> None:
    client = make_client(defaults={"stop_loops": LOOPS})
    assert options(client, temperature=0.5)["stop_loops"] == [3, 24, 1.5, 8]
    for path in (COMPLETIONS, CHATS):
        assert options(client, path, **own).get("stop_loops") is None
    text = client.made(COMPLETIONS, **ASKED, **own)["choices"][0]["text"]
    assert text == model.generate("ROMEO:", max_tokens=40, seed=1, **own).text
    error = client.refused(COMPLETIONS, **ASKED, **own, stop_loops=LOOPS)
    assert error["param"] == "stop_loops"
    assert "started" not in error["message"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"temperature": 2}, "temperature=1.5 is not above the request's, 2"),
        ({"numerics": "llama.cpp"}, "cannot change in llama.cpp's chain"),
        ({"phases": {"answer": {}}}, "cannot change in the chains of phases"),
    ],
)
def test_defaults_that_never_fit_each_other_are_refused_at_the_start(
    make_client: MakeClient, own: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParameterError, match=said):
        make_client(defaults={"stop_loops": LOOPS, **own})


def test_other_defaults_that_do_not_fit_are_left_out(make_client: MakeClient) -> None:
    budget = make_client(defaults={"reasoning_budget": 5})
    assert options(budget)["reasoning_budget"] == 5
    assert options(budget, CHATS).get("reasoning_budget") is None  # the template shows none
    tool = make_client(defaults={"phases": {"tool": {"temperature": 0}}})
    assert options(tool).get("phases") is None
    spoken = make_client(defaults={"phases": {"answer": {"temperature": 0}}})
    assert options(spoken)["phases"]
    assert options(spoken, numerics="llama.cpp").get("phases") is None
    assert options(make_client(defaults={"top_k": 7}), samplers=["top_p"]).get("top_k", 0) != 7
    cut = make_client(defaults={"min_k_tau": 3.0, "min_tokens": 2})
    assert options(cut)["min_k_tau"] == 3.0
    left = options(cut, numerics="llama.cpp")  # which has neither
    assert left.keys().isdisjoint({"min_k_tau", "min_tokens"})


@pytest.mark.parametrize(
    ("defaults", "own", "param", "named"),
    [
        ({"reasoning_budget": 5}, {"banned_strings": ["x"]}, "banned_strings", "reasoning_budget"),
        ({"banned_strings": ["x"]}, {"reasoning_budget": 5}, "banned_strings", "banned_strings"),
        ({"samplers": ["top_k"]}, {"min_p": 0.1}, "min_p", "samplers"),
        ({"mirostat": 2}, {"draw": "gumbel"}, "draw", "mirostat"),
        ({"bad_words": [[5]]}, {"numerics": "llama.cpp"}, "bad_words", "bad_words"),
        (
            {"allowed_token_ids": [5, 6]},
            {"numerics": "llama.cpp"},
            "allowed_token_ids",
            "allowed_token_ids",
        ),
        ({"numerics": "llama.cpp"}, {"phases": {"answer": {"top_k": 1}}}, "phases", "numerics"),
        ({"context_shift": True}, {"guidance_scale": 2}, "guidance_scale", "context_shift"),
        ({"draw": "watermark", "watermark_key_file": KEY}, {"mirostat": 2}, "draw", "draw"),
    ],
)
def test_an_error_says_what_the_server_was_started_with(
    make_client: MakeClient, defaults: Any, own: Any, param: str, named: str
) -> None:
    error = make_client(defaults=defaults).refused(COMPLETIONS, **ASKED, **own)
    assert error["param"] == param
    assert error["message"].endswith(f"(this server was started with {named})")


def test_a_preset_takes_the_place_of_flags_but_not_of_what_a_text_must_obey(
    make_client: MakeClient,
) -> None:
    firm: dict[str, Any] = {"bad_words": [[5]], "allowed_token_ids": [5, 6, 7]}
    found = options(make_client(defaults={**firm, "top_k": 7}), preset="neutral")
    assert found["bad_words"] == [[5]]
    assert found["allowed_token_ids"] == [5, 6, 7]
    assert found.get("top_k", 0) != 7
    marking = make_client(defaults={"draw": "watermark", "watermark_key_file": KEY})
    assert options(marking, preset="llama.cpp")["draw"] == "watermark"
    assert options(marking, preset="llama.cpp", draw="inverse").get("draw", "inverse") == "inverse"
    keyed = make_client(defaults={"watermark_key_file": KEY})
    assert options(keyed, preset="neutral", draw="watermark")["watermark_key_file"]


def test_a_key_is_for_those_that_ask_for_a_watermark(make_client: MakeClient) -> None:
    client = make_client(defaults={"watermark_key_file": KEY})
    assert options(client).get("watermark_key_file") is None
    assert options(client, CHATS, draw="watermark")["watermark_key_file"]
    assert options(client, phases={"answer": {"draw": "synthid"}})["watermark_key_file"]
    with pytest.raises(
        ParameterError, match="watermark_key_file would have no effect: draw='gumbel'"
    ):
        make_client(defaults={"watermark_key_file": KEY, "draw": "gumbel"})
    fingerprint = options(client, draw="watermark")["watermark_key_file"]
    error = client.refused(COMPLETIONS, **ASKED, watermark_key_file=fingerprint)
    assert error["param"] == "watermark_key_file"
