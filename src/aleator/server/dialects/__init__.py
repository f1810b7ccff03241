"""The dialects: modules with the ``ROUTES`` of a family of endpoints, and the form of the family's errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.routing import Route

from aleator.server.dialects import (
    anthropic,
    embeddings,
    llama,
    llama_infill,
    llama_lora,
    llama_results,
    llama_slots,
    llama_tokens,
    ollama,
    openai_chat,
    openai_completions,
    openai_forms,
    openai_responses,
    operation,
    watermark,
)
from aleator.server.errors import ApiError


@dataclass(frozen=True)
class Dialect:
    """Endpoints, each an ``async def endpoint(request)``, and what makes the bodies of their errors."""

    render_error: Callable[[ApiError], dict[str, Any]]
    ROUTES: Sequence[Route]


OPENAI = Dialect(
    openai_forms.render_error,
    [
        *operation.ROUTES,
        *openai_completions.ROUTES,
        *openai_chat.ROUTES,
        *openai_responses.ROUTES,
        *embeddings.OPENAI_ROUTES,
        *watermark.ROUTES,
    ],
)
LLAMA_SERVER = Dialect(
    llama_results.render_error,
    [
        *llama.ROUTES,
        *embeddings.LLAMA_ROUTES,
        *llama_infill.ROUTES,
        *llama_lora.ROUTES,
        *llama_slots.ROUTES,
        *llama_tokens.ROUTES,
    ],
)
DIALECTS: tuple[Dialect, ...] = (
    OPENAI,
    Dialect(anthropic.render_error, anthropic.ROUTES),
    Dialect(ollama.render_error, ollama.ROUTES),
    LLAMA_SERVER,
    Dialect(llama_results.render_error, operation.NO_LLAMA_SERVER),
    Dialect(anthropic.render_error, operation.NO_ANTHROPIC),
    Dialect(ollama.render_error, operation.NO_OLLAMA),
    Dialect(openai_forms.render_error, operation.NO_OPENAI),
)
"""All that the server speaks, in the order in which routes are looked at."""
