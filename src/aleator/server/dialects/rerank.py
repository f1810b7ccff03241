"""``/v1/rerank``: how well documents answer a query, as Jina, Cohere, TEI and llama-server have it."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ContextFull
from aleator.server import fields
from aleator.server.accepted import LABEL
from aleator.server.errors import ApiError
from aleator.server.fields import MOST_PROMPTS, Field, own_fields, wrong
from aleator.server.service import read_body


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


FIELDS = own_fields(
    Field("model", fields.text),
    Field("query", query_of, required=True),
    Field("documents", documents_of),
    Field("texts", documents_of),
    Field("top_n", fields.whole(1, 2**31 - 1)),
    Field("return_documents", fields.switch, False),
    Field("return_text", fields.switch, False),
    Field("normalize", fields.switch, False),
    Field("raw_scores", fields.switch),  # TEI's
    Field("truncate", fields.switch, False),
    accepted={"user": LABEL},
)


async def rerank(request: Request) -> Response:
    """The scores of documents, the best first; TEI's form where they are called ``texts``."""
    service, body = await read_body(request, FIELDS)
    own = body.own
    service.check_no_adapter(own["model"])
    given = fields.only_one(own, "documents", "texts")
    texts: list[str] = own[given]
    work = partial(
        service.model.rerank,
        own["query"],
        texts,
        normalize=own["normalize"] or own["raw_scores"] is False,
        truncate=own["truncate"],
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
            result |= (
                {"text": texts[each.index]} if tei else {"document": {"text": texts[each.index]}}
            )
    if tei:
        return JSONResponse(results)
    n = sum(each.n_tokens for each in ranked)
    usage = {"prompt_tokens": n, "total_tokens": n}
    return JSONResponse(
        {"object": "list", "model": own["model"], "results": results, "usage": usage}
    )


PATHS = ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking")
ROUTES = [Route(path, rerank, methods=["POST"]) for path in PATHS]
