"""Every flag of llama.cpp is an option, says what is so anyway, or is refused with what to use."""

from __future__ import annotations

from pathlib import Path

import pytest

from aleator.cli.completion import commands
from aleator.cli.llama_flags import FOREIGN, foreign
from tests.cli.conftest import Command

LISTED = [
    line.split()
    for line in (Path(__file__).parent / "llama_flags.txt").read_text().splitlines()
    if not line.startswith("#")
]
OURS = {name for flags in commands().values() for each in flags for name in each.names}


def test_every_flag_is_decided() -> None:
    assert [flag for flag, _, _ in LISTED if flag not in OURS and foreign(flag) is None] == []


def test_values_are_passed_over_as_llama_cpp_has_them() -> None:
    for flag, values, tools in LISTED:
        about = foreign(flag)
        if about is not None and about.holds and tools != "OLDER":
            assert about.values == int(values), flag


def test_no_flag_is_decided_twice() -> None:
    everywhere = set.intersection(
        *({name for each in flags for name in each.names} for flags in commands().values())
    )
    assert not everywhere & set(FOREIGN)


@pytest.mark.parametrize(
    "words",
    [
        ["-no-cnv"],
        ["--no-display-prompt", "--no-warmup", "-e", "--simple-io"],
        ["--color", "off"],
        ["--color=auto", "--jinja"],
        ["--perf", "--no-context-shift", "--split-mode", "none"],
    ],
)
def test_what_is_so_anyway_changes_nothing(aleator: Command, words: list[str]) -> None:
    plain = aleator("generate", "-p", "ROMEO:", "-n", "4", "--seed", "1")
    with_flags = aleator("generate", *words, "-p", "ROMEO:", "-n", "4", "--seed", "1")
    assert (with_flags.code, with_flags.out) == (0, plain.out)


@pytest.mark.parametrize(
    ("words", "use"),
    [
        (["-cnv"], "aleator chat holds a conversation"),
        (["--color", "on"], "without colours"),
        (["--simple-io=1"], "takes no value"),
        (["--lora-init-without-apply"], "--lora FILE:0"),
        (["--numa", "distribute"], "numactl"),
        (["--rope-freq-base", "1e6"], "the model file"),
        (["-mu", "http://x"], "-hf ORG/NAME"),
        (["--draft-max", "8"], "--spec-draft-n-max"),
        (["--spec-draft-p-min", "0.5"], "--spec-draft-n-max"),
        (["-sm", "row"], "--device-map cpu=0:20"),
        (["--image", "a.png"], "text only"),
        (["-hfd", "a/b"], "--model-draft hf:ORG/NAME"),
    ],
)
def test_the_rest_is_refused_with_what_to_use(aleator: Command, words: list[str], use: str) -> None:
    result = aleator("generate", "-p", "x", *words)
    assert result.code == 2
    assert use in result.err
    assert words[0].partition("=")[0] in result.err
    assert result.err.count("\n") == 1


def test_values_of_options_are_no_flags(aleator: Command) -> None:
    assert aleator("tokenize", "-p", "--lora", "--ids").code == 0


def test_nothing_but_the_text(aleator: Command) -> None:
    words = ("generate", "-p", "ROMEO:", "-n", "4", "--seed", "1")
    quiet = aleator(*words, "--log-disable")
    assert quiet.err == ""
    assert quiet.out == aleator(*words).out
    assert aleator("generate", "-p", "x", "--top-k", "x", "--log-disable").err != ""


def test_what_is_logged(aleator: Command) -> None:
    words = ("generate", "-p", "ROMEO:", "-n", "1", "-c", "100000", "--seed", "1")
    assert "WARNING aleator" in aleator(*words, "-v").err


def test_weights_are_held_in_memory(aleator: Command) -> None:
    result = aleator("generate", "-p", "ROMEO:", "-n", "1", "--mlock")
    assert result.code == 0
    assert "MiB are held in memory" in result.err


def test_what_follows_the_text_begins_a_line_and_tokens_are_counted(aleator: Command) -> None:
    result = aleator("generate", "-p", "ROMEO:", "-n", "5", "--seed", "1")
    assert not result.out.endswith("\n")
    blank, last = result.err.splitlines()[-2:]
    assert blank == ""
    assert "text 5 tokens" in last


def test_a_chat_of_one_turn_with_a_system_message_in_a_file(
    aleator: Command, tmp_path: Path
) -> None:
    file = tmp_path / "s.txt"
    file.write_text("Be kind.\n")
    words = ("chat", "-cnv", "--single-turn", "-n", "4", "--seed", "1")
    once = aleator(*words, "-sysf", str(file), stdin=b"Hi\nAgain\n")
    assert once.code == 0
    assert once.err.count("tokens read") == 1
    again = aleator(*words, "-sys", "Be kind.", stdin=b"Hi\n")
    assert once.out == again.out
    assert aleator(*words, "-sys", "x", "-sysf", str(file), stdin=b"Hi\n").code == 2
