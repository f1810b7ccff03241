"""``/v1/embeddings``: vectors of texts."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.server.accepted import LABEL, Accepted
from aleator.server.bodies import body_of, in_thread
from aleator.server.dialects.nested import wrong
from aleator.server.dialects.openai_errors import render_error as render_error
from aleator.server.fields import Field, Fields, one_of, switch, text, whole
from aleator.server.service import Service

MOST = 2048
"""Texts of one request, as OpenAI allows."""

Texts = list[str | list[int]]


def texts_of(name: str, value: Any) -> Texts:
    """Texts and lists of token ids; one of them stands for a list of one.

    Raises:
        ParameterError: Anything else, or one that is empty: it has no vector.
    """
    ids = isinstance(value, list) and bool(value) and all(map(_is_id, value))
    items = value if isinstance(value, list) and not ids else [value]
    if not 1 <= len(items) <= MOST:
        raise ParameterError(name, f"{name} has {len(items)} texts: give 1 to {MOST}")
    several = items is value
    return [_one(f"{name}[{i}]" if several else name, each) for i, each in enumerate(items)]


def _one(where: str, value: Any) -> str | list[int]:
    if value == "":
        raise ParameterError(where, f"{where} is an empty text, which has no vector: leave it out")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(_is_id, value)):
        return value
    raise wrong(where, value, "give a text, a list of token ids, or a list of either")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


FIELDS = Fields(
    Field("model", text),
    Field("input", texts_of, required=True),
    Field("encoding_format", one_of("float", "base64"), "float"),
    Field("dimensions", whole(1, 2**31 - 1)),
    Field("pooling", one_of("mean", "last"), "mean"),
    Field("normalize", switch, True),
    options={},
    accepted={
        "user": LABEL,
        "truncate": Accepted("a text is not cut: shorten it", (False,)),
        "truncate_prompt_tokens": Accepted("a text is not cut: shorten it", ()),
    },
)


async def embeddings(request: Request) -> Response:
    """Vectors of the texts of a request, in their order."""
    service: Service = request.app.state.service
    body = FIELDS.read(await body_of(request), service.options.lenient)
    own = body.own
    name = service.check_model(own["model"])
    check_dimensions(service, own["dimensions"])
    vectors, n_tokens = await service.embed("input", own["input"], own["pooling"], own["normalize"])
    made = {
        "object": "list",
        "data": await in_thread(_entries, vectors, own["encoding_format"] == "base64"),
        "model": name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return JSONResponse(made)


def check_dimensions(service: Service, wanted: int | None) -> None:
    """See that vectors are to have the length that they have.

    Raises:
        ParameterError: They are to be shorter, or longer.
    """
    width = service.model.weights.config.n_embd
    if wanted not in (None, width):
        raise wrong(
            "dimensions",
            wanted,
            f"vectors of this model have {width}, and lose their meaning when they are cut",
        )


def _entries(vectors: npt.NDArray[np.float32], packed: bool) -> list[dict[str, Any]]:
    return [
        {"object": "embedding", "index": i, "embedding": _packed(row) if packed else row.tolist()}
        for i, row in enumerate(vectors)
    ]


def _packed(row: npt.NDArray[np.float32]) -> str:
    """A vector as OpenAI packs it: float32, little-endian, in base64."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


ROUTES = [
    Route("/v1/embeddings", embeddings, methods=["POST"]),
]
