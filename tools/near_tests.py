"""Which tests could notice a change, for tools/mutate_python.py: those that are near to it."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from python_changes import Change

WORD = re.compile("[A-Za-z_]{4,}")
FAR = 9
"""Imports between a file of tests and one that it does not reach."""
MOST = 60
"""How many tests are near."""


def near(root: Path, change: Change, noticed: Counter[str], kernels: bool) -> list[str]:
    """The tests of a checkout that are nearest to a change, the nearest first: FILE::NAME.

    Those in files named after the changed one come first.  Those in files that import it, or compare
    declarations with the record, come before those that import what imports it, and so on; those of the folder
    with the same name before others; of these those that have most of the words of the changed line and its
    function, then those that have noticed most changes so far.

    Args:
        root: the checkout.
        change: what is changed.
        noticed: how many changes each test has noticed so far.
        kernels: whether tests of kernels are wanted, or the others.
    """
    file, wanted, keys = root / change.file, set(WORD.findall(change.code)), {}
    own = Path(change.file).parts[2]
    for name, (first, last) in definitions(file).items():
        wanted |= {name} if first <= change.line <= last else set()
    for path in tests(root):
        if ("kernels" in path.parts) is not kernels:
            continue
        named, folder = path.stem.startswith(f"test_{file.stem}"), path.relative_to(root).parts[1]
        declared = path.stem == "test_declared" and folder == own
        steps = 1 if named or declared else reached(root, path).get(file, FAR)
        for name, words in words_of(path).items():
            test = f"{path.relative_to(root)}::{name}"
            far = 2 * (steps - 1) + (folder != own) - len(wanted & words)
            keys[test] = not named, far, steps, -noticed[test]
    return sorted(keys, key=keys.__getitem__)[:MOST]


@functools.cache
def tests(root: Path) -> list[Path]:
    """The files of tests."""
    return sorted((root / "tests").rglob("test_*.py"))


@functools.cache
def definitions(file: Path) -> dict[str, tuple[int, int]]:
    """The functions of a file, with their first and last lines."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {n.name: (n.lineno, n.end_lineno or 0) for n in nodes if isinstance(n, ast.FunctionDef)}


def named_tests(file: Path) -> Iterator[tuple[str, ast.stmt]]:
    """What pytest takes for a test: functions, classes, and what is made of others."""
    for node in ast.parse(file.read_text()).body:
        names = [getattr(node, "name", "")]
        if isinstance(node, ast.Assign):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
        yield from ((name, node) for name in names if name.startswith(("test", "Test")))


@functools.cache
def words_of(file: Path) -> dict[str, set[str]]:
    """The words of each test of a file."""
    lines = file.read_text().splitlines()
    return {
        name: set(WORD.findall("\n".join(lines[node.lineno - 1 : node.end_lineno])))
        for name, node in named_tests(file)
    }


@functools.cache
def imports(root: Path, file: Path) -> frozenset[Path]:
    """The files of the package and of tests that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    stems = [root / top / name.replace(".", "/") for name in names for top in ("src", "")]
    paths = (Path(f"{stem}{tail}") for stem in stems for tail in (".py", "/__init__.py"))
    return frozenset(path for path in paths if path.is_file())


@functools.cache
def reached(root: Path, file: Path) -> dict[Path, int]:
    """The files that a file of tests reaches, and over how many imports."""
    made: dict[Path, int] = {}
    edge, steps = imports(root, file), 1
    while edge and steps < FAR:
        made |= dict.fromkeys(edge, steps)
        edge = frozenset().union(*(imports(root, each) for each in edge)) - made.keys()
        steps += 1
    return made
