"""Vectors of texts: OpenAI's ``/v1/embeddings``, and llama-server's ``/embedding``."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.generate.vectors import POOLING
from aleator.server import fields
from aleator.server.accepted import LABEL, Accepted
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_fields import prompts_of, tokens_of
from aleator.server.fields import MOST_PROMPTS, Field, own_fields, wrong
from aleator.server.service import Service, read_body
from aleator.server.vectors import Vectors

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
    check_dimensions(service, own["dimensions"])
    pooling = one_vector(service, own["pooling"])
    vectors, n_tokens = await service.embed(
        request, "input", own["input"], pooling, own["normalize"], own["truncate"]
    )
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


def check_dimensions(service: Service, wanted: int | None) -> None:
    """Check that a requested length is that of the vectors."""
    width = service.model.weights.config.n_embd
    if wanted not in (None, width):
        why = f"vectors of this model have {width}, and lose their meaning when they are cut"
        raise wrong("dimensions", wanted, why)


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
    vectors, _ = await service.embed(request, given, texts, own["pooling"], False, own["truncate"])
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


OPENAI_ROUTES = [Route("/v1/embeddings", embeddings, methods=["POST"])]
LLAMA_ROUTES = [
    Route("/embedding", embedding, methods=["POST"]),
    Route("/embeddings", embedding, methods=["POST"]),
]
