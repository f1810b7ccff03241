"""A session's file: one user at a time, no text lost, whatever happens half way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aleator import LanguageModel, ParameterError
from aleator.core.errors import OtherSession, SessionInUse
from aleator.generate.session_file import SessionFile


def text(model: LanguageModel, prompt: str = "ROMEO:", n: int = 4, **options: Any) -> Any:
    return model.generate(prompt, max_tokens=n, **{"seed": 1, **options})


def test_a_file_in_use_is_refused_by_all_others(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with SessionFile(path) as file:
        before = file.exists
        with pytest.raises(SessionInUse, match="in use by this process"):
            SessionFile(path)
        with pytest.raises(SessionInUse):
            model.save_session(path, text(model))
        code = "import sys, aleator.generate.session_file as s; s.SessionFile(sys.argv[1])"
        other = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True)
        assert f"in use by another process ({os.getpid()})" in other.stderr.decode()
        link = tmp_path / "link"
        link.symlink_to(path)
        with pytest.raises(SessionInUse):  # another name of it
            SessionFile(link)
        model.save_session(file, text(model))
        assert (before, file.exists) == (False, True)
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["link", "s"]
    model.save_session(path, text(model))


def test_a_process_that_dies_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "s"
    code = """
import os, signal, sys
from aleator.generate.session_file import SessionFile
file = SessionFile(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / ".s.lock").exists()
    SessionFile(path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_is_killed_half_way_leaves_the_old_file(
    model: LanguageModel, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    model.save_session(path, text(model, n=6))
    before = path.read_bytes()
    code = """
import os, signal, sys
import aleator
from aleator.cache.formats import state_file
state_file.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
model = aleator.load(n_threads=1)
made = model.generate(model.load_session(sys.argv[1]), max_tokens=5, seed=1)
model.save_session(sys.argv[1], made)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_bytes() == before
    left = [each.name for each in tmp_path.iterdir() if each.name.endswith(".partial")]
    assert len(left) == 1
    others = [tmp_path / name for name in (".s.x.partial", ".other.12.partial", "s.12.partial")]
    for other in others:
        other.write_bytes(b"of somebody else")
    assert len(model.load_session(path).tokens) == len(text(model, n=6).request.tokens) + 6
    with SessionFile(path):
        assert {*tmp_path.iterdir()} == {path, tmp_path / ".s.lock", *others}


def test_where_nothing_can_be_written_is_said_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, why in (
        (tmp_path / "fifo", "it is no file"),
        (tmp_path / "missing" / "s", "there is no directory"),
        (tmp_path, "it is a directory"),
        (Path("/proc/s"), "cannot be written|no directory"),
    ):
        with pytest.raises(ParameterError, match=f"session={path}: .*{why}"):
            SessionFile(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: text(model, "JULIET:"),
        lambda model: text(model, "ROMEO: and more"),
        lambda model: text(model, "ROMEO", seed=2),
    ],
)
def test_another_text_is_not_lost(
    model: LanguageModel, tmp_path: Path, make: Callable[[LanguageModel], Any]
) -> None:
    path = tmp_path / "s"
    model.save_session(path, text(model, n=8))
    before = path.read_bytes()
    other = make(model)
    with pytest.raises(OtherSession, match=r"another text, of .* tokens.*--session-new, new=True"):
        model.save_session(path, other)
    assert path.read_bytes() == before
    model.save_session(path, other, new=True)
    assert model.load_session(path).tokens[: len(other.request.tokens)] == other.request.tokens


def test_what_goes_on_and_the_same_prompt_replace_it(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "s"
    made = text(model, n=8)
    model.save_session(path, made)
    model.save_session(path, text(model, n=3, seed=9))  # the same prompt again
    rest = model.generate(model.load_session(path), max_tokens=4)
    model.save_session(path, rest)
    whole = model.load_session(path).tokens
    longer = model.generate([*whole, 5, 6], max_tokens=2)
    model.save_session(path, longer)
    assert len(model.load_session(path).tokens) == len(whole) + 4


def test_what_is_no_session_is_not_replaced(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    with pytest.raises(OtherSession, match="something else than a session"):
        model.save_session(path, text(model))
    assert path.read_text() == "dear diary"
    model.save_session(path, text(model), new=True)
    assert model.load_session(path).tokens
