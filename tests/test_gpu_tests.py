"""``tools/gpu_tests.py`` with tests that pass, fail, hang, and kill their process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_tests
import pytest

TOOL = Path(gpu_tests.__file__)
FIRST = """
import os, signal, time
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("text", ["a b", "[c]"])
def test_with_a_value(text):
    assert text

def test_fails():
    assert 1 == 2, "as agreed"

def test_after_the_failure():
    pass

def test_hangs():
    time.sleep(600)

def test_after_the_hang():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_after_the_death():
    pass

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_is_not_set_up(broken):
    pass

def test_is_skipped():
    pytest.skip("not here")
"""
SECOND = "def test_last():\n    pass\n"
WANTED = {
    "test_passes": "passed", "test_with_a_value[a b]": "passed", "test_with_a_value[[c]]": "passed",
    "test_fails": "failed", "test_after_the_failure": "passed", "test_hangs": "hung",
    "test_after_the_hang": "passed", "test_dies": "died", "test_after_the_death": "passed",
    "test_is_not_set_up": "failed", "test_is_skipped": "skipped", "test_last": "passed",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of tests."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "test_first.py").write_text(FIRST)
    (made / "test_second.py").write_text(SECOND)
    return made


def tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, *words], capture_output=True, text=True, check=False, timeout=600
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_each_test_has_a_result_whatever_the_others_do(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    done = tool("--out", out, "--limit", "20", folder)
    assert done.returncode == 1, done.stdout + done.stderr
    first, *lines = lines_of(out)
    assert [test.rpartition("::")[2] for test in first["tests"]] == list(WANTED)
    assert first["machine"]["python"].startswith("3.")
    assert [line["test"] for line in lines] == first["tests"]
    found = {line["test"].rpartition("::")[2]: line for line in lines}
    assert {name: line["outcome"] for name, line in found.items()} == WANTED
    assert "as agreed" in found["test_fails"]["said"]
    assert "no fixture" in found["test_is_not_set_up"]["said"]
    assert "ended with -11" in found["test_dies"]["said"]
    for name in ("test_dies", "test_hangs"):  # they say where
        assert f"in {name}" in found[name]["said"]
    assert found["test_passes"]["said"] == ""
    assert done.stdout.splitlines()[-1] == "1 died, 2 failed, 1 hung, 7 passed, 1 skipped"

    (folder / "test_first.py").write_text(FIRST.replace("600", "0").replace("1 == 2", "True"))
    again = tmp_path / "again.jsonl"
    assert tool("--out", again, "--limit", "20", "--again", out).returncode == 1
    bad = ["test_fails", "test_hangs", "test_dies", "test_is_not_set_up"]
    assert [line["test"].rpartition("::")[2] for line in lines_of(again)[1:]] == bad
    assert gpu_tests.not_passed(again) == [t for t in first["tests"] if t.endswith(("dies", "up"))]


def test_the_tests_that_need_a_gpu_are_found() -> None:
    tests = TOOL.parent.parent / "tests"
    found = {str(path.relative_to(tests)) for path in tests.rglob("test_*cuda*.py")}
    needing = {
        str(path.relative_to(tests))
        for path in tests.rglob("test_*.py")
        if "if not torch.cuda.is_available():" in path.read_text() and path != Path(__file__)
    }
    assert found == needing
