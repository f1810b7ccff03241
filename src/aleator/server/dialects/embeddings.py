"""What is computed of texts that are there already: vectors and scores.

OpenAI's ``/v1/embeddings`` and llama-server's ``/embedding``; and ``/v1/rerank``: how well documents answer a
query, as Jina, Cohere, TEI and llama-server have it.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ContextFull, ParameterError
from aleator.generate.vectors import POOLING
from aleator.server import fields
from aleator.server.accepted import LABEL, Accepted
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_fields import prompts_of, tokens_of
from aleator.server.errors import ApiError
from aleator.server.fields import MOST_PROMPTS, Field, own_fields, wrong
from aleator.server.service import Service, read_body
from aleator.server.vectors import Vectors, vectors_of

Texts = list[str | list[int]]

MOST_POWER = 1024
"""Largest ``embd_normalize``."""
LLAMA_FIELDS = own_fields(
    Field("model", fields.text),
    Field("content", prompts_of),
    Field("input", prompts_of),
    Field("pooling", fields.one_of(*POOLING, "none")),
    Field("embd_normalize", fields.whole(-1, MOST_POWER), 2),
    Field("truncate", fields.switch, False),
)


def texts_of(name: str, value: Any) -> Texts:
    """Check texts and lists of token ids; a single one stands for a list of one."""
    ids = isinstance(value, list) and bool(value) and all(map(fields.is_whole, value))
    items = value if isinstance(value, list) and not ids else [value]
    if not 1 <= len(items) <= MOST_PROMPTS:
        raise ParameterError(name, f"{name} has {len(items)} texts: give 1 to {MOST_PROMPTS}")
    several = items is value
    return [_one(f"{name}[{i}]" if several else name, each) for i, each in enumerate(items)]


def _one(where: str, value: Any) -> str | list[int]:
    if value == "":
        raise ParameterError(where, f"{where} is an empty text, which has no vector: leave it out")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(fields.is_whole, value)):
        return value
    raise wrong(where, value, "give a text, a list of token ids, or a list of either")


FIELDS = own_fields(
    Field("model", fields.text),
    Field("input", texts_of, required=True),
    Field("encoding_format", fields.one_of("float", "base64"), "float"),
    Field("dimensions", fields.whole(1, 2**31 - 1)),
    Field("pooling", fields.one_of(*POOLING)),
    Field("normalize", fields.switch, True),
    Field("truncate", fields.switch, False),
    accepted={
        "user": LABEL,
        "truncate_prompt_tokens": Accepted("a text is cut with truncate only: give that", ()),
    },
)


async def embeddings(request: Request) -> Response:
    """Return the vectors of a request's texts, in order."""
    service, body = await read_body(request, FIELDS)
    own = body.own
    service.check_no_adapter(own["model"])
    pooling = one_vector(service, own["pooling"])
    how = own["normalize"], own["truncate"], own["dimensions"]
    work = partial(vectors_of, service.model, "input", own["input"], pooling, *how)
    vectors, n_tokens = await service.scored(request, work)
    made = {
        "object": "list",
        "data": await in_thread(_entries, vectors, own["encoding_format"] == "base64"),
        "model": own["model"],
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return JSONResponse(made)


def one_vector(service: Service, asked: str | None) -> str:
    """The pooling of a request whose texts get one vector each; None: the model's."""
    pooling = asked or service.model.pooling
    if pooling in POOLING:
        return pooling
    known = " or ".join(map(repr, POOLING))
    message = f"the model's files ask for {pooling!r}, which gives no single vector"
    raise ParameterError("pooling", f"pooling: {message}: give {known}")


def _entries(vectors: Vectors, packed: bool) -> list[dict[str, Any]]:
    """Vectors as numbers; ``packed``: in OpenAI's packed form, float32, little-endian, in base64."""
    rows = [
        base64.b64encode(row.astype("<f4").tobytes()).decode() if packed else row.tolist()
        for row in vectors
    ]
    return [{"object": "embedding", "index": i, "embedding": x} for i, x in enumerate(rows)]


async def embedding(request: Request) -> Response:
    """Return the vector of each text: its hidden states after the last norm, pooled."""
    service, body = await read_body(request, LLAMA_FIELDS)
    own = body.own
    service.check_no_adapter(own["model"])
    given = fields.only_one(own, "content", "input")
    _, prompts = own[given]
    read = partial(tokens_of, service.model.tokenizer, parse_special=True, to_continue=False)
    texts = [await in_thread(read, each) for each in prompts]
    how = own["pooling"], False, own["truncate"]
    vectors, _ = await service.scored(
        request, partial(vectors_of, service.model, given, texts, *how)
    )
    # As in llama-server, vectors of tokens are not divided by their norms.
    power = own["embd_normalize"] if isinstance(vectors, np.ndarray) else -1
    made: list[dict[str, Any]] = [
        {"index": i, "embedding": normalized(np.atleast_2d(each), power).tolist()}
        for i, each in enumerate(vectors)
    ]
    return JSONResponse(made)


def normalized(vectors: npt.NDArray[np.float32], power: int) -> npt.NDArray[np.float32]:
    """Vectors [n, width], float32, divided by their norms.

    Power -1 leaves them unchanged; 0 makes the largest number 32760, as in llama.cpp.
    """
    if power == -1:
        return vectors
    size = np.abs(vectors.astype(np.float64))
    largest = size.max(1, keepdims=True)
    largest[largest == 0] = 1  # zero vectors stay zero
    if power == 0:
        norm = largest / 32760
    else:  # scaled to at most 1, so that no power overflows
        norm = largest * ((size / largest) ** power).sum(1, keepdims=True) ** (1 / power)
        norm[norm == 0] = 1
    made: npt.NDArray[np.float32] = (vectors / norm).astype(np.float32)
    return made


def documents_of(name: str, value: Any) -> list[str]:
    """Check documents: texts, or objects with one."""
    items = value if isinstance(value, list) else []
    if not 1 <= len(items) <= MOST_PROMPTS:
        raise wrong(name, value, f"give a list of 1 to {MOST_PROMPTS} texts")
    made: list[str] = []
    for i, item in enumerate(items):
        text = item.get("text") if isinstance(item, dict) and len(item) == 1 else item
        if not isinstance(text, str) or not text.strip():
            raise wrong(
                f"{name}[{i}]", item, 'give a text that is not empty, or {"text": TEXT} alone'
            )
        made.append(text)
    return made


def query_of(name: str, value: Any) -> str:
    """Check a query."""
    text: str = fields.text(name, value)
    if not text.strip():
        raise wrong(name, value, "give a text that is not empty")
    return text


RERANK = own_fields(
    Field("model", fields.text),
    Field("query", query_of, required=True),
    Field("documents", documents_of),
    Field("texts", documents_of),
    Field("top_n", fields.whole(1, 2**31 - 1)),
    Field("return_documents", fields.switch, False),
    Field("return_text", fields.switch, False),
    Field("normalize", fields.switch, False),
    Field("raw_scores", fields.switch),  # TEI's
    Field("truncate", fields.switch),
    Field("max_tokens_per_doc", fields.whole(1, 2**31 - 1)),
    accepted={"user": LABEL},
)


async def rerank(request: Request) -> Response:
    """The scores of documents, the best first; TEI's form where they are called ``texts``."""
    service, body = await read_body(request, RERANK)
    own = body.own
    service.check_no_adapter(own["model"])
    given = fields.only_one(own, "documents", "texts")
    texts: list[str] = own[given]
    # Cohere cuts documents unasked; Jina's, TEI's and llama-server's clients get an error.
    most = DEFAULTS.get(request.url.path)
    work = partial(
        service.model.rerank,
        own["query"],
        texts,
        normalize=own["normalize"] or own["raw_scores"] is False,
        truncate=most is not None if own["truncate"] is None else own["truncate"],
        max_tokens_per_doc=own["max_tokens_per_doc"] or most,
    )
    try:
        ranked = await service.scored(request, work)
    except ContextFull as error:
        raise ApiError(400, str(error), given, "context_length_exceeded") from None
    tei, shown = given == "texts", own["return_documents"] or own["return_text"]
    results: list[dict[str, Any]] = [
        {"index": each.index, "score" if tei else "relevance_score": each.score}
        for each in ranked[: own["top_n"]]
    ]
    if shown:
        for result, each in zip(results, ranked, strict=False):
            text = {"text": texts[each.index]}
            result |= text if tei else {"document": text}
    if tei:
        return JSONResponse(results)
    n = sum(each.n_tokens for each in ranked)
    usage = {"prompt_tokens": n, "total_tokens": n}
    return JSONResponse(
        {"object": "list", "model": own["model"], "results": results, "usage": usage}
    )


DEFAULTS = {"/v2/rerank": 4096}
"""Of ``max_tokens_per_doc``, at the path that is Cohere's alone, where ``truncate`` is on by default."""
PATHS = ("/v1/rerank", "/v2/rerank", "/v1/reranking", "/rerank", "/reranking")
OPENAI_ROUTES = [
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    *(Route(path, rerank, methods=["POST"]) for path in PATHS),
]
LLAMA_ROUTES = [
    Route("/embedding", embedding, methods=["POST"]),
    Route("/embeddings", embedding, methods=["POST"]),
]
