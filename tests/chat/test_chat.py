"""``LanguageModel.chat`` with the bundled model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from aleator import Conversation, LanguageModel, Message, ParameterError
from aleator.cli.batch_bodies import chat_response
from tests.chat import templates

HI = [{"role": "user", "content": "Good morrow."}]
CITY = templates.WEATHER["function"]["parameters"]


def test_pieces_join_to_the_answer(model: LanguageModel) -> None:
    asked: Any = {"max_tokens": 30, "seed": 3}
    answer = model.chat(HI, **asked)
    assert isinstance(answer, Iterator)
    pieces = list(answer)
    assert len(pieces) > 3
    assert answer.message == Message("".join(pieces)) == Message(answer.text)
    assert [d.text for d in answer.deltas()] == pieces
    prompt = model.chat_format().tokens(model.chat_format().rendered(HI))
    assert list(answer.generation.request.tokens) == prompt
    plain = model.generate(prompt, stop=model.vocab.chat_stop, **asked)
    assert answer.text == plain.text
    assert answer.tokens == plain.tokens
    assert (answer.done, answer.seed) == (True, 3)
    assert answer.stats.sampled_tokens == len(answer.tokens)
    assert repr(answer).startswith(f"<ChatGeneration: {answer.text[:20]!r}"[:-1])


def test_waiting_for_an_answer_leaves_its_pieces(model: LanguageModel) -> None:
    answer = model.chat(HI, max_tokens=12, seed=3)
    assert answer.wait()
    assert answer.done
    assert list(answer) == list(model.chat(HI, max_tokens=12, seed=3))


def test_pieces_in_an_event_loop(model: LanguageModel) -> None:
    async def read() -> list[str]:
        return [piece async for piece in model.chat(HI, max_tokens=12, seed=3)]

    assert asyncio.run(read()) == list(model.chat(HI, max_tokens=12, seed=3))


def test_stop_reasons(model: LanguageModel) -> None:
    assert model.chat(HI, seed=1, max_tokens=2).stop_reason == "length"
    answer = model.chat(HI, seed=1, max_tokens=40)
    word = answer.text.split()[0]
    stopped = model.chat(HI, seed=1, max_tokens=40, stop=word)
    assert (stopped.stop_reason, stopped.generation.stop_reason) == ("stop", "stop")
    answer = model.chat(HI, seed=1, max_tokens=40)
    next(answer)
    answer.cancel()
    assert answer.stop_reason == "interrupted"
    assert answer.so_far == answer.message


def test_json(model: LanguageModel) -> None:
    answer = model.chat(HI, json_schema=CITY, max_tokens=60, seed=2)
    jsonschema.validate(json.loads(answer.text), CITY)
    assert answer.stop_reason == "stop"


@pytest.mark.parametrize("name", ["hermes", "generic", "llama3"])
def test_a_forced_call(model: LanguageModel, name: str) -> None:
    answer = model.chat(
        HI,
        tools=[templates.WEATHER],
        tool_choice="required",
        chat_template=templates.FAMILIES[name],
        max_tokens=80,
        seed=4,
    )
    assert list(answer) == []
    (call,) = answer.message.tool_calls
    jsonschema.validate(json.loads(call.arguments), CITY)
    assert answer.stop_reason == "tool_calls"
    kinds = [delta.kind for delta in answer.deltas()]
    assert (kinds[0], kinds[-1]) == ("call", "call_end")
    assert set(kinds[1:-1]) == {"arguments"}
    # The result goes back, and the model goes on.
    more: list[Any] = [
        *HI,
        answer.message,
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    assert model.chat(more, chat_template=templates.FAMILIES[name], max_tokens=5, seed=1).text


def test_a_call_that_is_cut_off(model: LanguageModel) -> None:
    format_: Any = {"chat_template": templates.FAMILIES["hermes"]}
    asked: Any = {"tools": [templates.WEATHER], "tool_choice": "required", "seed": 4, **format_}
    whole = model.chat(HI, max_tokens=80, **asked)
    (call,) = whole.message.tool_calls
    cut = model.chat(HI, max_tokens=40, complete_grammar=False, **asked)
    (begun,) = cut.message.tool_calls
    assert (cut.stop_reason, begun.complete) == ("length", False)
    # A response has what came of it; what is sent back does not.
    choice = chat_response(cut, "a", "m")["choices"][0]
    assert choice["message"]["tool_calls"] == [begun.as_json()]
    assert choice["message"]["content"] is None
    assert call.arguments.startswith(begun.arguments)
    assert model.chat([*HI, cut.message, *HI], max_tokens=3, seed=1, **format_).tokens


def test_options_are_those_of_generate(model: LanguageModel) -> None:
    untyped: Any = model
    with pytest.raises(ParameterError, match="there is no option 'max_token'"):
        untyped.chat(HI, max_token=3)
    with pytest.raises(ParameterError, match="prompt is a list of messages: use chat"):
        untyped.generate(HI)
    answer = model.chat(HI, max_tokens=3, logprobs=2, seed=1)
    assert answer.generation.logprobs is not None
    assert len(answer.generation.logprobs) == len(answer.tokens)


def test_formats_are_made_once(model: LanguageModel) -> None:
    assert model.chat_format() is model.chat_format(model.vocab.chat_template)
    assert model.chat_format(templates.GENERIC) is model.chat_format(templates.GENERIC)


def test_an_engine_gives_the_same_answer(model: LanguageModel) -> None:
    alone = model.chat(HI, max_tokens=12, seed=3)
    with model.engine() as engine:
        other = model.chat(HI, max_tokens=12, seed=3, engine=engine)
        assert other.text == alone.text
        with pytest.raises(ParameterError, match="an engine does not report"):
            model.chat(HI, progress=print, engine=engine)
        talk = Conversation(model, max_tokens=8, seed=3, engine=engine)
        assert talk.say("Good morrow.").text
        talk.set_options(max_tokens=3)
        assert len(talk.say("And?").tokens) == 3
