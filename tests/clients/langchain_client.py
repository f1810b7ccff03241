"""The langchain-openai package: chats, completions, tools, structured output, Responses, embeddings."""

from __future__ import annotations

from typing import Any, Literal

from checks import Server, equal, main
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field


class weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Verona", "Mantua"] = Field(description="Where.")


def chat(server: Server, **more: Any) -> ChatOpenAI:
    given = {"max_tokens": server.max_tokens, "extra_body": {"seed": server.seed}, **more}
    return ChatOpenAI(
        model=server.model, base_url=f"{server.url}/v1", api_key="none", max_retries=0, **given
    )


def said(server: Server) -> str:
    return server.messages[0]["content"]


def chats(server: Server) -> None:
    equal(chat(server).invoke(said(server)).content, server.chat)
    pieces = chat(server, stream_usage=True).stream(said(server))
    equal("".join(str(piece.content) for piece in pieces), server.chat)
    made = chat(server).bind(logprobs=True, top_logprobs=2).invoke(said(server))
    equal(len(made.response_metadata["logprobs"]["content"]), server.max_tokens)


def batches(server: Server) -> None:
    made = chat(server).batch([said(server)] * 4)
    equal([each.content for each in made], [server.chat] * 4)


def completions(server: Server) -> None:
    model = OpenAI(
        model=server.model,
        base_url=f"{server.url}/v1",
        api_key="none",
        seed=server.seed,
        max_tokens=server.max_tokens,
        max_retries=0,
    )
    assert model.invoke(server.prompt)
    equal("".join(model.stream(server.prompt)), model.invoke(server.prompt))


def tools(server: Server) -> str | None:
    if not server.tools:
        return "the template shows no tools"
    bound = chat(server, max_tokens=200).bind_tools([weather], tool_choice="any")
    made = bound.invoke(said(server))
    assert made.tool_calls, made
    call = made.tool_calls[0]
    assert call["args"]["city"] in ("Verona", "Mantua")
    return None


def structured_output(server: Server) -> None:
    made = chat(server, max_tokens=200).with_structured_output(weather, method="json_schema")
    assert isinstance(made.invoke(said(server)), weather)


def responses(server: Server) -> None:
    model = chat(server, use_responses_api=True)
    equal(model.invoke(said(server)).text, server.chat)
    equal("".join(str(piece.text) for piece in model.stream(said(server))), server.chat)


def embeddings(server: Server) -> None:
    model = OpenAIEmbeddings(
        model=server.model,
        base_url=f"{server.url}/v1",
        api_key="none",
        check_embedding_ctx_length=False,
    )
    equal(model.embed_documents([server.prompt])[0], server.embedding)


if __name__ == "__main__":
    main(
        "langchain-openai", chats, batches, completions, tools, structured_output, responses, embeddings,
    )  # fmt: skip
