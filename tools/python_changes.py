"""Small changes to Python code that tests should notice: where they are, and the text with one of them made.

A change is found again by file, line of code and place in the line, so that a list of changes stays true while
lines move.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Operators as they are written -> what takes their place.  Comparisons move their bound, or turn round.
COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}


@dataclass(frozen=True)
class Change:
    """One change to a file.

    Attributes:
        file: below the root, with "/".
        line: number, from 1.
        column: bytes before the change in its line.
        old: what stands there.
        new: what takes its place.
        code: the line, without the space around it.
        nth: which one it is of equal changes to equal lines of the file, from 0.
    """

    file: str
    line: int
    column: int
    old: str
    new: str
    code: str
    nth: int = 0

    @property
    def key(self) -> str:
        """What finds the change again where lines have moved."""
        return f"{self.file}: {self.code}  [{self.old} -> {self.new}, {self.nth}]"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}  [{self.old} -> {self.new}]"

    def applied(self, source: str) -> str:
        """The file's text with the change made."""
        lines = source.encode().splitlines(keepends=True)
        line, old = lines[self.line - 1], self.old.encode()
        end = self.column + len(old)
        if line[self.column : end] != old:
            raise ValueError(f"{self}: the file has changed")
        lines[self.line - 1] = line[: self.column] + self.new.encode() + line[end:]
        return b"".join(lines).decode()


class _Finder(ast.NodeVisitor):
    """Collects (line, column, old, new) of every change to a module."""

    def __init__(self, source: str) -> None:
        self.lines = source.encode().splitlines(keepends=True)
        self.found: list[tuple[int, int, str, str]] = []

    def _add(self, line: int, column: int, old: str, new: str) -> None:
        self.found.append((line, column, old, new))

    def _between(self, left: ast.expr, right: ast.expr, old: str, *new: str) -> None:
        """Changes of the operator that stands between two expressions."""
        line, column = left.end_lineno or 0, left.end_col_offset or 0
        words = r"\s+".join(re.escape(word) for word in old.split())
        word = old[0].isalpha()
        pattern = re.compile((rf"\b{words}\b" if word else words).encode())
        while line <= right.lineno:
            text = self.lines[line - 1]
            end = right.col_offset if line == right.lineno else len(text)
            code = text[column:end].partition(b"#")[0]
            match = pattern.search(code)
            if match:
                for each in new:
                    self._add(line, column + match.start(), match[0].decode(), each)
                return
            line, column = line + 1, 0

    def visit_Compare(self, node: ast.Compare) -> None:
        """Move the bound, or turn the comparison round."""
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            old, new = COMPARISONS[type(operator)]
            self._between(left, right, old, *new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange ``and`` and ``or``."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Exchange an operator for another."""
        if type(node.op) in OPERATORS and not isinstance(node.left, ast.JoinedStr):
            old, new = OPERATORS[type(node.op)]
            self._between(node.left, node.right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Leave out ``not``."""
        if isinstance(node.op, ast.Not):
            self._add(node.lineno, node.col_offset, "not ", "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to a number, or exchange True and False."""
        value, line = node.value, self.lines[node.lineno - 1]
        if node.end_lineno != node.lineno:
            return
        old = line[node.col_offset : node.end_col_offset].decode()
        if isinstance(value, bool):
            self._add(node.lineno, node.col_offset, old, str(not value))
        elif isinstance(value, int | float):
            new = f"({old} + 1)" if isinstance(value, int) else f"({old} * 2 + 1)"
            self._add(node.lineno, node.col_offset, old, new)

    # Types and messages: nothing that a test of behaviour should notice.
    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Look at the value, not at the type."""
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Look at the defaults and the body, not at the types; overloads have no body."""
        if any(
            isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list
        ):
            return
        defaults = [each for each in node.args.kw_defaults if each is not None]
        for each in (*node.args.defaults, *defaults):
            self.visit(each)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Look at the body, not at how the class is declared (frozen, slots)."""
        for each in node.body:
            self.visit(each)

    def visit_Call(self, node: ast.Call) -> None:
        """Pass over types in ``isinstance`` and the like, and over ``strict`` of ``zip``, an assertion."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        for each in node.args[:1] if name in ("isinstance", "issubclass", "TypeVar") else node.args:
            self.visit(each)
        self.visit(node.func)
        for keyword in node.keywords:
            if keyword.arg != "strict":
                self.visit(keyword)

    def visit_If(self, node: ast.If) -> None:
        """Pass over imports for types."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over messages."""

    def visit_Assign(self, node: ast.Assign) -> None:
        """Look at the value; a union of types is passed over."""
        if not (
            isinstance(node.value, ast.BinOp)
            and isinstance(node.value.op, ast.BitOr)
            and all(isinstance(side, ast.Name) and side.id[:1].isupper()
                    for side in (node.value.left, node.value.right))
        ):  # fmt: skip
            self.generic_visit(node)


def changes_of(root: Path, file: Path) -> list[Change]:
    """Every change to one file, in the order of the text."""
    source = file.read_text()
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    lines = source.splitlines()
    seen: dict[tuple[str, str, str], int] = {}
    changes = []
    for line, column, old, new in sorted(set(finder.found)):
        code = lines[line - 1].strip()
        nth = seen.get((code, old, new), 0)
        seen[code, old, new] = nth + 1
        name = file.relative_to(root).as_posix()
        changes.append(Change(name, line, column, old, new, code, nth))
    return changes


def all_changes(root: Path, folder: str) -> Iterator[Change]:
    """Every change to the Python files below ``src/aleator/<folder>``, or to that one file."""
    path = root / "src" / "aleator" / folder
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not files:
        raise SystemExit(f"there is no Python code in {path}")
    for file in files:
        yield from changes_of(root, file)
