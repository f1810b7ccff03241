from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import warnings

import pytest

from aleator.cli import terminal
from aleator.cli.terminal import ProgressBar, messages, on_interrupt, write


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("loading", "layers") as bar:
        bar(0, 4)
        bar(3, 4)
        bar(4, 4)
        done = shown.getvalue()
        bar(4, 4)
    assert "loading" in done
    assert "3/4 layers" in done
    assert done.endswith("\x1b[2K")  # the line is cleared
    assert shown.getvalue() == done


def test_quick_tasks_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with ProgressBar("loading", "layers") as bar:
        bar(0, 4)
        bar(3, 4)
    assert shown.getvalue() == ""


def test_no_progress_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.0)
    with ProgressBar("loading", "layers") as bar:
        bar(1, 4)
    assert capsys.readouterr().err == ""


def test_text_that_the_encoding_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write("aé")
    assert raw.getvalue() == b"a?"


def test_the_first_interrupt_asks_and_the_second_breaks() -> None:
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with on_interrupt(lambda: asked.append(1), lambda: asked.append(2)):
        signal.raise_signal(signal.SIGINT)
        assert asked == [1, 2]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_on_a_terminal_the_text_ends_with_a_line_break() -> None:
    ours, theirs = pty.openpty()
    program = "import sys; from aleator.cli import main; sys.exit(main())"
    words = ["generate", "-p", "ROMEO:", "-n", "3", "--seed", "1", "-t", "1"]
    run = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            shown += os.read(ours, 1024)
        except OSError:  # the other end is closed
            break
    _, err = run.communicate(timeout=60)
    os.close(ours)
    assert run.returncode == 0
    assert shown.endswith(b"\r\n")
    assert len(shown) > 4
    assert b"\n\nprompt" in err


def test_a_terminal_without_rich_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.0)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with ProgressBar("loading", "layers") as bar:
        for done in range(5):
            bar(done, 4)
    assert shown.getvalue() == ""


def test_warnings_of_others_are_shown_as_always() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with messages(verbose=False, silent=False):
            warnings.warn("something", UserWarning, stacklevel=1)
    assert [str(each.message) for each in seen] == ["something"]
