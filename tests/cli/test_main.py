from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

import aleator as package
from aleator.cli import COMMANDS, exit_code, main, message_of
from aleator.core import errors
from aleator.models.hub.bundled import bundled_model
from tests.cli.conftest import Command

PROGRAM = [sys.executable, "-c", "import sys; from aleator.cli import main; sys.exit(main())"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_version(aleator: Command) -> None:
    result = aleator("--version")
    assert (result.code, result.out) == (0, f"aleator {package.__version__}\n")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help(aleator: Command, words: list[str]) -> None:
    result = aleator(*words)
    assert result.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", result.out, re.MULTILINE)
    assert "130" in result.out


def test_nothing_prints_help_and_is_wrong_usage(aleator: Command) -> None:
    assert aleator().code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(aleator: Command, command: str) -> None:
    result = aleator(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"usage: aleator {command}")


def test_unknown_command(aleator: Command) -> None:
    result = aleator("genrate", "-p", "x")
    assert result.code == 2
    assert result.err.startswith(
        "aleator: error: 'genrate' is not a command; did you mean generate?"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ParameterError("a", "b"), 2),
        (errors.TokenizerError("b"), 2),
        (errors.ModelNotFound("x.gguf"), 3),
        (errors.FileFormatError("x.gguf", "bad"), 3),
        (errors.UnsupportedModel("bad"), 3),
        (FileNotFoundError(2, "No such file", "x"), 3),
        (PermissionError(13, "Permission denied", "x"), 3),
        (errors.ContextFull("full"), 4),
        (errors.CacheFull(3, 2), 4),
        (errors.LogitsError("nan"), 1),
        (MemoryError(), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code
    assert message_of(error)


def test_a_missing_extra_is_explained() -> None:
    for name, extra in (("torch", "torch"), ("rich", "cli")):
        message = message_of(ModuleNotFoundError(f"No module named {name!r}", name=name))
        assert f"{name} is not installed: pip install 'aleator[{extra}]'" in message


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.ModelNotFound):
        main(["model-info", "nothing.gguf", "--debug"])
    monkeypatch.setenv("ALEATOR_DEBUG", "1")
    with pytest.raises(errors.ModelNotFound):
        main(["model-info", "nothing.gguf"])


def test_ctrl_c_outside_of_generation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str], hurried: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("aleator.cli.dispatch", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "aleator: error: interrupted\n"


def test_a_program_that_calls_a_command_keeps_its_garbage_as_it_likes(aleator: Command) -> None:
    gc.disable()
    frozen = gc.get_freeze_count()
    try:
        assert aleator("model-info", str(bundled_model())).code == 0
        assert not gc.isenabled()
        assert gc.get_freeze_count() <= frozen  # less where frozen objects are gone
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("calls", "packages"),
    [
        ("main(['--version']); main(['--help'])", ["torch", "numpy", "rich", "tokenizers"]),
        ("main(['generate', '--help'])", ["torch", "rich", "tokenizers"]),
    ],
    ids=["version and help", "help of generate"],
)
def test_help_loads_little(calls: str, packages: list[str]) -> None:
    program = (
        f"import sys; from aleator.cli import main; {calls};"
        f"sys.exit(str(set({packages}) & set(sys.modules) or 0))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stderr == "0\n"


def test_a_closed_pipe_is_no_error() -> None:
    words = ["generate", "-p", "ROMEO:", "-n", "200", "--seed", "1"]
    run: Any = subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    run.stdout.read(5)
    run.stdout.close()
    errors_printed = run.stderr.read()
    run.stderr.close()
    assert run.wait(60) == 0
    assert b"error" not in errors_printed
    assert b"Traceback" not in errors_printed


def test_ctrl_c_ends_with_statistics() -> None:
    words = ["generate", "-p", "ROMEO:", "--context-shift", "--ignore-eos", "--seed", "1"]
    run: Any = subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    begun = run.stdout.read(20)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"ended by: interrupted" in err
    assert b"tokens/s" in err
    assert b"Traceback" not in err
    assert (begun + out).decode()  # whole characters only


def test_ctrl_c_while_the_command_is_imported_ends_it_quietly() -> None:
    """The signal arrives as the first module behind the package's own is looked for."""
    code = """
import importlib.metadata, os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "aleator.cli.terminal":
            os.kill(os.getpid(), signal.SIGINT)
(entry,) = importlib.metadata.distribution("aleator").entry_points.select(name="aleator")
sys.meta_path.insert(0, Interrupting())
sys.exit(entry.load()())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")


def test_the_words_of_the_process_are_a_command_without_garbage_collection_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []
    dispatch = package.cli.dispatch

    def noted(words: list[str], hurried: bool) -> int:
        seen.append(gc.isenabled())
        return int(dispatch(words, hurried))

    monkeypatch.setattr(package.cli, "dispatch", noted)
    monkeypatch.delitem(sys.modules, "numpy._core._add_newdocs", raising=False)
    try:
        for words, out in ((["--version"], "aleator "), (["samplers"], "top_k")):
            monkeypatch.setattr(sys, "argv", ["aleator", *words])
            assert main() == 0
            assert out in capsys.readouterr().out
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    assert seen == [False, False]
    assert gc.isenabled()
    assert not hasattr(sys.modules["numpy._core._add_newdocs"], "add_newdoc")


def test_an_error_of_memory_without_words_has_some() -> None:
    assert message_of(MemoryError()).startswith("not enough memory: allocation failed")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_standard_streams_are_empty(closed: int) -> None:
    prompt = [] if closed == 0 else ["-p", "To be"]
    words = [*PROGRAM, "generate", *prompt, "-n", "3", "--seed", "1"]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL} if closed else {}
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: os.close(closed),
        **streams,
    )
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) == (closed != 1)
    assert "Traceback" not in done.stderr
