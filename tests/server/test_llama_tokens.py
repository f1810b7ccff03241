"""Tokens and templates in llama-server's and vLLM's forms."""

from __future__ import annotations

import pytest

import aleator
from tests.server.conftest import TEMPLATE, Client, MakeClient

CLOCK = {"type": "function", "function": {"name": "clock"}}
HI = [{"role": "user", "content": "Hello"}]
TEXT = "ROMEO:\nO, she doth teach the torches, and <|endoftext|> 媽"


@pytest.fixture(scope="module")
def plain(make_client: MakeClient) -> Client:
    return make_client()


def test_content_is_tokenized_as_llama_server_does(
    plain: Client, model: aleator.LanguageModel
) -> None:
    encode = model.tokenizer.encode
    assert plain.made("/tokenize", content=TEXT)["tokens"] == encode(TEXT, False, True)
    special = plain.made("/tokenize", content=TEXT, add_special=True)["tokens"]
    assert special == encode(TEXT, True, True)
    text = plain.made("/tokenize", content=TEXT, parse_special=False)["tokens"]
    assert text == encode(TEXT, False, False)
    assert plain.made("/tokenize", content=[5, "ROMEO", 6])["tokens"] == [
        5,
        *encode("ROMEO", False),
        6,
    ]


def test_pieces_are_texts_or_bytes(plain: Client, model: aleator.LanguageModel) -> None:
    told = plain.made("/tokenize", content=TEXT, with_pieces=True)["tokens"]
    raw = b"".join(p.encode() if isinstance(p := t["piece"], str) else bytes(p) for t in told)
    assert raw.decode() == TEXT
    assert [t["id"] for t in told] == model.tokenizer.encode(TEXT, False, True)


def test_tokens_become_their_text_again(plain: Client) -> None:
    ids = plain.made("/tokenize", content=TEXT)["tokens"]
    made = plain.made("/detokenize", tokens=ids)
    assert made == {"content": TEXT, "prompt": TEXT}
    assert plain.made("/detokenize", tokens=[])["content"] == ""


def test_prompts_and_messages_are_tokenized_as_vllm_does(
    make_client: MakeClient, model: aleator.LanguageModel
) -> None:
    client = make_client(chat_template=TEMPLATE)
    made = client.made("/tokenize", model="shakespeare", prompt=TEXT, return_token_strs=True)
    ids = model.tokenizer.encode(TEXT, True, True)
    assert made["tokens"] == ids
    assert (made["count"], made["max_model_len"]) == (len(ids), model.n_ctx)
    assert made["token_strs"] == [model.vocab.text(t) for t in ids]
    bare = client.made("/tokenize", prompt=TEXT, add_special_tokens=False)["tokens"]
    assert bare == ids[1:]
    talk = [{"role": "user", "content": "Hello <|endoftext|>"}]
    told = client.made("/tokenize", messages=talk)["tokens"]
    assert 0 not in told[1:]  # contents never are control tokens
    chat = client.made("/v1/chat/completions", messages=talk, max_tokens=1)
    assert chat["usage"]["prompt_tokens"] == len(told)


def test_templates_are_applied(make_client: MakeClient) -> None:
    client = make_client(chat_template=TEMPLATE)
    talk = [{"role": "user", "content": "Hello"}]
    made = client.made("/apply-template", messages=talk, temperature=0.5, max_tokens=4)
    assert made == {"prompt": "user:\nHello\nJULIET:"}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    assert '"look"' in client.made("/apply-template", messages=talk, tools=[tool])["prompt"]
    hidden = client.made("/apply-template", messages=talk, tools=[tool], tool_choice="none")
    assert '"look"' not in hidden["prompt"]
    asks = "{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}"
    client = make_client(chat_template=asks)
    assert client.made("/apply-template", messages=talk)["prompt"] == "Hello!"
    silent = client.made("/apply-template", messages=talk, add_generation_prompt=False)
    assert silent["prompt"] == "Hello"


def test_what_harnesses_ask_of_a_tokenizer(plain: Client, model: aleator.LanguageModel) -> None:
    told = plain.get("/tokenizer_info").json()
    assert told["bos_token"] == told["eos_token"] == "<|endoftext|>"
    assert (told["vocab_size"], told["add_bos_token"]) == (len(model.vocab), True)
    assert told["chat_template"] == model.vocab.chat_template


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
        ("/tokenize", {"content": "a", "with_piece": True}, "with_piece"),
        ("/tokenize", {"content": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": HI, "tools": [CLOCK]}, "tools"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    plain: Client, path: str, body: dict[str, object], param: str
) -> None:
    response = plain.post(path, **body)
    assert response.status_code == (404 if "model" in body else 400), response.text
    assert response.json()["error"]["param"] == param
