"""The dialects: one module for each family of endpoints, with its ``ROUTES`` and the form of its errors."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.routing import Route

from aleator.server.dialects import (
    anthropic,
    llama,
    llama_embeddings,
    llama_infill,
    llama_props,
    llama_slots,
    llama_tokens,
    not_built,
    ollama,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    openai_responses,
    operation,
)
from aleator.server.errors import ApiError


class Dialect(Protocol):
    """What a module of this package has."""

    @property
    def ROUTES(self) -> list[Route]:
        """Its endpoints; each is an ``async def endpoint(request)``."""

    def render_error(self, error: ApiError) -> dict[str, Any]:
        """The body of a response that is an error."""


DIALECTS: tuple[Dialect, ...] = (
    operation,
    openai_models,
    openai_completions,
    openai_chat,
    openai_responses,
    openai_embeddings,
    anthropic,
    ollama,
    llama,
    llama_embeddings,
    llama_infill,
    llama_props,
    llama_slots,
    llama_tokens,
    *not_built.ALL,
)
"""All that the server speaks, in the order in which routes are looked at."""
