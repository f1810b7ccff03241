"""The instructor package: objects of a class, by a schema and by a forced call."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from checks import Server, main
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Verona", "Mantua"]


def made(server: Server, mode: instructor.Mode, **more: Any) -> object:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode).chat.completions.create(
        model=server.model,
        messages=server.messages,
        response_model=Weather,
        max_retries=0,
        seed=server.seed,
        max_tokens=200,
        **more,
    )


def schemas(server: Server) -> None:
    assert isinstance(made(server, instructor.Mode.JSON_SCHEMA), Weather)


def tools(server: Server) -> str | None:
    if not server.tools:
        return "the template shows no tools"
    assert isinstance(made(server, instructor.Mode.TOOLS), Weather)
    return None


if __name__ == "__main__":
    main("instructor", schemas, tools)
