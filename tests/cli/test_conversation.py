from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aleator import ContextFull, FileFormatError, LanguageModel, ParameterError, load
from aleator.cli import chat
from aleator.cli.conversation import Conversation, shared
from aleator.generate.options import GenerateOptions
from aleator.generate.session_file import SessionFile
from aleator.text import ChatTemplate
from tests.cli.conftest import Command

GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": 1}


def conversation(model: LanguageModel, sampling: dict[str, Any], **options: Any) -> Conversation:
    assert model.vocab.chat_template is not None
    template = ChatTemplate(model.vocab.chat_template, model.vocab)
    params = model.sampling_params(**sampling)
    own = {name: options.pop(name) for name in ("system", "progress") if name in options}
    asked = GenerateOptions(**{"max_tokens": 30, **options})
    return Conversation(model, template, params, options=asked, **own)


def test_each_turn_reads_only_what_is_new(model: LanguageModel) -> None:
    talk = conversation(model, {"temperature": 0.8, "seed": 3})
    first = talk.ask("Good morrow.")
    assert first.text
    assert first.stats.reused_tokens == 0
    second = talk.ask("Who art thou?")
    assert second.text
    # All of the first turn is in the cache, its answer too; what was drawn last was not decoded yet.
    assert second.stats.reused_tokens >= len(first.request.tokens)
    held = [*first.request.tokens, *first.tokens]
    assert second.stats.reused_tokens == min(
        len(held) - 1, shared(held, list(second.request.tokens))
    )
    new = len(second.request.tokens) - second.stats.reused_tokens
    assert second.stats.prompt_tokens == new < len(second.request.tokens) / 2


def test_answers_are_those_of_a_full_prefill(model: LanguageModel) -> None:
    talk = conversation(model, GREEDY)
    for message in ("Good morrow.", "Who art thou?", "I am Romeo."):
        answer = talk.ask(message)
        fresh = model.generate(
            list(answer.request.tokens), max_tokens=30, stop=model.vocab.chat_stop, **GREEDY
        )
        assert answer.text == fresh.text
    assert answer.stats.reused_tokens > 0


def test_tokens_say_what_the_template_says(model: LanguageModel) -> None:
    talk = conversation(model, {"temperature": 1.2, "seed": 5}, system="Verona.")
    for message in ("Good morrow.", "Speak!", "Who?"):
        answer = talk.ask(message)
        text = model.tokenizer.decode(list(answer.request.tokens))
        assert model.vocab.chat_template is not None
        template = ChatTemplate(model.vocab.chat_template, model.vocab)
        rendered = template.render(talk.messages, add_generation_prompt=True)
        assert text.removeprefix("<|endoftext|>") == rendered.removeprefix("<|endoftext|>")
        assert list(answer.request.tokens)[:2].count(0) == 1
        assert answer.text
    assert [m["role"] for m in talk.messages] == ["system", *["user", "assistant"] * 2, "user"]


def test_randomness_goes_on_and_repeats(model: LanguageModel) -> None:
    sampling = {"temperature": 0.9, "seed": 3}
    talk = conversation(model, sampling)
    answers = [talk.ask("Speak.").text]
    again = talk.again()
    assert again is not None
    answers.append(again.text)
    assert again.stats.prompt_tokens == 1
    answers.append(talk.ask("Speak.").text)
    talk.reset()
    assert talk.ask("Speak.").text == answers[0]
    other = conversation(model, sampling)
    assert other.ask("Speak.").text == answers[0]
    assert len(set(answers)) == 3


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_an_answer_that_was_discarded_is_forgotten(model: LanguageModel, numerics: str) -> None:
    sampling = {"temperature": 0.9, "seed": 3, "repetition_penalty": 1.1, "numerics": numerics}
    talk = conversation(model, sampling)
    answers = [talk.ask("Speak.").text]
    for _ in range(2):
        again = talk.again()
        assert again is not None
        assert talk.chain.history == list(again.request.tokens)
        answers.append(again.text)
        assert talk.chain.history == [*again.request.tokens, *again.tokens]
    assert len(set(answers)) == 3
    talk.reset()
    assert talk.ask("Speak.").text == answers[0]


def test_nothing_to_answer_again(model: LanguageModel) -> None:
    assert conversation(model, GREEDY).again() is None


def test_an_answer_that_was_cut_short_stays(model: LanguageModel) -> None:
    talk = conversation(model, GREEDY)
    answer = talk.ask("Good morrow.")
    piece = next(answer)
    answer.cancel()
    assert answer.stop_reason == "interrupted"
    assert talk.ask("Go on.").text
    assert talk.messages[1]["content"].startswith(piece)


def test_the_chain_has_seen_the_conversation(model: LanguageModel) -> None:
    talk = conversation(model, {"temperature": 0.8, "seed": 3})
    talk.ask("Good morrow.").text  # noqa: B018
    second = talk.ask("Who art thou?")
    tokens = list(second.request.tokens)
    assert talk.chain.history == tokens
    assert talk.chain.position > 0
    assert second.text
    assert talk.chain.history[: len(tokens)] == tokens


def test_a_full_context(model: LanguageModel) -> None:
    small = load(n_ctx=48, n_threads=1)
    talk = conversation(small, GREEDY, max_tokens=12)
    talk.ask("Good morrow, good sir.").text  # noqa: B018
    messages = list(talk.messages)
    with pytest.raises(ContextFull, match="and the context 48 positions: /reset"):
        talk.ask("A long speech, much longer than there is room for. " * 3)
    assert talk.messages == messages
    forgetful = conversation(small, GREEDY, max_tokens=12, context_shift=True, system="Hm.")
    for _ in range(10):
        assert forgetful.ask("Good morrow, good sir.").text
    assert forgetful.messages[0]["role"] == "system"
    assert len(forgetful.messages) < 10
    with pytest.raises(ContextFull):
        forgetful.ask("word " * 60)


def test_shared() -> None:
    assert shared([1, 2, 3], [1, 2, 4, 5]) == 2
    assert shared([1, 2], [1, 2, 3]) == 2
    assert shared([], [1]) == 0


CHAT = ("chat", "-t", "1", "--seed", "3", "-n", "30")


def test_chat(aleator: Command, model: LanguageModel) -> None:
    script = b"Good morrow.\n\n/regen\n/what\n/reset\nGood morrow.\n/exit\nnever read\n"
    result = aleator(*CHAT, stdin=script)
    assert result.code == 0
    talk = conversation(model, {"seed": 3})
    first = talk.ask("Good morrow.").text
    again = talk.again()
    assert again is not None
    assert result.out == f"{first}\n{again.text}\n{first}\n"
    counts = re.findall(r"\[(\d+) tokens read, (\d+) remembered", result.err)
    assert len(counts) == 3
    assert counts[1][0] == "1"
    assert "/what is not a command" in result.err
    assert "chain: logits ->" in result.err


def test_chat_with_a_first_message_and_a_system_message(aleator: Command) -> None:
    result = aleator(*CHAT, "-p", "Good morrow.", "--system", "Enter ROMEO.", stdin=b"And?\n")
    assert result.code == 0
    assert len(re.findall("remembered", result.err)) == 2


def test_chat_stop_strings_and_length(aleator: Command) -> None:
    whole = aleator(*CHAT, stdin=b"Speak.\n").out
    cut = aleator(*CHAT, "--stop", whole[6:8], stdin=b"Speak.\n")
    assert cut.out.removesuffix("\n") == whole[: whole.index(whole[6:8])].removesuffix("\n")
    assert "cut off" in aleator(*CHAT[:-1], "2", stdin=b"Speak.\n").err


def test_chat_template_file(aleator: Command, tmp_path: Any) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[-1].content }}")
    result = aleator(*CHAT, "--chat-template-file", str(path), stdin=b"ROMEO:\n")
    assert result.code == 0
    # BOS and the text itself.
    assert re.search(r"\[3 tokens read", result.err)
    path.write_text("{% if %}")
    assert aleator(*CHAT, "--chat-template-file", str(path), stdin=b"ROMEO:\n").code == 1


def test_chat_refuses_bad_bytes_and_a_full_context(aleator: Command) -> None:
    result = aleator(*CHAT, stdin=b"Hello\xff\n")
    assert result.code == 2
    assert "byte 0xff at offset 5" in result.err
    result = aleator(*CHAT, "-c", "8", stdin=b"Good morrow to you all, good people.\n")
    assert result.code == 4
    assert "--context-shift" in result.err


def test_ctrl_c_and_ctrl_d_at_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: list[BaseException] = [KeyboardInterrupt(), EOFError()]

    def press(prompt: str) -> str:
        raise keys.pop(0)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", press)
    assert chat.ask() == ""
    assert "/exit or Ctrl-D leaves" in capsys.readouterr().err
    assert chat.ask() is None


def test_with_llama_cpps_numbers_answers_differ_each_time(model: LanguageModel) -> None:
    talk = conversation(model, {"temperature": 0.8, "seed": 3, "numerics": "llama.cpp"})
    first = talk.ask("Good morrow.").text
    again = talk.again()
    assert again is not None
    assert again.text != first
    assert talk.ask("Who art thou?").text
    # The same conversation is the same again.
    talk = conversation(model, {"temperature": 0.8, "seed": 3, "numerics": "llama.cpp"})
    assert talk.ask("Good morrow.").text == first


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_a_conversation_goes_on_from_a_file(
    model: LanguageModel, tmp_path: Path, numerics: str
) -> None:
    sampling = {"temperature": 0.9, "seed": 3, "numerics": numerics}
    whole = conversation(model, sampling, system="Verona.")
    answers = [whole.ask(text).text for text in ("Good morrow.", "Who art thou?")]
    first = conversation(model, sampling, system="Verona.")
    assert first.ask("Good morrow.").text == answers[0]
    with SessionFile(tmp_path / "talk.state") as file:
        assert first.save(file) > 0
        second = conversation(model, sampling)
        session = second.resume(file)
        assert session.restored == len(session.tokens) - 1
        answer = second.ask("Who art thou?")
        assert answer.text == answers[1]
        assert answer.stats.reused_tokens == session.restored
        assert second.messages[0]["role"] == "system"
        third = conversation(model, sampling | {"temperature": 0.8})
        third.resume(file)
        assert third.chain.position == (first.chain.position if numerics == "portable" else 0)
        again = third.again()
        assert again is not None
        assert again.text
        assert third.messages[-1]["content"] == "Good morrow."
        with pytest.raises(ParameterError, match="system message"):
            conversation(model, sampling, system="Mantua.").resume(file)


def test_a_session_of_generate_is_no_conversation(model: LanguageModel, tmp_path: Path) -> None:
    made = model.generate("ROMEO:", max_tokens=3)
    talk = conversation(model, GREEDY)
    with SessionFile(tmp_path / "s") as file:
        model.save_session(file, made)
        with pytest.raises(FileFormatError, match="not that of a conversation"):
            talk.resume(file)
    assert talk.messages == []


def test_chat_begins_anew_where_it_is_asked_to(aleator: Command, tmp_path: Path) -> None:
    path = tmp_path / "talk.state"
    path.write_bytes(b"something else")
    words = ("chat", "-t", "1", "-n", "4", "--session", str(path))
    assert aleator(*words, stdin=b"Good morrow.\n").code == 3
    assert path.read_bytes() == b"something else"
    assert aleator(*words, "--session-new", stdin=b"Good morrow.\n").code == 0
    assert "tokens" in aleator(*words, stdin=b"").err
    missing = aleator("chat", "-t", "1", "--session", str(tmp_path / "no" / "s"), stdin=b"a\n")
    assert (missing.code, missing.out) == (2, "")
    assert "there is no directory" in missing.err


def test_chat_resumes(aleator: Command, tmp_path: Path) -> None:
    path = str(tmp_path / "talk.state")
    words = ("chat", "-t", "1", "-n", "8", "--session", path)
    first = aleator(*words, "--seed", "4", stdin=b"Good morrow.\n")
    assert (first.code, "session: keys and values of" in first.err) == (0, True)
    second = aleator(*words, stdin=b"Who art thou?\n")
    assert second.code == 0
    assert "seed: 4\n" in second.err
    assert "with keys and values" in second.err
    assert re.search(r"\d+ remembered", second.err)
