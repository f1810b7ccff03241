"""The anthropic package: messages, streams, tools, thinking, counted tokens."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic
from checks import Server, equal, main, raises


def client(server: Server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def common(server: Server, **more: Any) -> dict[str, Any]:
    return {
        "model": server.model,
        "messages": server.messages,
        "max_tokens": server.max_tokens,
        "extra_body": {"seed": server.seed},
        **more,
    }


def tool(server: Server) -> dict[str, Any]:
    return {"name": "weather", "description": "The weather.", "input_schema": server.schema}


def messages(server: Server) -> None:
    made = client(server).messages.create(**common(server))
    equal([block.text for block in made.content], [server.chat])
    equal(made.stop_reason, "max_tokens")
    equal(made.usage.output_tokens, server.max_tokens)


def streams(server: Server) -> None:
    with client(server).messages.stream(**common(server)) as stream:
        equal("".join(stream.text_stream), server.chat)
        made = stream.get_final_message()
    equal(made.stop_reason, "max_tokens")
    equal(made.usage.output_tokens, server.max_tokens)


def stop_sequences(server: Server) -> None:
    word = server.chat.split()[-1]
    made = client(server).messages.create(**common(server, stop_sequences=[word]))
    equal((made.stop_reason, made.stop_sequence), ("stop_sequence", word))


def counted_tokens(server: Server) -> None:
    asks: dict[str, Any] = {
        "model": server.model,
        "messages": server.messages,
        "system": "Be brief.",
    }
    counted = client(server).messages.count_tokens(**asks).input_tokens
    used = client(server).messages.create(**common(server, system="Be brief.")).usage
    equal(counted, used.input_tokens + (used.cache_read_input_tokens or 0))


def tools(server: Server) -> str | None:
    if not server.tools:
        return "the template shows no tools"
    asks = common(server, tools=[tool(server)], tool_choice={"type": "any"}, max_tokens=200)
    made = client(server).messages.create(**asks)
    equal(made.stop_reason, "tool_use")
    (call,) = [block for block in made.content if block.type == "tool_use"]
    assert call.input["city"] in ("Verona", "Mantua")
    with client(server).messages.stream(**asks) as stream:
        equal(stream.get_final_message().content[-1].input, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It rains."}
    talk = [
        *server.messages,
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    client(server).messages.create(**common(server, messages=talk))
    return None


def thinking(server: Server) -> str | None:
    if not server.thinks:
        return "the template does not let it reason"
    made = client(server).messages.create(
        **common(server, thinking={"type": "enabled", "budget_tokens": 4})
    )
    equal([block.type for block in made.content], ["thinking", "text"])
    talk = [
        *server.messages,
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": "Go on."},
    ]
    client(server).messages.create(**common(server, messages=talk))
    return None


def schemas(server: Server) -> None:
    form = {"type": "json_schema", "schema": server.schema}
    made = client(server).messages.create(
        **common(server, output_config={"format": form}, max_tokens=200)
    )
    assert any(city in made.content[-1].text for city in ("Verona", "Mantua"))


def errors(server: Server) -> None:
    create = client(server).messages.create
    wrong = {"seed": 1, "temprature": 1}
    raises(
        anthropic.BadRequestError,
        "did you mean temperature",
        lambda: create(**common(server, extra_body=wrong)),
    )
    raises(anthropic.NotFoundError, "claude-9", lambda: create(**common(server, model="claude-9")))
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    picture = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    raises(
        anthropic.BadRequestError, "pictures", lambda: create(**common(server, messages=picture))
    )


if __name__ == "__main__":
    main(
        "anthropic", messages, streams, stop_sequences, counted_tokens, tools, thinking, schemas, errors,
    )  # fmt: skip
