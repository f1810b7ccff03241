"""Keeps tests loaded for tools/mutate_python.py: each change runs them in a fork.

A plugin of pytest, ``-p mutated_tests``.  When the tests are collected it answers requests: JSON, one a line,
on the socket whose number is in ``ALEATOR_REQUESTS``.

- ``{"note": PATH, "tests": [NODE ID, ...]}``: run these, and write to PATH which runs which of the lines that
  ``ALEATOR_LINES`` lists.  Those are probed where modules of the package are loaded.
- ``{"tests": PATH}``: write the names of all tests to PATH.
- ``{"change": PATH, "tests": [[NODE ID, SECONDS], ...], "seconds": LIMIT, "end_after": LIMIT}``: PATH has
  been changed on the disk.  Its functions get their new code, and the tests run until one fails, or all have
  taken that much of the processor.  None may take longer than SECONDS by the clock.
- the same with ``{"anew": true}``: a pytest of its own loads and runs the tests, for what is run at import.
  ``python tools/mutated_tests.py`` answers these, with the big libraries imported already.

The answer is ``{"status": exit status, "test": NODE ID of the last test that began}``.
"""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

LIBRARIES = ("numpy", "torch", "hypothesis", "gguf", "safetensors.torch", "jinja2", "triton")
"""Imported before the fork of a pytest of its own."""
MEMORY = 6 << 30
"""Bytes that the process of tests may add: a change may ask for any number of them."""
LONGEST = float(os.environ.get("ALEATOR_LONGEST", "20"))
"""Processor seconds after which a test is left out, where lines are noted."""
LOAD_SECONDS = 60.0
"""Processor seconds that a pytest may take to load tests."""
MORE_SECONDS, TIMES = 20.0, 8
"""A test may take so many processor seconds more, and so many times as long, as it did unchanged."""

Lines = dict[str, list[int]]
"""File -> lines that are changed; line 0 stands for every function of the file."""


def decorators(statement: ast.stmt) -> list[ast.expr]:
    """What is written above a function or a class."""
    return getattr(statement, "decorator_list", [])


def probed(source: str, lines: Sequence[int], name: str, first: int = 1) -> ast.Module:
    """The module, with a call before each statement in ``lines``; and, for 0, in every function.

    Args:
        source: its text, or that of one function.
        lines: numbers of lines.
        name: its file.
        first: number of the text's first line.
    """
    tree = ast.parse(source)
    ast.increment_lineno(tree, first - 1)
    blocks: dict[int, tuple[list[ast.stmt], ast.stmt]] = {}
    functions = []
    for parent in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block: Any = getattr(parent, field, None)
            for statement in block if isinstance(block, list) else []:
                for line in lines:  # inner blocks come later
                    begin = min([statement.lineno, *(d.lineno for d in decorators(statement))])
                    if begin <= line <= (statement.end_lineno or 0):
                        blocks[line] = block, statement
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(parent)

    def probe(line: int, at: ast.stmt) -> ast.stmt:
        call = ast.parse(f"__line_is_run__({name!r}, {line})").body[0]
        for node in ast.walk(call):
            ast.copy_location(node, at)
        return call

    for line, (block, statement) in blocks.items():
        at = next(i for i, each in enumerate(block) if each is statement)
        block.insert(at, probe(line, statement))
    for function in functions if 0 in lines else []:
        has_docstring = ast.get_docstring(function, clean=False) is not None
        function.body.insert(int(has_docstring), probe(0, function.body[0]))
    return tree


class Probing:
    """Loads modules of the package with probes at the lines that are changed."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.before: dict[str, CodeType] = {}

    def code(self, path: str) -> CodeType:
        """The code of a file as it is now, with its probes."""
        tree = probed(Path(path).read_text(), self.lines[path], path)
        made: CodeType = compile(tree, path, "exec", dont_inherit=True)
        self.before.setdefault(path, made)
        return made

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it is to be changed."""
        if not name.startswith("aleator.") or path is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin not in self.lines:
            return None
        make = self.code

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return make(self.path)

        spec.loader = Loader(name, spec.origin)
        return spec


PROBING = Probing({})


def probe_kernels() -> None:
    """Probe what Triton's interpreter makes of kernels: it reads their text by itself, at their first call."""
    from triton.runtime.interpreter import FunctionRewriter

    def transform(self: Any, source: str) -> ast.AST:
        lines, first = PROBING.lines.get(self.filename, []), self.def_file_lineno
        tree = self.ast_transformer.visit(probed(source, lines, self.filename, first))
        made: ast.AST = ast.fix_missing_locations(tree)
        return made

    FunctionRewriter._transform_ast = transform


TEST = ""
"""The test that runs, while lines are noted."""
RUN: set[tuple[str, int, str]] = set()
"""(file, line, test), and "" for the test where no test ran yet."""


def _line_is_run(file: str, line: int) -> None:
    RUN.add((file, line, TEST))


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those within it, in the order of the text."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def put_in_place(path: str) -> None:
    """Give the functions of a changed file their new code; those that wrap or bind them see it too."""
    before = PROBING.before.get(path)
    if before is None:  # no test has imported it yet
        return
    new = dict(zip(codes(before), codes(PROBING.code(path)), strict=True))
    gc.unfreeze()  # tests/conftest.py freezes what is imported, and get_objects() leaves that out
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == path:
            each.__code__ = new.get(each.__code__, each.__code__)
    gc.freeze()


def limited(seconds: float) -> None:
    """End this process if it takes so many processor seconds more."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, limit))


def processor_seconds() -> float:
    """What this process and those that it has waited for have used."""
    return sum(os.times()[:4])


def forked(run: Callable[[Callable[[str], object]], int], seconds: float) -> dict[str, object]:
    """Call ``run`` in a fork, with a function to call with the name of each test that begins.

    Args:
        run: gives the exit status.
        seconds: how long a test may take.

    Returns:
        The answer; its status is below 0 where the process had to be ended.
    """
    with tempfile.TemporaryFile() as began:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setsid()
                used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
                status = run(lambda test: os.write(began.fileno(), f"{test}\n".encode()))
            finally:
                os._exit(status)
        process = os.pidfd_open(child)
        ended, before = list[int](), -1
        while not ended and before != (size := os.fstat(began.fileno()).st_size):
            ended, before = select.select([process], [], [], seconds)[0], size
        os.close(process)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have left behind ends with it
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        began.seek(0)
        names = began.read().decode().splitlines()
    return {"status": status if ended else -signal.SIGALRM, "test": names[-1] if names else ""}


def serve(answer: Callable[[dict[str, Any]], dict[str, object]]) -> None:
    """Answer requests until there are no more."""
    with (
        socket.socket(fileno=int(os.environ["ALEATOR_REQUESTS"])) as ours,
        ours.makefile("rw") as stream,
    ):
        for line in iter(stream.readline, ""):
            print(json.dumps(answer(json.loads(line))), file=stream, flush=True)


class Reports:
    """Hooks of pytest in a fork."""

    def __init__(
        self, began: Callable[[str], object], seconds: dict[str, float], end_after: float
    ) -> None:
        self.began, self.seconds, self.end_after = began, seconds, end_after
        self.start = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test begins, and limit what it may take; end as if all had passed if time is over.

        A test that has begun goes on to its end or its limit: one that hangs has noticed the change.
        """
        if not self.start:  # loading does not count
            self.start = processor_seconds()
        if 0 < self.end_after < processor_seconds() - self.start:  # with other processes
            os._exit(0)
        self.began(nodeid)
        limited(MORE_SECONDS + TIMES * self.seconds.get(nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End where a test fails."""
        if report.failed:
            os._exit(pytest.ExitCode.TESTS_FAILED)


def anew(request: dict[str, Any]) -> dict[str, object]:
    """Load and run tests by a pytest of its own."""
    seconds = dict(request["tests"])

    def run(began: Callable[[str], object]) -> int:
        limited(LOAD_SECONDS)
        options = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            "--hypothesis-profile=no_shrinking",
            "--basetemp=temporary",
        ]
        return pytest.main(
            [*options, *seconds], plugins=[Reports(began, seconds, request["end_after"])]
        )

    return forked(run, request["seconds"])


class Loaded:
    """The tests that a pytest has collected."""

    def __init__(self, session: pytest.Session) -> None:
        self.items = {item.nodeid: item for item in session.items}
        self.config = session.config

    def run(self, names: Sequence[str]) -> None:
        """Run tests, one after the other."""
        items = [self.items[name] for name in names]
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def changed(self, request: dict[str, Any]) -> dict[str, object]:
        """Run tests of a changed file until one fails."""
        seconds = dict(request["tests"])

        def run(began: Callable[[str], object]) -> int:
            put_in_place(request["change"])
            self.config.pluginmanager.register(Reports(began, seconds, request["end_after"]))
            self.run([name for name in seconds if name in self.items])
            return 0

        return forked(run, request["seconds"])

    def noted(self, request: dict[str, Any]) -> dict[str, object]:
        """Run tests, and write which lines each runs."""

        def run(began: Callable[[str], object]) -> int:
            if os.environ.get("TRITON_INTERPRET") == "1":
                probe_kernels()
            notes = Notes(began)
            self.config.pluginmanager.register(notes)
            self.run(request["tests"])
            Path(request["note"]).write_text(json.dumps(notes.values(self.config.rootpath)))
            return 0

        return forked(run, 1e6)

    def answer(self, request: dict[str, Any]) -> dict[str, object]:
        """What a request asks for."""
        if "note" in request:
            return self.noted(request)
        if "change" in request:
            return self.changed(request)
        Path(request["tests"]).write_text(json.dumps(list(self.items)))
        return {"status": 0, "test": ""}


class Notes:
    """Hooks of pytest that note which test runs which lines, and how long it takes."""

    def __init__(self, began: Callable[[str], object]) -> None:
        self.began = began
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.long: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """What a test and its fixtures run is the test's."""
        global TEST
        self.began(item.nodeid)
        TEST, start = item.nodeid, processor_seconds()
        try:
            return (yield)
        finally:
            self.seconds[TEST], TEST = processor_seconds() - start, ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Leave a test that takes too long."""

        def leave(*_: object) -> None:
            self.long.add(item.nodeid)
            pytest.skip("takes too long")

        old = signal.signal(signal.SIGPROF, leave)
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, old)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what fails without a change."""
        if report.failed:
            self.failed.add(report.nodeid)

    def values(self, root: Path) -> dict[str, object]:
        """What is written, with files below ``root``."""
        tests = list(self.seconds)
        index = {"": -1} | {test: i for i, test in enumerate(tests)}
        lines: dict[str, dict[int, list[int]]] = {}
        for file, line, test in sorted(RUN):
            if test not in self.failed | self.long:
                found = lines.setdefault(Path(file).relative_to(root).as_posix(), {})
                found.setdefault(line, []).append(index[test])
        return {
            "tests": tests, "seconds": list(self.seconds.values()), "lines": lines,
            "failed": sorted(self.failed), "long": sorted(self.long),
        }  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Answer requests instead of running what is collected."""
    if session.testsfailed or "ALEATOR_LINES" not in os.environ:
        return None
    serve(Loaded(session).answer)
    return True


def main() -> None:
    """Answer requests that are run by a pytest of their own."""
    sys.path[0] = ""
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    serve(anew)


if __name__ == "__main__":
    main()
elif "ALEATOR_LINES" in os.environ:
    PROBING.lines = json.loads(Path(os.environ["ALEATOR_LINES"]).read_text())
    builtins.__line_is_run__ = _line_is_run  # type: ignore[attr-defined]
    sys.meta_path.insert(0, PROBING)
