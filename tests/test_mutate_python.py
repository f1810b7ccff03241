"""tools/mutate_python.py: which changes there are, that they are made, and which tests are tried."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import chosen_tests
import mutate_python
import pytest
from chosen_tests import Coverage
from mutate_python import KERNELS, LoadedTests, group_of, sample
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


def test_tests_that_run_the_line_are_tried_the_quick_ones_before_the_others(tmp_path: Path) -> None:
    file = tmp_path / "src" / "aleator" / "m.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    return 1\nx = 2\n")
    change, constant = changes_of(tmp_path, file)
    assert (change.at_import, constant.at_import) == (False, True)
    slow, quick, other = tests = ["tests/a.py::slow", "tests/a.py::quick", "tests/b.py::other"]
    lines = {change.file: {"0": [0, 1, 2], "2": [0, 1], "3": [-1]}}
    coverage = Coverage(tests, [30.0, 1.0, 2.0], lines)
    assert list(coverage.of(change, Counter()).items()) == [(quick, 1.0), (slow, 30.0)]
    assert list(coverage.of(constant, Counter())) == [quick, other, slow]
    # What has noticed changes comes first; a line that is never run has no tests.
    assert next(iter(coverage.of(constant, Counter({other: 1})))) == other
    assert not Coverage(tests, [30.0, 1.0, 2.0], {}).of(change, Counter())
    assert list(Coverage(tests, [30.0, 1.0, 2.0], {}).of(constant, Counter())) == [
        quick,
        other,
        slow,
    ]
    assert list(coverage.of(constant, Counter(), most=3.0)) == [quick, other]
    assert list(coverage.of(change, Counter(), most=0.5)) == [quick]
    # A function that makes a table at import.
    lines[change.file]["2"].append(-1)
    assert coverage.at_import(change)
    assert list(coverage.of(change, Counter())) == [quick, other, slow]


def test_tests_near_the_file_come_first_those_of_its_folder_before_others() -> None:
    change = changes_of(ROOT, ROOT / "src" / "aleator" / "generate" / "scores.py")[0]
    own, noticing, far = (
        f"tests/generate/test_{n}.py::f" for n in ("scores", "perplexity", "stop")
    )
    scoring, verify = "tests/language_model/test_scoring.py::f", "tests/engine/test_verify.py::f"
    tests = [far, verify, scoring, f"{own}[1]", f"{own}[2]", noticing]
    coverage = Coverage(tests, [], {})
    found = list(coverage.near(change, Counter({noticing: 1})))
    assert found == [f"{own}[1]", f"{own}[2]", noticing, scoring, verify, far]
    others = Coverage([f"{own}[{i}]" for i in range(300)], [], {})
    assert len(others.near(change, Counter())) == 300
    assert list(others.near(change, Counter(), anew=True)) == others.tests[:60]


def test_every_folder_has_tests_and_those_that_are_built_on_it() -> None:
    for folder, others in mutate_python.BUILT_ON.items():
        for each in (folder, *others.split()):
            assert (ROOT / "tests" / each).is_dir()
            assert each == folder or folder not in mutate_python.BUILT_ON.get(each, "").split()


def test_kernels_are_a_group_of_their_own() -> None:
    changes = {change.file: change for change in all_changes(ROOT, "models")}
    groups = {file: group_of(change, ["models"]) for file, change in changes.items()}
    assert groups["src/aleator/models/architectures/gemma3.py"] == "models"
    assert groups["src/aleator/models/kernels/norms.py"] == KERNELS
    assert groups["src/aleator/models/triton_decoder.py"] == KERNELS


@pytest.mark.parametrize(
    ("status", "otherwise", "noticed"),
    [
        (0, 0, False),
        (1, 0, True),
        (2, 0, True),
        (4, 0, True),
        (5, 0, False),
        (-14, 0, True),
        (1, 1, False),
    ],
)
def test_the_file_is_sound_again_whatever_the_tests_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, otherwise: int, noticed: bool
) -> None:
    """Statuses of pytest with the change, and without."""
    file = tmp_path / "src" / "aleator" / "m.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    return 1\n")
    (change,) = changes_of(tmp_path, file)
    seen, counts = [], Counter[str]()

    class Loaded:
        def ask(self, change: str, **_: object) -> tuple[int, str]:
            seen.append(Path(change).read_text())
            return status if "1 + 1" in seen[-1] else otherwise, "tests/a.py::a"

    tests = LoadedTests.__new__(LoadedTests)
    monkeypatch.setattr(tests, "loaded", Loaded(), raising=False)
    monkeypatch.setattr(chosen_tests, "ROOT", tmp_path)
    tests.copy, tests.others, tests.unsound = tmp_path, Coverage([], [], {}), set()
    tests.coverage = Coverage(["tests/a.py::a"], [1.0], {change.file: {"2": [0]}})
    assert tests.notices(change, counts, 60.0) is noticed
    assert counts == ({"tests/a.py::a": 1} if noticed else {})
    changed = [text for text in seen if text == "def f():\n    return (1 + 1)\n"]
    if status == 4:  # a name was not found, then a file could not be loaded
        assert len(changed) == 2
    assert len(seen) == len(changed) + (status not in (0, 5))
    assert tests.unsound == ({"tests/a.py::a"} if otherwise else set())
    assert file.read_text() == "def f():\n    return 1\n"


PACKAGE = """
import functools

def wrapped(f):
    @functools.wraps(f)
    def g(*a):
        return f(*a)
    return g

@wrapped
def f(n):
    return [i * 2 for i in range(n)]

def none(n):
    while n < 3:
        n += 1
    return n

LIMIT = 5

def table():
    return 7

TABLE = table()

def elsewhere(n):
    return n * 2
"""
TESTS = """
from aleator.samplers import m

def test_f(): assert m.f(2) == [0, 2]
def test_none(): assert m.none(0) == 3
def test_limit(): assert m.LIMIT == 5
def test_table(): assert m.TABLE == 7
def test_nothing(): m.f(1)
def test_wrong(): assert m.f(2) == 5
"""
CONFTEST = """
import gc
from hypothesis import settings
settings.register_profile("no_shrinking")

def pytest_collection_finish(): gc.freeze()
"""
OTHER_TESTS = """
from aleator.samplers import m

def test_elsewhere(): assert m.elsewhere(3) == 6
def test_none(): pass
"""


@pytest.mark.parametrize("near", [False, True])
def test_changes_are_noticed_by_tests_that_are_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: bool
) -> None:
    """A function that is wrapped, one that does not end any more, a constant, and a table made at import."""
    copy, work = tmp_path / "copy", tmp_path / "work"
    for name, text in {
        "src/aleator/__init__.py": "", "src/aleator/samplers/__init__.py": "",
        "src/aleator/samplers/m.py": PACKAGE, "tests/samplers/test_m.py": TESTS,
        "tests/engine/test_others.py": OTHER_TESTS, "tests/conftest.py": CONFTEST,
    }.items():  # fmt: skip
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text)
    (copy / "tools").mkdir()
    for name in ("mutated_tests.py", "other_native"):
        (copy / "tools" / name).symlink_to(ROOT / "tools" / name)
    work.mkdir()
    monkeypatch.setattr(mutate_python, "WORK", work)
    monkeypatch.setattr(chosen_tests, "ROOT", copy)
    changes = changes_of(copy, copy / "src" / "aleator" / "samplers" / "m.py")
    tests = LoadedTests(copy, "samplers", changes, 20.0, near)
    try:
        counts = Counter[str]()
        found = {(each.code, each.new): tests.notices(each, counts, 60.0) for each in changes}
    finally:
        tests.end()
    unnoticed = {key for key, noticed in found.items() if not noticed}
    # Where lines are not noted, it is not known that the function runs at import.
    assert unnoticed == ({("return 7", "(7 + 1)")} if near else set())
    if near:
        assert tests.unsound == {"tests/samplers/test_m.py::test_wrong"}
        return
    assert counts["tests/samplers/test_m.py::test_none"] == 4
    assert counts["tests/engine/test_others.py::test_elsewhere"] == 2
    assert "tests/samplers/test_m.py::test_wrong" not in counts
