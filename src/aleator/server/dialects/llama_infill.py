"""``/infill``: generates text between a prefix and a suffix, after other files, in llama-server's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aleator.core.errors import ParameterError
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama import respond
from aleator.server.dialects.llama_fields import of_llama, prompt_of, tokens_of
from aleator.server.dialects.llama_slots import Slots
from aleator.server.errors import not_built
from aleator.server.fields import Field, listing, text
from aleator.server.service import Service, read_body
from aleator.text.tokenizer import Tokenizer

AROUND = 2048
"""Most tokens of prefix and suffix together, three quarters of them for the prefix: llama-server's batch."""
BETWEEN = "\n\n--- snippet ---\n\n"
"""Precedes a file if the vocabulary has no token for that; llama-server's text."""
PROJECT, UNNAMED, CURRENT = "myproject\n", "tmp", "filename\n"
"""llama-server's names for the project, a file without a name, and the file being written."""


def infilling(
    tokenizer: Tokenizer, prompt: str | list[int], suffix: str, parse_special: bool
) -> list[int]:
    """The prompt tokens for generating what stands between two texts."""
    special, vocab = tokenizer.vocab.special, tokenizer.vocab
    before, after, middle = special.fim_pre, special.fim_suf, special.fim_mid
    if before is None or after is None or middle is None:
        raise ParameterError(
            "suffix: this model's vocabulary has no tokens for text between two others (fill in the middle): "
            "leave suffix out"
        )
    head = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
    if isinstance(prompt, str):
        prompt = tokenizer.encode(prompt, add_special=False, parse_special=parse_special)
    end = tokenizer.encode(suffix, add_special=False, parse_special=parse_special)
    return [*head, before, *prompt, after, *end, middle]


FIELDS = of_llama(
    Field("input_prefix", prompt_of, required=True),
    Field("input_suffix", prompt_of, required=True),
    Field("input_extra", lambda name, value: files(name, value), ()),
    Field("prompt", text, ""),
)
"""The fields of ``/infill``: those of ``/completion``, and its texts."""


def files(name: str, value: Any) -> list[tuple[str, str]]:
    """Check other files: their names and texts."""
    made: list[tuple[str, str]] = []
    for i, each in enumerate(listing(name, value)):
        where = f"{name}[{i}]"
        if not isinstance(each, Mapping) or "text" not in each:
            raise ParameterError(
                name, f'{where}={each!r:.80}: give {{"filename": text, "text": text}}'
            )
        file = text(f"{where}.filename", each.get("filename", UNNAMED))
        made.append((file, text(f"{where}.text", each["text"])))
    return made


async def infill(request: Request) -> Response:
    """Generate the text between a prefix and a suffix."""
    service: Service = request.app.state.service
    slots: Slots = request.app.state.slots
    _check(service)
    _, body = await read_body(request, FIELDS)
    own = body.own
    before, after = own.pop("input_prefix"), own.pop("input_suffix")
    others, middle = own.pop("input_extra"), own.pop("prompt")
    n_predict = body.options.get("max_tokens")
    room = slots.n_ctx - AROUND - 2 * (n_predict if isinstance(n_predict, int) else -1)
    prompt = await in_thread(
        infill_tokens, service.model.tokenizer, before, after, middle, others, max(0, room)
    )
    return await respond(request, body, [list[int | str](prompt)])


def _check(service: Service) -> None:
    """Check that the vocabulary has the tokens for infilling."""
    special = service.model.vocab.special
    needed = {"prefix": special.fim_pre, "suffix": special.fim_suf, "middle": special.fim_mid}
    missing = [name for name, token in needed.items() if token is None]
    if missing:
        raise not_built(
            f"this model's vocabulary has no tokens for infilling ({', '.join(missing)})",
            "use a model that was trained for it",
        )


def infill_tokens(
    tokenizer: Tokenizer,
    before: str | Sequence[int | str],
    after: str | Sequence[int | str],
    middle: str,
    others: Sequence[tuple[str, str]],
    room: int,
) -> list[int]:
    """The tokens that ask for the text between the end of ``before`` and the beginning of ``after``."""
    special, vocab = tokenizer.vocab.special, tokenizer.vocab
    pre, suf, mid = special.fim_pre, special.fim_suf, special.fim_mid
    if pre is None or suf is None or mid is None:
        raise ParameterError("input_prefix", "this model's vocabulary has no tokens for infilling")

    def plain(words: str | Sequence[int | str]) -> list[int]:
        return tokens_of(tokenizer, words, False, add_special=False)

    head, tail = plain(before), plain(after)
    begun = tokens_of(tokenizer, middle, True, add_special=False)
    extra = [] if special.fim_rep is None else [special.fim_rep, *plain(PROJECT)]
    for name, words in others:
        if special.fim_sep is None:
            extra += plain(BETWEEN)
        else:
            extra += [special.fim_sep, *plain(f"{name}\n")]
        extra += plain(words)
    if special.fim_sep is not None:
        extra += [special.fim_sep, *plain(CURRENT)]
    head = head[max(0, len(head) - 3 * (AROUND // 4)) :]
    tail = tail[: max(0, AROUND // 4 - (2 + len(begun)))]
    first = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
    kept = extra[max(0, len(extra) - room) :]
    return [*kept, *first, pre, *head, *begun, suf, *tail, mid]


ROUTES = [Route("/infill", infill, methods=["POST"])]
