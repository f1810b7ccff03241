"""Runs the tests that need a GPU, each with a limit, and writes each result as it comes.

    python tools/gpu_tests.py --out results.jsonl [--limit 300] [TEST ...]
    python tools/gpu_tests.py --out more.jsonl --again results.jsonl   those that did not pass

Without TEST these are all files test_*cuda*.py.  Tests run in a child process.  One that fails, hangs or kills
its process ends the child, because an error of CUDA breaks its process; the rest continues in a new child.  A
test counts as hung after ``--limit`` seconds without an event, including the start of its process.

The file has a line of JSON for each event, written to disk before the next test begins: first the machine and
the names of all tests, then each test's outcome (passed, failed, skipped, hung, died), seconds and output.  So
an interrupted run leaves the names of failed tests and of those that did not run.  The exit status is 0 if
every test passed or was skipped, and at least one passed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

ROOT = Path(__file__).resolve().parent.parent
EVENTS = "ALEATOR_GPU_TEST_EVENTS"
"""The variable with the file to which the child's pytest writes events."""
GOOD = ("passed", "skipped")
MOST_SAID = 4000
"""How many last characters of a test's output are kept."""
POLL = 0.1


# In the child: a plugin of pytest.


def event(**what: Any) -> None:
    """Write an event to disk, so that it survives whatever comes next."""
    with Path(os.environ[EVENTS]).open("a") as file:
        write_line(file, what)


def write_line(file: TextIO, what: dict[str, Any]) -> None:
    """Write a line of JSON to disk."""
    file.write(json.dumps(what) + "\n")
    file.flush()
    os.fsync(file.fileno())


def name_of(item: pytest.Item) -> str:
    """The test's name, relative to the root of the repository, wherever the file is."""
    return f"{os.path.relpath(item.path, ROOT)}::{item.nodeid.partition('::')[2]}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """All tests are known."""
    event(collected=[name_of(item) for item in session.items])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test begins."""
    event(begun=name_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A part of a test has ended: the last one, or one that ends the test."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        said = "" if report.passed else str(report.longrepr)
        event(test=name_of(item), outcome=report.outcome, seconds=report.duration, said=said)
    return report


# In the parent.


class Child:
    """A process, and the events that it has written so far.

    Args:
        command: What it runs.
        folder: Folder for its files: "events", which it writes lines of JSON to, and "log", what it prints.
        limit: Seconds without an event after which it counts as hung; it may be changed meanwhile.
        variables: Variables besides those of this process.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, limit: float, **variables: str
    ) -> None:
        self.limit, self._log = limit, folder / "log"
        self._events = folder / "events"
        self._events.write_text("")
        around = {**os.environ, "PYTHONFAULTHANDLER": "1", **variables}
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=around, stdout=out, stderr=out, start_new_session=True
            )

    def events(self, end: float = math.inf) -> Iterator[dict[str, Any]]:
        """Events as they happen; the last one says how the process ended, also by ``end`` (time.monotonic)."""
        last, how = time.monotonic(), ""
        with self._events.open() as file:
            try:
                while not how:
                    ended = self._process.poll() is not None  # before reading: it writes no more
                    for line in iter(file.readline, ""):
                        last = time.monotonic()
                        yield json.loads(line)
                    if ended:
                        break
                    if time.monotonic() - last > self.limit:
                        how = "hung"
                        self._tell()
                    elif time.monotonic() > end:
                        how = "cut off"
                    else:
                        time.sleep(POLL)
            finally:
                self.end()
        yield {"ended": how or self._process.returncode, "said": self.said()}

    def said(self) -> str:
        """The end of what the process printed."""
        return self._log.read_text(errors="replace")[-MOST_SAID:]

    def _tell(self) -> None:
        """Make it report where it is, which ends it."""
        self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def end(self) -> None:
        """Kill it and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def tests_in(folder: Path, limit: float, *words: str) -> Child:
    """A pytest that writes events."""
    command = [
        sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--rootdir", ".", "-q",
        "-p", "gpu_tests", "-p", "no:cacheprovider", *words,
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return Child(command, folder, limit, PYTHONPATH=path, **{EVENTS: str(folder / "events")})


def collected(paths: Sequence[str], folder: Path, limit: float) -> list[str]:
    """The names of all tests; SystemExit if they cannot be collected."""
    found: list[str] | None = None
    for what in tests_in(folder, limit, "--collect-only", *paths).events():
        found = what.get("collected", found)
        if "ended" in what and what["ended"] not in (0, 5):  # 5: there are none
            raise SystemExit(f"the tests cannot be collected ({what['ended']}):\n{what['said']}")
    return found or []


def results(tests: Sequence[str], folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """Run tests in one child after another; a result for each."""
    left = list(tests)
    while left:
        running, began, seen = left[0], time.monotonic(), 0
        for what in tests_in(folder, limit, "--maxfail=1", *left).events():
            if "begun" in what:
                running, began = what["begun"], time.monotonic()
            elif "test" in what and what["test"] in left:
                left.remove(what["test"])
                seen += 1
                yield what
            elif "ended" in what and left and (what["ended"] == "hung" or bad(what["ended"], seen)):
                test = running if running in left else left[0]
                left.remove(test)
                outcome = "hung" if what["ended"] == "hung" else "died"
                said = f"its process ended with {what['ended']}\n{what['said']}"
                yield {
                    "test": test,
                    "outcome": outcome,
                    "seconds": time.monotonic() - began,
                    "said": said,
                }


def bad(code: int, seen: int) -> bool:
    """Whether a process ended for another reason than its tests passing or one failing."""
    return code not in (0, 1) or not seen


def machine() -> dict[str, str]:
    """The machine that runs the tests; a process of its own finds out, as CUDA must not start here."""
    program = (
        "import json, platform, torch\n"
        "from importlib.metadata import PackageNotFoundError, version\n"
        "def v(name):\n"
        "    try: return version(name)\n"
        "    except PackageNotFoundError: return 'none'\n"
        "gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'\n"
        "print(json.dumps({'gpu': gpu, 'python': platform.python_version(),"
        " **{n: v(n) for n in ('aleator', 'torch', 'triton')}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"gpu": f"not found: {done.stderr.strip().splitlines()[-1]}"}
    made: dict[str, str] = json.loads(done.stdout)
    return made


def not_passed(path: Path) -> list[str]:
    """The tests of an earlier run that did not pass, and those that did not run."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    passed = {line["test"] for line in lines if line.get("outcome") in GOOD}
    return [test for test in lines[0]["tests"] if test not in passed]


def run(paths: Sequence[str], out: Path, limit: float) -> Counter[str]:
    """Run tests, and write each result as it comes; returns how many had each outcome."""
    counts = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="gpu-tests-") as name, out.open("w") as file:
        tests = collected(paths, Path(name), limit)
        write_line(file, {"machine": machine(), "tests": tests})
        for i, each in enumerate(results(tests, Path(name), limit), 1):
            write_line(file, {**each, "said": each["said"][-MOST_SAID:]})
            counts[each["outcome"]] += 1
            print(
                f"{i}/{len(tests)} {each['outcome']:<7} {each['seconds']:6.1f} s  {each['test']}",
                flush=True,
            )
    return counts


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tests", nargs="*", metavar="TEST", help="files or names of tests")
    parser.add_argument("--out", type=Path, required=True, help="where the results are written")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a test")
    parser.add_argument("--again", type=Path, help="run what did not pass in this file")
    options = parser.parse_args()
    paths = [str(Path(test).resolve()) for test in options.tests] or [
        str(p) for p in sorted((ROOT / "tests").rglob("test_*cuda*.py"))
    ]
    if options.again is not None:
        paths = not_passed(options.again)
        if not paths:
            raise SystemExit(f"all tests of {options.again} passed")
    try:
        counts = run(paths, options.out, options.limit)
    except KeyboardInterrupt:
        print(f"ended by hand: {options.out} has what came of it so far")
        return 130
    print(
        ", ".join(f"{n} {how}" for how, n in sorted(counts.items()))
        or "there is nothing to run: no GPU"
    )
    return 0 if counts["passed"] and set(counts) <= {*GOOD} else 1


if __name__ == "__main__":
    sys.exit(main())
