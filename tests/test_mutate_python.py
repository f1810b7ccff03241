"""tools/mutate_python.py: which changes there are, that they are made, and which tests are tried."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from mutate_python import Tree, sample
from near_tests import near, words_of
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
            < b) and -1 <= x << 2 in zip(y, strict=True)  # 3 < 4
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


def test_tests_near_the_file_come_first_those_of_its_folder_before_others() -> None:
    change = changes_of(ROOT, ROOT / "src" / "aleator" / "generate" / "scores.py")[0]
    found = near(ROOT, change, Counter(), kernels=False)
    files = list(dict.fromkeys(test.partition("::")[0] for test in found))
    assert files[0] == "tests/generate/test_scores.py"
    assert {Path(file).parts[1] for file in files[:3]} == {"generate"}
    assert len(found) == len(set(found)) == 60
    (last, *_) = reversed([test for test in found if test.startswith(f"{files[0]}::")])
    assert near(ROOT, change, Counter({last: 9}), kernels=False).index(last) <= found.index(last)


def test_kernels_have_tests_of_their_own() -> None:
    change = changes_of(ROOT, ROOT / "src" / "aleator" / "models" / "kernels" / "norms.py")[0]
    for kernels in (False, True):
        found = near(ROOT, change, Counter(), kernels)
        assert found
        assert {test.startswith("tests/models/kernels/") for test in found} == {kernels}


def test_what_is_made_by_a_call_is_a_test_too(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text("test_a = made()\nclass TestB: ...\ndef test_c(): ...\ndef helper(): ...\n")
    assert list(words_of(file)) == ["test_a", "TestB", "test_c"]


PACKAGE = """
def f(n):
    return [i * 2 for i in range(n)]

def none(n):
    while n < 3:
        n += 1
    return n

LIMIT = 5
"""
TESTS = """
import pytest
from aleator.samplers import m

def test_wrong(): assert m.LIMIT == 7

@pytest.mark.parametrize("n", [1, 2])
def test_f(n): assert m.f(2) == [0, 2]

def test_none(): assert m.none(0) == 3
"""
CONFTEST = """
from hypothesis import settings
settings.register_profile("no_shrinking")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small package with tests, one of which fails as it is."""
    for name, text in {
        "src/aleator/__init__.py": "", "src/aleator/samplers/__init__.py": "",
        "src/aleator/samplers/m.py": PACKAGE, "tests/samplers/test_m.py": TESTS,
        "tests/conftest.py": CONFTEST,
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tools").mkdir()
    for name in ("mutated_tests.py", "other_native"):
        (tmp_path / "tools" / name).symlink_to(ROOT / "tools" / name)
    return tmp_path


@pytest.mark.slow
def test_changes_are_noticed_by_tests_that_fail_or_hang(tree: Path) -> None:
    """A wrong value, an endless loop, a constant that only a failing test looks at, a file that breaks."""
    file = tree / "src" / "aleator" / "samplers" / "m.py"
    changes = changes_of(tree, file)
    wanted = {
        ("i * 2", "//"): True,
        ("while n < 3", ">="): True,
        ("n += 1", "(1 + 1)"): True,
        ("LIMIT = 5", "(5 + 1)"): False,
    }
    tests = Tree(tree, most=20.0, longest=3.0)
    for (code, new), noticed in wanted.items():
        (change,) = (each for each in changes if code in each.code and each.new == new)
        assert tests.notice(change) is noticed, change
        assert file.read_text() == PACKAGE
    assert tests.unsound == {"tests/samplers/test_m.py::test_wrong"}
    assert set(tests.noticed) == {
        f"tests/samplers/test_m.py::test_{name}" for name in ("f", "none")
    }
    (change,) = (each for each in changes if each.code.startswith("LIMIT"))
    assert tests.notice(replace(change, new="1 /")) is True  # it cannot be loaded
    assert Tree(tree, most=0.0, longest=3.0).notice(changes[0]) is False  # there is no time
