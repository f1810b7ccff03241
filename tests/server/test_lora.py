"""Adapters over HTTP: by model names, by llama-server's numbers, and their scales for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import aleator
from aleator.core.errors import ParameterError
from tests.language_model.test_adapters import PROMPT, bundled_pairs
from tests.models.adapters import pairs_of, write_adapter
from tests.models.builders import model_metadata, write_gguf
from tests.server.conftest import Client

BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    name = aleator.load(n_threads=1).weights.architecture.name
    return {
        each: write_adapter(folder / f"{each}.gguf", bundled_pairs(i), architecture=name)
        for i, each in enumerate(("old", "new"))
    }


@pytest.fixture
def client(files: dict[str, Path]) -> Iterator[Client]:
    model = aleator.load(adapters=files, n_threads=1)
    with model.engine(n_seq_max=4) as engine:
        yield Client(model, engine)


def post(client: Client, path: str, body: Any) -> httpx.Response:
    return client.request("POST", path, json=body)


def text(client: Client, **more: Any) -> str:
    made = post(client, "/v1/completions", BODY | more)
    assert made.status_code == 200, made.text
    told: str = made.json()["choices"][0]["text"]
    return told


def test_a_name_of_a_model_chooses_an_adapter(client: Client) -> None:
    base = client.service.name
    listed = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    assert [*listed] == [base, "old", "new"]
    assert listed["old"]["parent"] == base
    assert listed[base]["parent"] is None
    tags = client.get("/api/tags").json()["models"]
    parents = [(each["name"], each["details"]["parent_model"]) for each in tags]
    assert parents == [(base, ""), ("old", base), ("new", base)]
    plain, old = text(client), text(client, model="old")
    assert plain == text(client, model=base) != old
    assert old == text(client, adapters={"old": 1}) == text(client, adapters="old")
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    said = [
        post(client, "/v1/chat/completions", chat | {"model": each}).json()["choices"][0]["message"]
        for each in (base, "old")
    ]
    assert said[0] != said[1]
    assert post(client, "/v1/completions", BODY | {"model": "other"}).status_code == 404


def test_numbers_of_llama_server(client: Client) -> None:
    def completed(**more: Any) -> Any:
        body = {"prompt": PROMPT, "n_predict": 16, "temperature": 0, "seed": 1}
        made = post(client, "/completion", body | more)
        assert made.status_code == 200, made.text
        return made.json()

    half = completed(lora=[{"id": 1, "scale": 0.5}])
    assert half["generation_settings"]["lora"] == [{"id": 1, "scale": 0.5}]
    assert half["content"] == completed(adapters={"new": 0.5})["content"]
    assert completed(lora=[])["content"] == completed()["content"] != half["content"]


def test_scales_for_all_who_say_nothing(client: Client, files: dict[str, Path]) -> None:
    plain, old = text(client), text(client, model="old")
    listed = client.get("/lora-adapters").json()
    assert [(each["id"], each["path"], each["scale"]) for each in listed] == [
        (0, str(files["old"]), 0.0), (1, str(files["new"]), 0.0),
    ]  # fmt: skip
    assert post(client, "/lora-adapters", [{"id": 0, "scale": 1.0}]).json() == {"success": True}
    assert [each["scale"] for each in client.get("/lora-adapters").json()] == [1.0, 0.0]
    assert text(client) == old
    assert text(client, lora=[]) == old
    assert text(client, lora=[{"id": 0, "scale": 0}]) == text(client, adapters={}) == plain
    assert post(client, "/lora-adapters", []).json() == {"success": True}
    assert text(client) == plain


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lora": [{"id": 2, "scale": 1}]}, "no adapter 2"),
        ({"lora": [{"id": 0}]}, "lora[0]"),
        ({"lora": [{"id": 0, "scale": 1}, {"id": 0, "scale": 1}]}, "lora[1]"),
        ({"lora": [{"id": True, "scale": 1}]}, "lora[0]"),
        ({"lora": [{"id": 0, "scale": "1"}]}, "scale"),
        ({"lora": 1}, "give a list"),
        ({"lora": [{"id": 0, "scale": 1}], "adapters": "old"}, "both given"),
        ({"model": "old", "adapters": "new"}, "both given"),
        ({"adapters": "other"}, "no adapter 'other'"),
        ({"adapters": {"old": 1e7}}, "scale"),
    ],
)
def test_what_is_wrong_is_refused(client: Client, more: dict[str, Any], words: str) -> None:
    made = post(client, "/v1/completions", BODY | more)
    assert made.status_code == 400
    assert words in made.json()["error"]["message"]
    if "lora" in more and "adapters" not in more:
        assert post(client, "/lora-adapters", more["lora"]).status_code == 400


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/api/embed", "/api/embeddings"])
def test_vectors_are_not_those_of_an_adapter(client: Client, path: str) -> None:
    field = "prompt" if path == "/api/embeddings" else "input"
    made = post(client, path, {field: "x", "model": "old"})
    assert made.status_code == 400
    assert "'old' is an adapter" in made.text


def test_an_adapter_counts_tokens_as_its_model_does(client: Client) -> None:
    messages = {"messages": [{"role": "user", "content": "Hi"}]}
    for path, body in (
        ("/v1/messages/count_tokens", messages),
        ("/tokenize", {"content": "Hi"}),
        ("/apply-template", messages),
    ):
        made = [client.made(path, model=name, **body) for name in (client.service.name, "old")]
        assert made[0] == made[1]


def test_who_names_no_model_is_told_the_adapters(client: Client) -> None:
    assert "'new'" in client.refused("/v1/completions", 404, **BODY, model="other")["message"]


def test_an_erased_slot_forgets_texts_of_all_adapters(client: Client) -> None:
    def reused(**more: Any) -> int:
        body = {"prompt": PROMPT, "n_predict": 4, "id_slot": 1}
        found: int = client.made("/completion", **(body | more))["timings"]["cache_n"]
        return found

    reused(adapters="old")
    assert reused(adapters="old") > 0
    assert reused(adapters="new") == 0
    reused(adapters="new", cache_prompt=False)
    assert reused(adapters="old") == 0


def test_a_name_of_both(files: dict[str, Path]) -> None:
    model = aleator.load(adapters={"shakespeare": files["old"]}, n_threads=1)
    with model.engine(n_seq_max=1) as engine, pytest.raises(ParameterError, match="another one"):
        Client(model, engine)


def test_invocation_tokens_are_told(tmp_path: Path) -> None:
    about = {"adapter.alora.invocation_tokens": [40, 13]}
    file = write_adapter(tmp_path / "a.gguf", bundled_pairs(1), about)
    model = aleator.load(adapters={"late": file}, n_threads=1)
    with model.engine(n_seq_max=1) as engine:
        (told,) = Client(model, engine).get("/lora-adapters").json()
    assert told["alora_invocation_tokens"] == [40, 13]
    assert told["alora_invocation_string"] == model.tokenizer.decode([40, 13])


def test_invocation_tokens_without_texts(tmp_path: Path) -> None:
    about = {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": 24}
    path = write_gguf(tmp_path / "m.gguf", model_metadata() | about)
    file = write_adapter(tmp_path / "a.gguf", pairs_of(1), {"adapter.alora.invocation_tokens": [1]})
    model = aleator.load(path, adapters={"late": file}, n_threads=1)
    with model.engine(n_seq_max=1) as engine:
        (told,) = Client(model, engine).get("/lora-adapters").json()
    assert (told["alora_invocation_string"], told["alora_invocation_tokens"]) == ("", [1])
