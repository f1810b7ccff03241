"""``aleator chat``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from aleator import Conversation, LanguageModel
from aleator.cli import chat
from aleator.core.errors import ContextFull
from tests.chat import templates
from tests.cli.conftest import Command
from tests.cli.test_terminal import Terminal

CHAT = ("chat", "-t", "1", "--seed", "3", "-n", "30")


def test_chat(aleator: Command, model: LanguageModel) -> None:
    script = b"Good morrow.\n\n/regen\n/what\n/reset\nGood morrow.\n/exit\nnever read\n"
    result = aleator(*CHAT, stdin=script)
    assert result.code == 0
    talk = Conversation(model, seed=3, max_tokens=30)
    first = talk.say("Good morrow.").text
    again = talk.regenerate()
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


def test_a_draft_model_guesses_in_chats(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    chat = LanguageModel.chat

    def spied(self: LanguageModel, *args: Any, **options: Any) -> Any:
        seen.append(options.get("spec_type"))
        return chat(self, *args, **options)

    monkeypatch.setattr(LanguageModel, "chat", spied)
    guessed = aleator(*CHAT, "--model-draft", "bundled", stdin=b"Speak.\n")
    assert guessed.out == aleator(*CHAT, stdin=b"Speak.\n").out
    assert seen == ["draft", None]


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


def test_commands(aleator: Command, model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    lines = (
        "Good morrow.", "/branch", "And thou?", "/branch 1", "/edit Good night.", "/edit 1 Farewell.",
        "/system Enter TYBALT.", "/system", "/params", "/params temperature=0.5 top_k=3 max_tokens=2",
        "/params top_k=", f"/save {path}", f"/load {path}", "Speak.", "/help", "/exit", "never read",
    )  # fmt: skip
    result = aleator(*CHAT, stdin="\n".join(lines).encode())
    assert result.code == 0
    assert len(re.findall("remembered", result.err)) == 5
    for shown in (
        "branch 2; /branch 1 goes back", "branch 1, after assistant: ", "system: Enter TYBALT.",
        "parameters: max_tokens=30 seed=3", "parameters: max_tokens=2 temperature=0.5 top_k=3 seed=3",
        "parameters: max_tokens=2 temperature=0.5 seed=3", "branch 3: 3 messages from", "/edit N TEXT",
    ):  # fmt: skip
        assert shown in result.err
    saved = json.loads(path.read_text())
    assert [m["content"] for m in saved["messages"]][:2] == ["Enter TYBALT.", "Farewell."]
    # It is what the same steps give in Python.
    talk = Conversation(model, seed=3, max_tokens=30)
    answers = [talk.say("Good morrow.").text]
    answers.append(talk.branch().say("And thou?").text)
    for text in ("Good night.", "Farewell."):
        edited = talk.edit(0, text)
        assert edited is not None
        answers.append(edited.text)
    assert result.out.startswith("\n".join(answers))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/regen", "nothing was said yet"),
        ("/regn", "did you mean /regen"),
        ("/edit", "there are 0 messages of yours"),
        ("/branch 2", "give 1 to 1"),
        ("/params temp", "temp is not NAME=VALUE"),
        ("/params temperature=hot", "temperature"),
        ("/params max_tokens=-7", "max_tokens=-7"),
        ("/save", "give a file"),
        ("/save /nowhere/at/all", "/nowhere/at"),
        ("/load", "give a file"),
        ("/load /nowhere/at/all", "/nowhere/at/all"),
    ],
)
def test_a_wrong_command_is_no_end(aleator: Command, line: str, message: str) -> None:
    result = aleator(*CHAT, stdin=f"{line}\nSpeak.\n".encode())
    assert message in result.err
    assert (result.code, "remembered" in result.err) == (0, True)


def test_reasoning_and_variables(aleator: Command, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[-1].content }}{{ about }}<think>")
    words = (*CHAT, "--chat-template", str(path), "--chat-template-kwargs")
    result = aleator(*words, '{"about": "JULIET:"}', stdin=b"Speak.\n")
    assert result.code == 0
    assert "[reasoning] " in result.err
    assert result.out == "\n"
    budget = ("--reasoning-budget", "2", "--reasoning-budget-message", r"... Enough!\tNow.")
    told = aleator(*words, '{"about": "JULIET:"}', *budget, stdin=b"Speak.\n")
    assert "... Enough!\tNow." in told.err
    assert "tokens at" in told.err
    raw = aleator(*words, '{"about": "JULIET:"}', *budget, "--no-escape", stdin=b"Speak.\n")
    assert r"... Enough!\tNow." in raw.err
    for wrong, message in (("{", "not JSON"), ("[]", "give a JSON object")):
        assert message in aleator(*words, wrong, stdin=b"Speak.\n").err
    assert "'abut': the chat template" in aleator(*words, '{"abut": 1}', stdin=b"a\n").err


def test_a_session_of_generate_is_no_conversation(
    aleator: Command, model: LanguageModel, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    model.save_session(path, model.generate("ROMEO:", max_tokens=3))
    before = path.read_bytes()
    result = aleator(*CHAT, "--session", str(path), stdin=b"Speak.\n")
    assert (result.code, "not a conversation" in result.err) == (3, True)
    assert path.read_bytes() == before


def test_a_session_goes_on_as_if_it_had_not_ended(
    aleator: Command, model: LanguageModel, tmp_path: Path
) -> None:
    words = (*CHAT, "--session", str(tmp_path / "talk.state"))
    aleator(*words, "--system", "Verona.", stdin=b"Good morrow.\n")
    second = aleator(*words, stdin=b"Who art thou?\n")
    talk = Conversation(model, "Verona.", seed=3, max_tokens=30)
    talk.say("Good morrow.").text  # noqa: B018
    assert second.out.strip() == talk.say("Who art thou?").text.strip()
    # Only what is new was read.
    read, held = re.findall(r"\[(\d+) tokens read, (\d+) remembered", second.err)[0]
    assert int(read) < int(held)
    other = aleator(*words, "--system", "Mantua.", stdin=b"Speak.\n")
    assert (other.code, "leave --system out" in other.err) == (2, True)
    idle = aleator(*words, stdin=b"")
    assert "nothing new was said" in idle.err


def test_what_is_more_than_the_next_token(aleator: Command, model: LanguageModel) -> None:
    plain = aleator("generate", "-p", "ROMEO:", *CHAT[1:]).out
    word = plain.split()[0]
    words = ("generate", "-p", "ROMEO:", *CHAT[1:])
    assert word not in aleator(*words, "--banned-string", word).out
    guided = aleator(*words, "--cfg-scale", "2", "--cfg-negative-prompt", "JULIET:").out
    direct = model.generate(
        "ROMEO:", seed=3, max_tokens=30, guidance_scale=2.0, negative_prompt="JULIET:"
    )
    assert guided.removesuffix("\n") == direct.text.removesuffix("\n")
    talk = aleator(*CHAT, "--banned-string", "the", "--guidance-scale", "1.5", stdin=b"Speak.\n")
    assert talk.code == 0
    assert "the" not in talk.out


def test_a_full_context_ends_no_conversation_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        over = False

        def take(self, message: str) -> None:
            taken.append(message)
            if message == "long":
                raise ContextFull("9 tokens and room for 8")

    taken: list[str] = []
    lines = iter(("short", None))
    monkeypatch.setattr(chat, "ask", lambda: next(lines))
    monkeypatch.setattr("sys.stdin", Terminal())
    chat.converse(Full(), "long")  # type: ignore[arg-type]
    assert taken == ["long", "short"]
    assert "9 tokens and room for 8; /reset starts anew" in capsys.readouterr().err


def test_calls_of_tools_are_told(model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    answer = model.chat(
        [{"role": "user", "content": "What is the time?"}],
        tools=[templates.CLOCK], tool_choice="required", chat_template=templates.HERMES, seed=1,
    )  # fmt: skip
    chat.show(answer)
    (call,) = answer.message.tool_calls
    out, err = capsys.readouterr()
    assert (out, call.name) == ("\n", "clock")
    assert f"[calls clock with {call.arguments}]" in err
