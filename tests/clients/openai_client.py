"""The openai package: completions, chats, Responses, embeddings."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
from checks import Server, equal, main, raises
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    city: Literal["Verona", "Mantua"]


def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def common(server: Server) -> dict[str, Any]:
    return {"model": server.model, "seed": server.seed, "max_tokens": server.max_tokens}


def response_of(server: Server, **more: Any) -> dict[str, Any]:
    return {
        "model": server.model,
        "input": server.messages,
        "max_output_tokens": server.max_tokens,
        "extra_body": {"seed": server.seed},
        **more,
    }


def tool(server: Server) -> dict[str, Any]:
    return {"name": "weather", "description": "The weather.", "parameters": server.schema}


def models(server: Server) -> None:
    (model,) = client(server).models.list().data
    equal(client(server).models.retrieve(server.model).id, server.model)
    equal(model.object, "model")


def completions(server: Server) -> None:
    made = client(server).completions.create(prompt=server.prompt, logprobs=2, **common(server))
    equal(made.choices[0].text, server.completion)
    logprobs = made.choices[0].logprobs
    assert logprobs is not None
    equal(len(logprobs.tokens or []), server.max_tokens)
    stream = client(server).completions.create(prompt=server.prompt, stream=True, **common(server))
    equal("".join(chunk.choices[0].text for chunk in stream), server.completion)


def echo(server: Server) -> None:
    made = client(server).completions.create(
        prompt=[server.prompt] * 2, echo=True, logprobs=0, **common(server)
    )
    equal([choice.text for choice in made.choices], [server.prompt + server.completion] * 2)


def chats(server: Server) -> None:
    made = client(server).chat.completions.create(messages=server.messages, **common(server))
    equal(made.choices[0].message.content, server.chat)
    equal(made.model, server.model)


def streamed_chats(server: Server) -> None:
    stream = client(server).chat.completions.create(
        messages=server.messages,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
        **common(server),
    )
    *chunks, last = stream
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), server.chat)
    equal(last.usage.completion_tokens, server.max_tokens)


def chat_helpers(server: Server) -> None:
    asks = {**common(server), "max_tokens": 200, "messages": server.messages}
    made = client(server).chat.completions.parse(response_format=Place, **asks)
    assert isinstance(made.choices[0].message.parsed, Place)
    word = server.chat.split()[-1]  # the helper wants texts that were not cut off
    before = server.chat[: server.chat.index(word)]
    asks = {**common(server), "messages": server.messages, "stop": word}
    with client(server).chat.completions.stream(**asks) as stream:
        equal(stream.get_final_completion().choices[0].message.content, before)


def chat_tools(server: Server) -> str | None:
    if not server.tools:
        return "the template shows no tools"
    tools = [{"type": "function", "function": tool(server)}]
    asks = {**common(server), "max_tokens": 200, "tools": tools, "messages": server.messages}
    made = client(server).chat.completions.create(tool_choice="required", **asks)
    message = made.choices[0].message
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Verona", "Mantua")
    equal(made.choices[0].finish_reason, "tool_calls")
    result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
    talk = [*server.messages, message.model_dump(exclude_none=True), result]
    client(server).chat.completions.create(messages=talk, **common(server))
    return None


def example_of_its_readme(server: Server) -> None:
    """Word for word, but for the client's and the model's names."""
    made = client(server).responses.create(
        model=server.model,
        instructions="You are a coding assistant that talks like a pirate.",
        input="How do I check if a Python object is an instance of a class?",
    )
    assert made.output_text
    completion = client(server).chat.completions.create(
        model=server.model,
        messages=[
            {"role": "developer", "content": "Talk like a pirate."},
            {
                "role": "user",
                "content": "How do I check if a Python object is an instance of a class?",
            },
        ],
    )
    assert completion.choices[0].message.content


def responses(server: Server) -> None:
    made = client(server).responses.create(**response_of(server))
    equal(made.output_text, server.chat)
    equal(made.status, "incomplete")
    equal(made.usage.output_tokens, server.max_tokens)
    talk = [*server.messages, *made.output, {"role": "user", "content": "Go on."}]
    client(server).responses.create(**response_of(server, input=talk, instructions="Be brief."))


def streamed_responses(server: Server) -> None:
    events = list(client(server).responses.create(**response_of(server), stream=True))
    equal([event.sequence_number for event in events], list(range(len(events))))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    equal(text, server.chat)
    with client(server).responses.stream(**response_of(server)) as stream:
        events = list(stream)
    equal((events[0].type, events[-1].type), ("response.created", "response.incomplete"))
    equal(events[-1].response.output_text, server.chat)


def response_helpers(server: Server) -> None:
    asks = response_of(server, max_output_tokens=200)
    made = client(server).responses.parse(text_format=Place, **asks)
    assert isinstance(made.output_parsed, Place)


def response_tools(server: Server) -> str | None:
    if not server.tools:
        return "the template shows no tools"
    tools = [{"type": "function", "strict": True, **tool(server)}]
    asks = response_of(server, tools=tools, tool_choice="required", max_output_tokens=200)
    made = client(server).responses.create(**asks)
    (call,) = [item for item in made.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Verona", "Mantua")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    client(server).responses.create(
        **response_of(server, input=[*server.messages, *made.output, result])
    )
    with client(server).responses.stream(**asks) as stream:
        final = stream.get_final_response()
    equal([item.type for item in final.output], [item.type for item in made.output])
    return None


def embeddings(server: Server) -> None:
    packed = client(server).embeddings.create(model=server.model, input=[server.prompt])
    equal([round(x, 6) for x in packed.data[0].embedding], [round(x, 6) for x in server.embedding])
    plain = client(server).embeddings.create(
        model=server.model, input=server.prompt, encoding_format="float"
    )
    equal(plain.data[0].embedding, server.embedding)


def errors(server: Server) -> None:
    asks: dict[str, Any] = {**common(server), "messages": server.messages}
    create = client(server).chat.completions.create
    raises(
        openai.BadRequestError,
        "did you mean temperature",
        lambda: create(**asks, extra_body={"temprature": 1}),
    )
    raises(openai.NotFoundError, "gpt-9", lambda: create(**{**asks, "model": "gpt-9"}))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    messages = [{"role": "user", "content": [picture]}]
    raises(openai.BadRequestError, "pictures", lambda: create(**{**asks, "messages": messages}))
    respond = client(server).responses.create
    raises(
        openai.BadRequestError,
        "not stored",
        lambda: respond(**response_of(server, previous_response_id="resp_1")),
    )


def many_at_once(server: Server) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as asks:
            made = await asyncio.gather(
                *(
                    asks.chat.completions.create(messages=server.messages, **common(server))
                    for _ in range(8)
                )
            )
        return [each.choices[0].message.content or "" for each in made]

    equal(asyncio.run(ask()), [server.chat] * 8)


if __name__ == "__main__":
    main(
        "openai", example_of_its_readme, models, completions, echo, chats, streamed_chats, chat_helpers,
        chat_tools, responses, streamed_responses, response_helpers, response_tools, embeddings, errors,
        many_at_once,
    )  # fmt: skip
