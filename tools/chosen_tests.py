"""Which tests could notice a change, for tools/mutate_python.py: those that run its line, or are near to it."""

from __future__ import annotations

import ast
import functools
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
            total += self.seconds[i]
            if total > most and chosen:
                break
            chosen[self.tests[i]] = self.seconds[i]
        return chosen

    def near(self, change: Change, noticed: Counter[str]) -> dict[str, float]:
        """All tests, where it is not known what they run: of each function its first parameters come first.

        Those in files that import the changed one, are named after it, or compare declarations with the record
        come before those that import what imports it, and so on.
        """
        far = distances(change.file, self.tests)
        rounds: Counter[str] = Counter()
        keys = []
        for test in self.tests:
            file, _, function = test.partition("::")
            name, steps = f"{file}::{function.partition('[')[0]}", far.get(file, 9)
            keys.append((rounds[name] + 2 * max(0, steps - 1), steps, -noticed[test]))
            rounds[name] += 1
        return {self.tests[i]: LONG for i in sorted(range(len(keys)), key=keys.__getitem__)}


@functools.cache
def imports(file: Path) -> frozenset[Path]:
    """The package's files that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    paths = (ROOT / "src" / f"{name.replace('.', '/')}.py" for name in names)
    return frozenset(path for path in paths if path.is_file())


def distances(file: str, tests: Sequence[str]) -> dict[str, int]:
    """For files of tests: over how many imports they reach a file of the package."""
    made = {}
    for test in dict.fromkeys(each.partition("::")[0] for each in tests):
        seen, steps = imports(ROOT / test), 1
        named = Path(test).stem.removeprefix("test_")
        if named == "declared" or f"{Path(file).stem}_".startswith(f"{named}_"):
            seen |= {ROOT / file}
        while ROOT / file not in seen:
            more = seen.union(*map(imports, seen))
            if more == seen:
                break
            seen, steps = more, steps + 1
        else:
            made[test] = steps
    return made
