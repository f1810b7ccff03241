"""The litellm package, which speaks to the server as to OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import os
from typing import Any

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "none"}

import litellm
from checks import Server, equal, main, raises


def common(server: Server, provider: str = "openai", path: str = "/v1") -> dict[str, Any]:
    return {
        "model": f"{provider}/{server.model}",
        "api_base": server.url + path,
        "api_key": "none",
        "max_tokens": server.max_tokens,
        "seed": server.seed,
        "num_retries": 0,
    }


def chats(server: Server) -> None:
    made = litellm.completion(messages=server.messages, min_p=0.05, **common(server))
    assert made.choices[0].message.content
    made = litellm.completion(messages=server.messages, **common(server))
    equal(made.choices[0].message.content, server.chat)
    stream = litellm.completion(messages=server.messages, stream=True, **common(server))
    equal("".join(chunk.choices[0].delta.content or "" for chunk in stream), server.chat)


def completions(server: Server) -> None:
    asks = common(server, "text-completion-openai")
    made = litellm.text_completion(prompt=server.prompt, **asks)
    equal(made.choices[0].text, server.completion)
    made = litellm.text_completion(prompt=server.prompt, echo=True, logprobs=1, **asks)
    equal(made.choices[0].text, server.prompt + server.completion)


def embeddings(server: Server) -> None:
    made = litellm.embedding(
        model=f"openai/{server.model}",
        input=[server.prompt],
        api_base=f"{server.url}/v1",
        api_key="none",
        encoding_format="float",
    )
    equal(made.data[0]["embedding"], server.embedding)


def responses(server: Server) -> None:
    made = litellm.responses(
        model=f"openai/{server.model}",
        input=server.messages,
        api_base=f"{server.url}/v1",
        api_key="none",
        max_output_tokens=server.max_tokens,
        extra_body={"seed": server.seed},
    )
    equal(made.output[0].content[0].text, server.chat)


def messages_of_anthropic(server: Server) -> None:
    asks = common(server, "anthropic", "")
    made = litellm.completion(messages=server.messages, allowed_openai_params=["seed"], **asks)
    equal(made.choices[0].message.content, server.chat)


def chats_of_ollama(server: Server) -> None:
    asks = common(server, "ollama_chat", "")
    made = litellm.completion(messages=server.messages, **asks)
    equal(made.choices[0].message.content, server.chat)


def errors(server: Server) -> None:
    asks = {**common(server), "temprature": 1}
    raises(
        litellm.BadRequestError,
        "did you mean temperature",
        lambda: litellm.completion(messages=server.messages, **asks),
    )


if __name__ == "__main__":
    main(
        "litellm",
        chats,
        completions,
        embeddings,
        responses,
        messages_of_anthropic,
        chats_of_ollama,
        errors,
    )
