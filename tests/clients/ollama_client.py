"""The ollama package: chats, prompts, models."""

from __future__ import annotations

from typing import Any

import ollama
from checks import Server, equal, main, raises
from ollama import Client


def client(server: Server) -> Client:
    return Client(host=server.url)


def common(server: Server, **options: Any) -> dict[str, Any]:
    given = {"seed": server.seed, "num_predict": server.max_tokens, **options}
    return {"model": server.model, "options": given}


def models(server: Server) -> None:
    (model,) = client(server).list().models
    shown = client(server).show(server.model)
    equal(shown.details.family, model.details.family)
    equal("tools" in shown.capabilities, server.tools)
    equal(len(client(server).ps().models), 1)


def chats(server: Server) -> None:
    made = client(server).chat(messages=server.messages, **common(server))
    equal(made.message.content, server.chat)
    equal((made.done_reason, made.eval_count), ("length", server.max_tokens))
    stream = client(server).chat(messages=server.messages, stream=True, **common(server))
    equal("".join(part.message.content for part in stream), server.chat)


def prompts(server: Server) -> None:
    made = client(server).generate(prompt=server.prompt, raw=True, **common(server))
    equal(made.response, server.completion)
    (message,) = server.messages
    stream = client(server).generate(prompt=message["content"], stream=True, **common(server))
    equal("".join(part.response for part in stream), server.chat)


def log_probabilities(server: Server) -> None:
    made = client(server).chat(
        messages=server.messages, logprobs=True, top_logprobs=2, **common(server)
    )
    equal(len(made.logprobs), server.max_tokens)


def schemas(server: Server) -> None:
    made = client(server).chat(
        messages=server.messages, format=server.schema, **common(server, num_predict=200)
    )
    assert any(city in made.message.content for city in ("Verona", "Mantua"))


def tools(server: Server) -> str | None:
    if not server.tools:
        return "the template shows no tools"
    function = {"name": "weather", "description": "The weather.", "parameters": server.schema}
    given = [{"type": "function", "function": function}]
    client(server).chat(messages=server.messages, tools=given, **common(server))
    call = {"function": {"name": "weather", "arguments": {"city": "Verona"}}}
    talk = [
        *server.messages,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "It rains."},
    ]
    client(server).chat(messages=talk, tools=given, **common(server))
    return None


def thinking(server: Server) -> str | None:
    if not server.thinks:
        return "the template does not let it reason"
    made = client(server).chat(
        messages=server.messages, think=True, **common(server, reasoning_budget=4)
    )
    assert made.message.thinking
    return None


def embeddings(server: Server) -> None:
    made = client(server).embed(model=server.model, input=[server.prompt, server.prompt])
    equal([list(each) for each in made.embeddings], [server.embedding] * 2)


def errors(server: Server) -> None:
    chat = client(server).chat
    raises(
        ollama.ResponseError,
        "num_ctx",
        lambda: chat(messages=server.messages, **common(server, num_ctx=10**6)),
    )
    wrong = {**common(server), "model": "llama9"}
    raises(ollama.ResponseError, "llama9", lambda: chat(messages=server.messages, **wrong))


if __name__ == "__main__":
    main(
        "ollama", models, chats, prompts, log_probabilities, schemas, tools, thinking, embeddings, errors,
    )  # fmt: skip
