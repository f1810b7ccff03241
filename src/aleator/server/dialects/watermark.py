"""``/watermark/detect``: tests whether a text was drawn with the server's watermark key."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.integers import MAX_TOKEN
from aleator.samplers.dist import DRAW
from aleator.samplers.synthid import detector
from aleator.samplers.watermark import KEYED, WATERMARK_KEY_FILE, WATERMARK_NGRAM, WatermarkKey
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_fields import prompt_of, tokens_of
from aleator.server.fields import Field, known_ids, own_fields
from aleator.server.fields import text as text_of
from aleator.server.service import read_body

DETECT = own_fields(
    Field("model", text_of),
    Field("content", prompt_of, required=True),
    Field(DRAW.name, lambda _, value: detector(DRAW.check(value))),
    Field(WATERMARK_NGRAM.name, lambda _, value: WATERMARK_NGRAM.check(value)),
    Field(WATERMARK_KEY_FILE.name, lambda _, value: WatermarkKey.of(value)),
)


async def detect(request: Request) -> Response:
    """Test ``content``, a text or token ids without the prompt."""
    service, body = await read_body(request, DETECT)
    params, _ = service.effective()
    key = body.own[WATERMARK_KEY_FILE.name] or service.watermark_key
    ngram = body.own[WATERMARK_NGRAM.name] or params.watermark_ngram
    test = body.own[DRAW.name] or detector(params.draw if params.draw in KEYED else KEYED[0])
    content, tokenizer = body.own["content"], service.model.tokenizer
    ids = await in_thread(tokens_of, tokenizer, content, False, add_special=False)
    known_ids("content", ids, min(MAX_TOKEN, len(service.model.vocab)))
    found = await in_thread(lambda: test(ids, key, ngram=ngram))
    return JSONResponse({"object": "watermark", **asdict(found)})


ROUTES = [Route("/watermark/detect", detect, methods=["POST"])]
