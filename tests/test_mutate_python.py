"""tools/mutate_python.py: which changes there are, that they are made, and that its list is true."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import mutate_python
import pytest
from mutate_python import Coverage, is_noticed, sample, stages, without_effect
from python_changes import all_changes, changes_of

ROOT = Path(__file__).parent.parent
SOURCE = '''
"""A number 1 and text."""
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    X = 1

Both = Small | Large

@dataclass(frozen=True)
class C:
    n: int

@overload
def bound(x: int | None) -> "a < b": ...
def bound(x: int | None = 3, *, é: float = 0.5) -> bool:
    if not isinstance(x, A | B) or x is not None:
        raise ValueError(f"{x + 1} of {x:3}")
    return (a
            < b) and -1 <= x << 2 in y  # 3 < 4
'''


def test_changes(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(SOURCE)
    found = changes_of(tmp_path, file)
    assert {(each.line, each.old, each.new) for each in found} == {
        (16, "3", "(3 + 1)"),
        (16, "0.5", "(0.5 * 2 + 1)"),
        (17, "not ", ""),
        (17, "or", "and"),
        (17, "is not", "is"),
        (20, "<", "<="),
        (20, "<", ">="),
        (20, "and", "or"),
        (20, "1", "(1 + 1)"),
        (20, "<=", "<"),
        (20, "<=", ">"),
        (20, "<<", ">>"),
        (20, "2", "(2 + 1)"),
        (20, "in", "not in"),
    }
    for change in found:
        changed = change.applied(SOURCE)
        ast.parse(changed)
        old, new = SOURCE.splitlines(), changed.splitlines()
        assert [i + 1 for i in range(len(old)) if old[i] != new[i]] == [change.line]
    with pytest.raises(ValueError, match="the file has changed"):
        found[0].applied(SOURCE.replace("3", "4"))


def test_equal_lines_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("a = 1\nb = 2\na = 1\n")
    keys = [change.key for change in changes_of(tmp_path, file)]
    assert len(set(keys)) == len(keys) == 3
    moved = [change.key for change in changes_of(tmp_path, file)]
    file.write_text("# one line more\n\na = 1\nb = 2\na = 1\n")
    assert [change.key for change in changes_of(tmp_path, file)] == keys == moved


def test_a_sample_is_reproducible() -> None:
    chosen = sample(["text", "models/files"], 12, 5)
    assert chosen == sample(["text", "models/files"], 12, 5) != sample(["text"], 12, 5)
    assert len({change.key for change in chosen}) == 12
    assert {change.file.split("/")[2] for change in chosen} == {"text", "models"}
    with pytest.raises(SystemExit, match="no Python code"):
        sample(["nothing"], 1, 1)


def test_every_change_of_the_package_can_be_made() -> None:
    for change in all_changes(ROOT, "models"):
        source = (ROOT / change.file).read_text()
        assert change.applied(source) != source


def test_what_is_listed_as_without_effect_is_still_there() -> None:
    listed = without_effect()
    folders = {key.split("/")[2] for key in listed}
    assert listed.keys() <= {
        change.key for folder in folders for change in all_changes(ROOT, folder)
    }
    assert all(len(why) > 10 for why in listed.values())


def test_tests_that_run_the_line_are_tried_the_quick_ones_before_the_others(
    tmp_path: Path,
) -> None:
    file = tmp_path / "src" / "aleator" / "m.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    return 1\nx = 2\n")
    change, constant = changes_of(tmp_path, file)
    name, tests = change.file, ["tests/a.py::slow", "tests/a.py::quick", "tests/b.py::other"]
    coverage = Coverage(tests, [30.0, 1.0, 2.0], {name: {"2": [0, 1], "3": [-1, 0, 1, 2]}})
    quick, slow = (["tests/a.py::quick"], 1.0), (["tests/a.py::slow"], 30.0)
    assert stages(change, coverage, Counter()) == [quick, slow]
    all_quick = ["tests/a.py::quick", "tests/b.py::other"]
    assert stages(constant, coverage, Counter()) == [(all_quick, 3.0), slow]
    # What has noticed changes comes first; one that is never run has no tests.
    assert stages(constant, coverage, Counter({tests[2]: 1}))[0] == (all_quick[::-1], 3.0)
    assert stages(change, Coverage(tests, [30.0, 1.0, 2.0], {}), Counter()) == []
    long = Coverage(tests, [90.0, 40.0, 50.0], coverage.lines)
    assert [names for names, _ in stages(constant, long, Counter())] == [all_quick]


@pytest.mark.parametrize(
    ("status", "noticed"),
    [(0, False), (1, True), (2, True), (4, True), (5, False), (None, True)],
)
def test_the_file_is_sound_again_whatever_the_tests_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None, noticed: bool
) -> None:
    file = tmp_path / "src" / "aleator" / "m.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    return 1\n")
    (change,) = changes_of(tmp_path, file)
    seen, counts = [], Counter[str]()

    def pytest_(copy: Path, tests: list[str], seconds: float) -> tuple[int | None, list[str]]:
        seen.append(file.read_text())
        return status, ["tests/a.py::a"] if status == 1 else []

    monkeypatch.setattr(mutate_python, "pytest", pytest_)
    coverage = Coverage(["tests/a.py::a"], [1.0], {change.file: {"2": [0]}})
    assert is_noticed(tmp_path, change, coverage, counts) is noticed
    assert counts == ({"tests/a.py::a": 1} if status == 1 else {})
    assert set(seen) == {"def f():\n    return (1 + 1)\n"}
    if status == 4:  # a name was not found, then a file could not be loaded
        assert len(seen) == 2
    assert file.read_text() == "def f():\n    return 1\n"
