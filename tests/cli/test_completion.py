"""The scripts for shells name all commands and options, and bash takes its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aleator.cli import COMMANDS
from aleator.cli.completion import commands
from tests.cli.conftest import Command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_all_commands_and_options_are_there(aleator: Command, shell: str) -> None:
    script = aleator("completion", shell).out
    assert all(command in script for command in COMMANDS)
    names = {name.lstrip("-") for flags in commands().values() for f in flags for name in f.names}
    assert [name for name in names if name not in script] == []


def test_another_shell_is_refused(aleator: Command) -> None:
    result = aleator("completion", "bsh")
    assert (result.code, result.err.count("did you mean bash")) == (2, 1)
    assert aleator("completion").code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_its_script(aleator: Command, shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(aleator("completion", shell).out)
    subprocess.run([shell, "-n", str(file)], check=True)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_at_the_first_call(aleator: Command, tmp_path: Path) -> None:
    (tmp_path / "_aleator").write_text(aleator("completion", "zsh").out)
    ask = (
        "fpath=(. $fpath); autoload -Uz _aleator; _describe() { print $1 ${names[1]%%:*} }; "
        "_arguments() { print ${(M)@:#*--repeat-penalty*} }; "
        "words=(aleator gen); CURRENT=2; _aleator; words=(aleator generate --r); CURRENT=3; _aleator"
    )
    done = subprocess.run(
        ["zsh", "-f", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "command generate"
    assert second.startswith("*--repeat-penalty[")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gen"], ["generate"]),
        (["generate", "--repeat-pen"], ["--repeat-penalty"]),
        (["serve", "--hos"], ["--host"]),
        (["model-info", "-ctk", "q8"], ["q8_0"]),
        (["generate", "-ctk", "q8"], ["q8_0"]),
        (["generate", "--preset", "akunu-c"], ["akunu-creative", "akunu-code"]),
        (["serve", "--draw", "gumbel-"], ["gumbel-pcg"]),
        (["chat", "-fa", ""], ["on", "off"]),
        (["generate", "-m", "mod"], ["model.gguf"]),
        (["model-info", "my"], ["my model.gguf"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["generate", "--seed", ""], []),
    ],
)
def test_bash_completes(
    aleator: Command, tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "my model.gguf").touch()
    file = tmp_path / "script"
    file.write_text(aleator("completion", "bash").out)
    line = " ".join(f"'{word}'" for word in ["aleator", *words])
    ask = f"source ./script; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _aleator"
    ask += """; printf '%s\\n' "${COMPREPLY[@]}" """
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line for line in done.stdout.split("\n") if line] == expected
