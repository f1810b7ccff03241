"""Which tests could notice a change, for tools/mutate_python.py: those that run its line, or are near to it."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from python_changes import Change

ROOT = Path(__file__).parent.parent
LONG = 20.0
"""Seconds that a test may take of which it is not known."""
MOST = 60.0
"""Seconds that the tests of a change take together, at most: what they do not notice counts as unnoticed."""
WORD = re.compile("[A-Za-z_]{4,}")
MOST_ANEW = 60
"""Tests whose files are loaded for a change, where it is not known which run it."""


@dataclass(frozen=True)
class Coverage:
    """Which tests run which of the changed lines of a folder.

    Attributes:
        tests: their node ids.
        seconds: what each took.
        lines: file -> line -> indices of tests; -1 stands for what runs at import, and line 0 for every
            function of the file.
    """

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]

    def at_import(self, change: Change) -> bool:
        """Whether the changed line is run when its file or a file of tests is imported."""
        lines = self.lines.get(change.file, {})
        return change.at_import or -1 in lines.get(str(change.line), [])

    def of(self, change: Change, noticed: Counter[str], most: float = MOST) -> dict[str, float]:
        """The tests that run the changed line, and what they take.

        If the line runs at import: those that run anything of its file, or are named after it, and those that
        compare declarations with the record.

        Args:
            change: what is changed.
            noticed: how many changes each test has noticed so far; those with most come first.
            most: what they may take together, if it is more than one test.
        """
        lines = self.lines.get(change.file, {})
        found = set(lines.get(str(change.line), []))
        if self.at_import(change):
            found |= {i for tests in lines.values() for i in tests}
            files = [Path(test.partition("::")[0]).stem for test in self.tests]
            names = ("test_declared", f"test_{Path(change.file).stem}")
            found |= {i for i, file in enumerate(files) if file in names}
            if found <= {-1}:
                found = set(range(len(files)))
        order = sorted(found - {-1}, key=lambda i: (-noticed[self.tests[i]], self.seconds[i]))
        total = 0.0
        chosen: dict[str, float] = {}
        for i in order:
            if not chosen or total + self.seconds[i] <= most:
                total += self.seconds[i]
                chosen[self.tests[i]] = self.seconds[i]
        return chosen

    def near(self, change: Change, noticed: Counter[str], anew: bool = False) -> dict[str, float]:
        """All tests, where it is not known what they run: of each function four parameters after the other.

        Those in files named after the changed one come first.  Those in files that import it, or compare
        declarations with the record, come before those that import what imports it, and so on; those of the
        folder before those of others; and of these those that have most of the words of the changed line and
        its function.

        Args:
            change: what is changed.
            noticed: how many changes each test has noticed so far.
            anew: whether files are loaded for it; then these are ``MOST_ANEW``.
        """
        far, own = distances(change.file, self.tests), Path(change.file).parts[2]
        wanted = about(change)
        rounds: Counter[str] = Counter()
        keys = {}
        for test in self.tests:
            file, _, function = test.partition("::")
            name, steps = f"{file}::{function.partition('[')[0]}", far.get(file, 9)
            other = Path(file).parts[1] != own
            near = rounds[name] // 4 + 2 * max(0, steps - 1) + other
            named = (
                Path(file).stem.startswith(f"test_{Path(change.file).stem}") and rounds[name] < 4
            )
            alike = len(wanted & words(ROOT / file).get(function.partition("[")[0], set()))
            keys[test] = (not named, near - alike, steps, other, -noticed[test])
            rounds[name] += 1
        order = sorted(keys, key=keys.__getitem__)
        return dict.fromkeys(order[:MOST_ANEW] if anew else order, LONG)


def about(change: Change) -> set[str]:
    """The words of a changed line, and the name of its function."""
    made = set(WORD.findall(change.code))
    for name, (first, last) in functions(ROOT / change.file).items():
        made |= {name} if first <= change.line <= last else set()
    return made


@functools.cache
def functions(file: Path) -> dict[str, tuple[int, int]]:
    """The functions of a file, with their first and last lines."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {n.name: (n.lineno, n.end_lineno or 0) for n in nodes if isinstance(n, ast.FunctionDef)}


@functools.cache
def words(file: Path) -> dict[str, set[str]]:
    """The words of each function of a file."""
    lines = file.read_text().splitlines()
    return {
        name: set(WORD.findall("\n".join(lines[first - 1 : last])))
        for name, (first, last) in functions(file).items()
    }


@functools.cache
def imports(file: Path) -> frozenset[Path]:
    """The files of the package and of tests that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    stems = [ROOT / top / name.replace(".", "/") for name in names for top in ("src", "")]
    paths = (Path(f"{stem}{tail}") for stem in stems for tail in (".py", "/__init__.py"))
    return frozenset(path for path in paths if path.is_file())


def distances(file: str, tests: Sequence[str]) -> dict[str, int]:
    """For files of tests: over how many imports they reach a file of the package."""
    made = {}
    for test in dict.fromkeys(each.partition("::")[0] for each in tests):
        seen, steps = imports(ROOT / test), 1
        declared = f"tests/{Path(file).parts[2]}/test_declared.py"
        named = Path(test).stem.removeprefix("test_")
        if test == declared or f"{Path(file).stem}_".startswith(f"{named}_"):
            seen |= {ROOT / file}
        while ROOT / file not in seen:
            more = seen.union(*map(imports, seen))
            if more == seen:
                break
            seen, steps = more, steps + 1
        else:
            made[test] = steps
    return made
