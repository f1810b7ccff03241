"""``/embedding``: vectors of texts, as llama-server's own endpoint has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.server.bodies import body_of, in_thread
from aleator.server.dialects.llama_errors import render_error as render_error
from aleator.server.dialects.llama_fields import prompts_of, tokens_of
from aleator.server.fields import Field, Fields, one_of, text, whole
from aleator.server.service import Service

MOST_POWER = 1024
"""Of ``embd_normalize``."""

FIELDS = Fields(
    Field("model", text),
    Field("content", lambda name, value: prompts_of(name, value)),
    Field("input", lambda name, value: prompts_of(name, value)),
    Field("pooling", one_of("mean", "last"), "mean"),
    Field("embd_normalize", whole(-1, MOST_POWER), 2),
    options={},
    accepted={},
)


async def embedding(request: Request) -> Response:
    """The vector of each text: its hidden states after the last norm, pooled."""
    service: Service = request.app.state.service
    own = FIELDS.read(await body_of(request), service.options.lenient).own
    service.check_model(own["model"])
    given = [name for name in ("content", "input") if own[name] is not None]
    if len(given) != 1:
        raise ParameterError("content", "give one of content and input")
    _, prompts = own[given[0]]
    texts = [await in_thread(tokens_of, service.model.tokenizer, each, True) for each in prompts]
    vectors, _ = await service.embed(given[0], texts, own["pooling"], False)
    made: list[dict[str, Any]] = [
        {"index": i, "embedding": [row.tolist()]}
        for i, row in enumerate(normalized(vectors, own["embd_normalize"]))
    ]
    return JSONResponse(made)


def normalized(vectors: npt.NDArray[np.float32], power: int) -> npt.NDArray[np.float32]:
    """Vectors [n, width] with a norm of 1.

    Args:
        vectors: Float32.
        power: Of the norm; -1: they stay as they are; 0: the largest becomes 32760, as llama.cpp has it.
    """
    if power == -1:
        return vectors
    size = np.abs(vectors.astype(np.float64))
    largest = size.max(1, keepdims=True)
    largest[largest == 0] = 1  # what is nothing stays nothing
    if power == 0:
        norm = largest / 32760
    else:  # of numbers up to 1, so that no power is too large
        norm = largest * ((size / largest) ** power).sum(1, keepdims=True) ** (1 / power)
        norm[norm == 0] = 1
    made: npt.NDArray[np.float32] = (vectors / norm).astype(np.float32)
    return made


ROUTES = [
    Route("/embedding", embedding, methods=["POST"]),
    Route("/embeddings", embedding, methods=["POST"]),
]
