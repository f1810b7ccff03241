"""``/v1/rerank`` and the vectors of encoders; an encoder writes no text."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_models import ENCODERS, write_encoder
from starlette.requests import Request

import aleator
from aleator.core.cancellation import check_cancelled
from aleator.server.dialects.embeddings import DEFAULTS
from aleator.server.errors import ApiError
from aleator.server.vectors import vectors_of
from tests.server.conftest import Client

DOCUMENTS = ["The king is good.", "a dog", "storm and sea"]


def client_of(path: Path) -> Iterator[Client]:
    model = aleator.load(path)
    with model.engine(n_seq_max=2) as engine:
        yield Client(model, engine)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    yield from client_of(write_encoder(tmp_path_factory.mktemp("a") / "b.gguf", ENCODERS["bert"]))


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("a") / "scoring.gguf"
    yield from client_of(write_encoder(path, ENCODERS["bert-score"]))


@pytest.mark.parametrize(
    "path", ["/v1/rerank", "/v2/rerank", "/v1/reranking", "/rerank", "/reranking"]
)
def test_results_are_the_models(scoring: Client, path: str) -> None:
    made = scoring.made(path, query="who is king", documents=DOCUMENTS)
    ranked = scoring.service.model.rerank("who is king", DOCUMENTS)
    assert made["results"] == [
        {"index": each.index, "relevance_score": each.score} for each in ranked
    ]
    n = sum(each.n_tokens for each in ranked)
    assert made["usage"] == {"prompt_tokens": n, "total_tokens": n}
    assert (made["object"], made["model"]) == ("list", scoring.service.name)
    few = scoring.made(path, query="who is king", documents=DOCUMENTS, top_n=1)
    assert few["results"] == made["results"][:1]
    assert few["usage"] == made["usage"]
    assert len(scoring.made(path, query="a", documents=DOCUMENTS, top_n=9)["results"]) == 3


def test_documents_are_returned_if_that_is_asked_for(scoring: Client) -> None:
    given: list[Any] = [{"text": text} for text in DOCUMENTS]
    made = scoring.made("/v1/rerank", query="king", documents=given, return_documents=True)
    for each in made["results"]:
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}


def test_texts_are_answered_as_tei_does(scoring: Client) -> None:
    made: Any = scoring.made("/rerank", query="king", texts=DOCUMENTS, return_text=True)
    ranked = scoring.service.model.rerank("king", DOCUMENTS)
    assert made == [
        {"index": each.index, "score": each.score, "text": DOCUMENTS[each.index]} for each in ranked
    ]
    for given, own in ({"raw_scores": False}, True), ({"raw_scores": True}, False):
        made = scoring.made("/rerank", query="king", texts=DOCUMENTS, **given)
        ranked = scoring.service.model.rerank("king", DOCUMENTS, normalize=own)
        assert [each["score"] for each in made] == [each.score for each in ranked]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"documents": ["a"]}, "query", "missing"),
        ({"query": "a"}, "documents", "give one of documents, texts"),
        ({"query": "", "documents": ["a"]}, "query", "not empty"),
        ({"query": "a", "documents": []}, "documents", "give a list of 1 to 2048 texts"),
        ({"query": "a", "documents": ["a", ""]}, "documents[1]", "not empty"),
        ({"query": "a", "documents": [{"text": "a", "b": 1}]}, "documents[0]", "not empty"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n", "0"),
        ({"query": "a", "documents": ["a"], "texts": ["a"]}, "texts", "documents and texts"),
        ({"query": "a", "documents": ["king " * 90]}, "documents", "context 64"),
    ],
)
def test_what_cannot_be_honoured(
    scoring: Client, body: dict[str, Any], param: str, said: str
) -> None:
    error = scoring.refused("/v1/rerank", **body)
    assert error["param"] == param
    assert said in error["message"]


def test_long_documents_are_cut_if_that_is_asked_for(scoring: Client) -> None:
    made = scoring.made("/v1/rerank", query="a", documents=["king " * 90], truncate=True)
    assert made["usage"]["prompt_tokens"] == 64
    asked: Any = {"query": "a", "documents": ["king " * 90]}
    assert (
        scoring.made("/v2/rerank", **asked)["results"] == made["results"]
    )  # Cohere's cuts unasked
    for path, given in (("/v1/rerank", {}), ("/v2/rerank", {"truncate": False})):
        error = scoring.refused(path, **asked, **given)
        assert error["code"] == "context_length_exceeded"
    error = scoring.refused("/v1/rerank", query="king " * 90, documents=["a"], truncate=True)
    assert error["message"].startswith("the query alone takes 9")


def test_documents_are_cut_to_max_tokens_per_doc(
    scoring: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fits the context; at Cohere's own path there is a default."""
    asked: Any = {"query": "a", "documents": ["king " * 30, "king"]}
    made = scoring.made("/v1/rerank", **asked, max_tokens_per_doc=7)
    short = scoring.made("/v1/rerank", query="a", documents=["king " * 7, "king"])
    assert made["results"] == short["results"]
    assert made["usage"] == short["usage"]
    monkeypatch.setitem(DEFAULTS, "/v2/rerank", 7)
    assert scoring.made("/v2/rerank", **asked)["results"] == made["results"]
    assert scoring.made("/v1/rerank", **asked)["usage"] != made["usage"]


def test_models_without_a_head_do_not_rank(bert: Client, client: Client) -> None:
    for each in (bert, client):
        error = each.refused("/v1/rerank", status=501, query="a", documents=["b"])
        assert "no head for scores" in error["message"]


def test_vectors_of_an_encoder(bert: Client) -> None:
    model = bert.service.model
    made = bert.made("/v1/embeddings", input=DOCUMENTS)
    got = np.array([each["embedding"] for each in made["data"]], np.float32)
    assert np.array_equal(got, np.asarray(model.embed(DOCUMENTS, "cls")))
    tokens: Any = bert.post("/embedding", content="a dog", pooling="none").json()
    states = model.embed_tokens("a dog")[0]
    assert np.array_equal(np.array(tokens[0]["embedding"], np.float32), states)
    assert bert.refused("/v1/embeddings", input="a", pooling="none")["param"] == "pooling"
    error = bert.refused("/v1/embeddings", input="king " * 90)
    assert "92 tokens and the context 64 positions, which are all" in error["message"]
    cut = bert.made("/v1/embeddings", input="king " * 90, truncate=True)
    assert cut["usage"]["prompt_tokens"] == 64
    vector = cut["data"][0]["embedding"]
    given: dict[str, Any] = {"input": "king " * 90, "truncate": True}
    assert bert.made("/api/embed", model=bert.service.name, **given)["embeddings"] == [vector]
    (found,) = bert.post("/embedding", **given).json()
    assert found["embedding"][0] == pytest.approx(vector, abs=1e-6)


def test_states_of_too_many_tokens_are_refused(
    bert: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = len(bert.service.model.embed_tokens("a dog")[0])
    monkeypatch.setattr("aleator.server.vectors.MOST_STATES", n * 4 * 64)
    assert bert.post("/embedding", content="a dog", pooling="none").status_code == 200
    error = bert.refused("/embedding", content=["a dog", "a"], pooling="none")
    assert error["param"] == "pooling"
    assert f"{n + 3} tokens take {(n + 3) * 256} bytes" in error["message"]


def test_vectors_and_scores_have_the_time_of_a_request(scoring: Client) -> None:
    hasty = Client(scoring.service.model, scoring.service.engine, request_timeout=1e-9)
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        error = hasty.refused(path, status=503, **body)
        assert "not done within 1e-09 s" in error["message"]


@pytest.mark.parametrize("by", ["client", "server"])
async def test_vectors_that_nobody_waits_for_are_given_up(
    bert: Client, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, begun = bert.service, threading.Event()

    def endless(*given: Any, **named: Any) -> None:
        begun.set()
        for _ in range(3000):
            check_cancelled()
            time.sleep(0.01)

    monkeypatch.setattr(service.model, "embed", endless)
    left = asyncio.Event()

    async def receive() -> dict[str, str]:
        await left.wait()
        return {"type": "http.disconnect"}

    asked = Request({"type": "http"}, receive)
    work = partial(vectors_of, service.model, "input", [[1]], "mean", True)
    made = asyncio.ensure_future(service.scored(asked, work))
    await asyncio.to_thread(begun.wait, 30)
    if by == "client":
        left.set()
    else:
        service.cut()
    with pytest.raises(ApiError, match="given up"):
        await made


def test_an_encoder_writes_no_text(bert: Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/completion", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/api/generate", {"model": bert.service.name, "prompt": "a"}),
    ):
        response = bert.post(path, **body)
        assert (response.status_code, "is an encoder" in response.text) == (501, True), path
    assert bert.made("/api/show", model=bert.service.name)["capabilities"] == ["embedding"]
    assert bert.get("/health").status_code == 200
    assert bert.get("/v1/models").status_code == 200
    assert bert.get("/props").status_code == 200
