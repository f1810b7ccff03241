from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aleator import ContextFull, Conversation, FileFormatError, LanguageModel, ParameterError, load
from aleator.generate import tiered_prefixes
from tests.chat import templates

OPTIONS: dict[str, Any] = {"max_tokens": 20, "seed": 3, "temperature": 0.9}


def roles(talk: Conversation) -> list[str]:
    return [message["role"] for message in talk.messages]


def test_each_turn_computes_only_what_is_new(model: LanguageModel) -> None:
    talk = Conversation(model, "Enter ROMEO.", **OPTIONS)
    first = talk.say("Good morrow.")
    assert first.text
    second = talk.say("Who art thou?")
    assert second.text
    asked, reused = second.generation.request.tokens, second.stats.reused_tokens
    assert reused >= len(first.generation.request.tokens)
    assert second.stats.prompt_tokens == len(asked) - reused
    assert roles(talk) == ["system", "user", "assistant", "user", "assistant"]
    assert talk.messages[2]["content"] == first.text


def test_answers_repeat_and_are_those_of_chat(model: LanguageModel) -> None:
    talk, again = Conversation(model, **OPTIONS), Conversation(model, **OPTIONS)
    for i, text in enumerate(("Good morrow.", "Who art thou?", "Speak!")):
        answer = talk.say(text)
        assert answer.seed == 3 + i
        assert again.say(text).text == answer.text
        alone = model.generate(
            list(answer.generation.request.tokens),
            stop=model.vocab.chat_stop,
            **OPTIONS | {"seed": 3 + i},
        )
        assert alone.text == answer.text
    talk.reset()
    assert talk.messages == []
    assert talk.say("Good morrow.").text == again.messages[1]["content"]


def test_another_answer(model: LanguageModel) -> None:
    talk = Conversation(model, **OPTIONS)
    with pytest.raises(ParameterError, match="nothing was said yet"):
        talk.regenerate()
    first = talk.say("Speak.").text
    second = talk.regenerate()
    assert second.text != first
    assert second.stats.prompt_tokens == 1
    assert talk.messages[1]["content"] == second.text
    assert roles(talk) == ["user", "assistant"]


def test_branches_do_not_see_one_another(model: LanguageModel) -> None:
    talk = Conversation(model, **OPTIONS)
    talk.say("Good morrow.").text  # noqa: B018
    branch = talk.branch()
    left, right = talk.say("Live."), branch.say("Die.")
    assert left.text != right.text
    assert right.stats.reused_tokens >= len(talk.messages[0]["content"]) // 8
    assert talk.messages[:2] == branch.messages[:2]
    assert talk.messages[2]["content"] == "Live."
    early = talk.branch(1)
    assert roles(early) == ["user"]
    assert early.regenerate().text
    for at in (-1, 9, "1"):
        with pytest.raises(ParameterError, match="give 0 to 4"):
            talk.branch(at)  # type: ignore[arg-type]


def test_a_turn_is_edited(model: LanguageModel) -> None:
    talk = Conversation(model, "Enter ROMEO.", **OPTIONS)
    talk.say("Good morrow.").text  # noqa: B018
    talk.say("Who art thou?").text  # noqa: B018
    answer = talk.edit(1, "Good night.")
    assert answer is not None
    assert answer.text
    assert roles(talk) == ["system", "user", "assistant"]
    assert talk.messages[1]["content"] == "Good night."
    assert talk.edit(-1, "I am Juliet.") is None
    assert talk.messages[-1] == {"role": "assistant", "content": "I am Juliet."}
    assert talk.say("And?").text
    assert talk.messages[2]["content"] == "I am Juliet."
    with pytest.raises(ParameterError, match="there are 5 messages, 0 to 4"):
        talk.edit(5, "a")
    with pytest.raises(ParameterError, match="nothing was said yet"):
        Conversation(model).edit(0, "What?")


def test_an_answer_that_was_cut_short_stays(model: LanguageModel) -> None:
    talk = Conversation(model, **OPTIONS)
    answer = talk.say("Good morrow.")
    piece = next(answer)
    assert talk.say("Go on.").text
    assert answer.stop_reason == "interrupted"
    assert talk.messages[1]["content"].startswith(piece)


def test_the_system_message_and_options_change(model: LanguageModel) -> None:
    talk = Conversation(model, **OPTIONS)
    talk.say("Good morrow.").text  # noqa: B018
    assert talk.system is None
    talk.system = "Enter TYBALT."
    assert roles(talk) == ["system", "user", "assistant"]
    talk.system = "Enter PARIS."
    assert talk.system == talk.messages[0]["content"] == "Enter PARIS."
    talk.system = None
    assert roles(talk) == ["user", "assistant"]
    talk.set_options(max_tokens=2, temperature=None)
    assert talk.options == {"max_tokens": 2}
    assert len(talk.say("Speak.").tokens) == 2
    for wrong in ({"max_tokens": "a"}, {"temperatur": 1}):
        with pytest.raises(ParameterError):
            talk.set_options(**wrong)
    assert talk.options == {"max_tokens": 2}
    talk.set_options(seed=9)
    assert talk.say("Speak.").seed == 9


def test_a_file_keeps_the_conversation(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    talk = Conversation(model, "Enter ROMEO.", **OPTIONS)
    talk.say("Good morrow.").text  # noqa: B018
    talk.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(ParameterError, match=r"^path=.* is no file, and is not replaced"):
        talk.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    options = {name: value for name, value in OPTIONS.items() if name != "seed"}
    other = Conversation.load(model, path, **options)
    assert other.messages == talk.messages
    answer = other.say("Who art thou?")
    assert answer.text == talk.say("Who art thou?").text
    assert answer.seed == 4


def test_damaged_files_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    talk = Conversation(model, **OPTIONS)
    talk.say("Good morrow.").text  # noqa: B018
    whole = talk.as_json()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"format": "x"}, "format"),
        ({"more": 1}, "more"),
        ({"seed": -1}, "seed"),
        ({"answers": True}, "answers"),
        ({"tokens": [99_999_999]}, "tokens"),
        ({"messages": [{"role": "x"}]}, "messages"),
        ({"messages": None}, "messages"),
        ({"tools": 3}, "tools"),
    ]
    for change, field in changes:
        path.write_text(json.dumps(whole | change))
        with pytest.raises(FileFormatError) as caught:
            Conversation.load(model, path)
        assert caught.value.field == field
    path.write_text("{")
    with pytest.raises(FileFormatError, match="not JSON"):
        Conversation.load(model, path)


def test_results_of_tools(model: LanguageModel) -> None:
    about: Any = {"tools": [templates.CLOCK], "chat_template": templates.HERMES}
    talk = Conversation(model, tool_choice="clock", **about, **OPTIONS | {"max_tokens": 60})
    call = talk.say("What time is it?").message.tool_calls[0]
    for wrong in ({}, {"x": "1"}, {call.id: "1", "x": "1"}):
        with pytest.raises(ParameterError, match="give one for each of the calls"):
            talk.tool_results(wrong)
    # The forced call was made: the answer to its results need not call.
    assert not talk.tool_results({call.id: "noon"}).message.tool_calls
    assert roles(talk) == ["user", "assistant", "tool", "assistant"]
    assert talk.messages[2] == {"role": "tool", "tool_call_id": call.id, "content": "noon"}
    assert talk.say("And now?").message.tool_calls


def test_one_answer_may_be_forced_to_call(model: LanguageModel) -> None:
    about: Any = {"tools": [templates.CLOCK], "chat_template": templates.HERMES}
    talk = Conversation(model, **about, **OPTIONS | {"max_tokens": 60})
    assert not talk.say("Good morrow.").message.tool_calls
    before = talk.messages
    for ask in (
        lambda: talk.say("What time is it?", tool_choice="sundial"),
        lambda: Conversation(model, tool_choice="sundial", **about),
    ):
        with pytest.raises(ParameterError, match=r"tool_choice.*sundial.*'clock'"):
            ask()
    assert talk.messages == before
    [call] = talk.say("What time is it?", tool_choice="required").message.tool_calls
    assert talk.regenerate().message.tool_calls[0].name == "clock"  # of the answer before
    assert not talk.regenerate(tool_choice="none").message.tool_calls
    [call] = talk.regenerate(tool_choice="clock").message.tool_calls
    assert talk.tool_results({call.id: "noon"}, tool_choice="required").message.tool_calls
    edited = talk.edit(2, "The hour?", tool_choice="required")
    assert edited is not None
    assert edited.message.tool_calls


def test_allowed_tools_stay_the_only_ones_after_a_forced_call(model: LanguageModel) -> None:
    listed = [{"type": "function", "function": {"name": "clock"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": listed}}
    tools = [templates.CLOCK, templates.WEATHER]
    about: Any = {"tools": tools, "chat_template": templates.HERMES, "tool_choice": choice}
    talk = Conversation(model, **about, **OPTIONS | {"max_tokens": 60})
    [call] = talk.say("What time is it?").message.tool_calls
    answer = talk.tool_results({call.id: "noon"})
    assert not answer.message.tool_calls
    prompt = model.tokenizer.decode(answer.generation.request.tokens)
    assert ("clock" in prompt, "get_weather" in prompt) == (True, False)


def test_results_of_strict_tools_are_answered_without_a_call(model: LanguageModel) -> None:
    clock = {**templates.CLOCK, "function": {**templates.CLOCK["function"], "strict": True}}
    about: Any = {"tools": [clock], "chat_template": templates.HERMES}
    talk = Conversation(model, tool_choice="required", **about, **OPTIONS | {"max_tokens": 60})
    call = talk.say("What time is it?").message.tool_calls[0]
    assert not talk.tool_results({call.id: "noon"}).message.tool_calls


def test_a_full_context() -> None:
    small = load(n_ctx=48, n_threads=1)
    talk = Conversation(small, max_tokens=12, seed=1)
    talk.say("Good morrow, good sir.").text  # noqa: B018
    messages = talk.messages
    with pytest.raises(ContextFull, match="48 positions"):
        talk.say("A long speech, much longer than there is room for. " * 3)
    assert talk.messages == messages
    forgetful = Conversation(small, "Hm.", max_tokens=12, seed=1, context_shift=True)
    for _ in range(8):
        assert forgetful.say("Good morrow, good sir.").text
    assert roles(forgetful)[:3] == ["system", "user", "assistant"]
    assert len(forgetful.messages) < 10
    with pytest.raises(ContextFull):
        forgetful.say("word " * 60)


def test_a_conversation_goes_on_from_the_disks_keys_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However fast a busy machine computes, what the disk has is read.
    monkeypatch.setattr(tiered_prefixes.TieredPrefixes, "computed", lambda *_: None)
    below: Any = {"cache_disk": 2**30, "cache_dir": str(tmp_path / "cache"), "n_threads": 1}
    system = "Enter ROMEO and JULIET. " + "They speak of love, and of the night. " * 20
    first = load(**below)
    talk = Conversation(first, system, **OPTIONS)
    assert talk.say("Good morrow.").text
    talk.save(tmp_path / "talk.json")
    assert first.prompt_tiers is not None
    first.prompt_tiers.close()  # as the end of a process does

    answers = []
    for options in ({"n_threads": 1}, below):
        after = load(**options)
        again = Conversation.load(after, tmp_path / "talk.json", **OPTIONS)
        answers.append(again.say("Stay."))
        assert answers[-1].text == answers[0].text
    assert answers[0].stats.reused_tokens == 0
    assert answers[1].stats.reused_tokens >= 128
