"""``/v1/embeddings``: the vectors are those of :meth:`aleator.LanguageModel.embed`, to the bit."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.server.dialects.embeddings import one_vector
from tests.server.conftest import Client

TEXTS = ["My lord, the king!", "Two pints of ale"]


def test_vectors(client: Client, model: aleator.LanguageModel) -> None:
    made = client.made("/v1/embeddings", input=TEXTS)
    wanted = model.embed(TEXTS)
    assert [entry["index"] for entry in made["data"]] == [0, 1]
    vectors = np.array([entry["embedding"] for entry in made["data"]], np.float32)
    assert np.array_equal(vectors, wanted)
    n_tokens = sum(len(model.prompt_tokens(text)) for text in TEXTS)
    assert made["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert (made["object"], made["model"]) == ("list", client.service.name)


def test_base64_is_float32(client: Client, model: aleator.LanguageModel) -> None:
    made = client.made(
        "/v1/embeddings", input=TEXTS[0], encoding_format="base64", dimensions=256, user="u"
    )
    packed = base64.b64decode(made["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(packed, "<f4"), model.embed(TEXTS[0]))


def test_dimensions_are_the_first_ones(client: Client, model: aleator.LanguageModel) -> None:
    made = client.made("/v1/embeddings", input=TEXTS, dimensions=3)["data"]
    cut = model.embed(TEXTS, dimensions=3)
    assert [each["embedding"] for each in made] == cut.tolist()
    raw = model.embed(TEXTS, normalize=False)[:, :3]
    assert np.array_equal(model.embed(TEXTS, normalize=False, dimensions=3), raw)
    assert np.allclose(cut, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    wrong: Any
    for wrong in (257, 0, -1, True, 1.5):
        with pytest.raises(aleator.ParameterError, match="give 1 to 256, or None"):
            model.embed("a", dimensions=wrong)


def test_token_ids(client: Client, model: aleator.LanguageModel) -> None:
    tokens = list(model.prompt_tokens(TEXTS[0]))
    one = client.made("/v1/embeddings", input=tokens)["data"]
    several = client.made("/v1/embeddings", input=[tokens, tokens[:3]])["data"]
    assert len(one) == 1
    assert len(several) == 2
    assert one[0]["embedding"] == several[0]["embedding"] == model.embed(TEXTS[0]).tolist()


def test_token_ids_beside_texts(client: Client, model: aleator.LanguageModel) -> None:
    tokens = list(model.prompt_tokens(TEXTS[0]))
    made = client.made("/v1/embeddings", input=[TEXTS[1], tokens])["data"]
    assert made[0]["embedding"] == model.embed(TEXTS[1]).tolist()
    assert made[1]["embedding"] == model.embed(TEXTS[0]).tolist()


def test_pooling(client: Client, model: aleator.LanguageModel) -> None:
    made = client.made("/v1/embeddings", input=TEXTS[0], pooling="last", normalize=False)
    assert made["data"][0]["embedding"] == model.embed(TEXTS[0], "last", False).tolist()


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "give 1 to 2048"),
        ({"input": [["a"]]}, "input[0]", "a list of token ids"),
        ({"input": {"prompt_string": "a"}}, "input", "a list of token ids"),
        ({"input": ["a"] * 2049}, "input", "give 1 to 2048"),
        ({"input": ["a", ""]}, "input[1]", "is an empty text"),
        ({"input": "a", "dimensions": 257}, "dimensions", "give 1 to 256"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'base64'"),
        ({"input": [9999999]}, "input", "token id 9999999: give ids of the vocabulary, 0 to 2047"),
        ({"input": ["a", [1, -1]]}, "input[1]", "token id -1"),
        ({"input": ["a", "x" * 9000]}, "input[1]", "--ctx-size"),
    ],
)
def test_what_cannot_be_honoured(
    client: Client, body: dict[str, Any], param: str, said: str
) -> None:
    error = client.refused("/v1/embeddings", **body)
    assert error["param"] == param
    assert said in error["message"]


def test_a_model_that_pools_in_another_way_is_told_to_name_one() -> None:
    def service(pooling: str) -> Any:
        return SimpleNamespace(model=SimpleNamespace(pooling=pooling))

    assert one_vector(service("mean"), None) == "mean"
    assert one_vector(service("other"), "cls") == "cls"
    with pytest.raises(aleator.ParameterError, match="which gives no single vector: give"):
        one_vector(service("other"), None)
