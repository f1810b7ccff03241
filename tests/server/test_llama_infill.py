"""The layout of ``/infill``: llama-server's order, its names for what has none, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.generate.healing import take_back
from aleator.server.dialects.llama_infill import AROUND, UNNAMED, files, infill_tokens
from aleator.text.special_tokens import SpecialTokens
from aleator.text.tokenizer import Tokenizer
from tests.server.conftest import Client, MakeClient

PRE, SUF, MID, REP, SEP = 2001, 2002, 2003, 2004, 2005


@pytest.fixture(scope="module")
def plain(make_client: MakeClient) -> Client:
    return make_client()


def tokenizer_with(model: aleator.LanguageModel, **special: int) -> Tokenizer:
    """The bundled model's tokenizer, where some tokens have tasks of infilling."""
    named = replace(model.vocab.special, **special)
    return Tokenizer(replace(model.vocab, special=named))


def test_text_is_asked_for_between_two_others(model: aleator.LanguageModel) -> None:
    tokenizer = tokenizer_with(model, fim_pre=PRE, fim_suf=SUF, fim_mid=MID)
    encode = model.tokenizer.encode
    made = infill_tokens(tokenizer, "before", "after", "begun", (), 100)
    head, tail, begun = (encode(text, False) for text in ("before", "after", "begun"))
    assert made == [model.vocab.bos, PRE, *head, *begun, SUF, *tail, MID]


def test_other_files_stand_before(model: aleator.LanguageModel) -> None:
    encode = model.tokenizer.encode
    tokenizer = tokenizer_with(
        model, fim_pre=PRE, fim_suf=SUF, fim_mid=MID, fim_rep=REP, fim_sep=SEP
    )
    made = infill_tokens(tokenizer, "a", "b", "", [("x.py", "words")], 1000)
    files = [
        REP,
        *encode("myproject\n", False),
        SEP,
        *encode("x.py\n", False),
        *encode("words", False),
    ]
    files += [SEP, *encode("filename\n", False)]
    assert made[: len(files)] == files
    assert made[len(files) :] == infill_tokens(tokenizer, "a", "b", "", (), 0)
    plain = tokenizer_with(model, fim_pre=PRE, fim_suf=SUF, fim_mid=MID)
    made = infill_tokens(plain, "a", "b", "", [("x.py", "words")], 1000)
    shown = [*encode("\n\n--- snippet ---\n\n", False), *encode("words", False)]
    assert made[: len(shown)] == shown


def test_what_is_near_is_kept(model: aleator.LanguageModel) -> None:
    tokenizer = tokenizer_with(model, fim_pre=PRE, fim_suf=SUF, fim_mid=MID)
    before, after = list(range(10, 1900)), list(range(10, 1900))
    made = infill_tokens(tokenizer, before, after, "", [("x", "one two three")], 2)
    extra = model.tokenizer.encode("one two three", False)[-2:]
    n = 3 * AROUND // 4
    assert made[:4] == [*extra, model.vocab.bos, PRE]
    assert made[4 : 4 + n] == before[-n:]
    assert made[4 + n] == SUF
    assert made[5 + n :] == [*after[: AROUND // 4 - 2], MID]


def test_a_model_writes_in_between(
    make_client: MakeClient, model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    special: SpecialTokens = replace(model.vocab.special, fim_pre=PRE, fim_suf=SUF, fim_mid=MID)
    client = make_client()
    monkeypatch.setattr(
        client.service.model.tokenizer, "vocab", replace(model.vocab, special=special)
    )
    monkeypatch.setattr(client.service.model, "vocab", client.service.model.tokenizer.vocab)
    body = {"input_prefix": "To be, ", "input_suffix": " that is", "prompt": "or", "n_predict": 5}
    made = client.made("/infill", seed=1, **body)
    prompt = infill_tokens(client.service.model.tokenizer, "To be, ", " that is", "or", (), 0)
    alone = model.generate(prompt, max_tokens=5, seed=1)
    assert made["content"] == alone.text


def test_a_model_without_the_tokens_says_so(plain: Client) -> None:
    response = plain.post("/infill", input_prefix="a", input_suffix="b")
    assert response.status_code == 501
    assert "prefix, suffix, middle" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"input_suffix": "b"},
        {"input_prefix": "a"},
        {"input_prefix": "a", "input_suffix": "b", "prompt": [1]},
        {"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]},
        {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]},
        {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": 1, "text": "a"}]},
        {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x", "text": 1}]},
    ],
)
def test_other_forms_are_refused(
    plain: Client, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    monkeypatch.setattr("aleator.server.dialects.llama_infill._check", lambda service: None)
    assert plain.refused("/infill", **body)["type"] == "invalid_request_error"


def test_what_stands_before_is_healed(model: aleator.LanguageModel) -> None:
    tokenizer = tokenizer_with(model, fim_pre=PRE, fim_suf=SUF, fim_mid=MID)
    prompt = infill_tokens(tokenizer, "O Romeo, I th", "no more", "", (), 100)
    left, (at, taken) = take_back(prompt, tokenizer)
    assert [model.vocab.token_bytes(token) for token in taken] == [b" th"]
    assert left == tuple(token for i, token in enumerate(prompt) if i != at)
    assert left[at] == SUF


def test_other_files_of_a_request_are_checked() -> None:
    assert files("input_extra", [{"filename": "x.py", "text": "a"}, {"text": "b"}]) == [
        ("x.py", "a"),
        (UNNAMED, "b"),
    ]
    with pytest.raises(ParameterError, match=r"input_extra\[1\]=3: give"):
        files("input_extra", [{"text": "b"}, 3])


def test_a_model_without_the_tokens_is_told(model: aleator.LanguageModel) -> None:
    with pytest.raises(ParameterError, match="has no tokens for infilling"):
        infill_tokens(model.tokenizer, "a", "b", "", (), 0)
