"""Would the tests notice a mistake in Python code?  Make one at a time in a copy of the tree, and run them.

    python tools/mutate_python.py models text --number 20 --seed 1
    python tools/mutate_python.py cache generate grammar models samplers text --number 300 --minutes 100

Changes are drawn at random, the same for the same seed, number, folders and code: a comparison shifted or
reversed, ``and`` for ``or``, an operator for another, a number plus one, ``not`` left out.  Those tests of the
folder with the same name run that execute the changed line: first those that have noticed most changes so far,
then the quick ones.  If a line runs at import, these are the tests that execute any line of its file or are
named after it.  Changes that no test noticed within ``MOST_SECONDS`` are printed.

Results are kept in build/mutate_python, so that an interrupted run continues (``--fresh`` starts anew).  Which
test runs which line is measured once per folder and state of the code.  tools/without_effect.toml lists changes
that cannot be noticed, and why.  The exit status is 1 if more than one in twenty went unnoticed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from python_changes import Change, all_changes

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "mutate_python"
LIST = ROOT / "tools" / "without_effect.toml"
WANTED = 0.95
PASSED, NOT_RUN, NO_TESTS = 0, 4, 5
"""Exit statuses of pytest."""
QUICK_SECONDS = 20.0
"""The total time of the tests that run first, in their own process."""
MOST_SECONDS = 120.0
"""The most total time of tests: a change that they do not notice counts as unnoticed."""


@dataclass(frozen=True)
class Coverage:
    """Which tests run which lines of a folder.

    Attributes:
        tests: their node ids.
        seconds: what each took, while lines were noted.
        lines: file -> line -> indices of tests; -1 stands for import.
    """

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]

    def of(self, change: Change, noticed: Counter[str]) -> list[int]:
        """The tests that run the changed line.

        If the line runs at import: tests that execute any line of its file or are named after it, and those
        that compare declarations with the record.

        Args:
            change: the change.
            noticed: how many changes each test has noticed so far; the tests with most come first.
        """
        lines = self.lines.get(change.file, {})
        found = set(lines.get(str(change.line), []))
        if -1 in found:
            found = {i for tests in lines.values() for i in tests}
            files = [Path(test.partition("::")[0]).stem for test in self.tests]
            names = ("test_declared", f"test_{Path(change.file).stem}")
            found |= {i for i, file in enumerate(files) if file in names}
            if found == {-1}:
                found = set(range(len(files)))
        order = sorted(found - {-1}, key=lambda i: (-noticed[self.tests[i]], self.seconds[i]))
        total = 0.0
        chosen: list[int] = []
        for i in order:
            total += self.seconds[i]
            if total > MOST_SECONDS and chosen:
                break
            chosen.append(i)
        return chosen


def without_effect() -> dict[str, str]:
    """Key of each change that cannot be noticed -> why."""
    listed = tomllib.loads(LIST.read_text()).get("change", []) if LIST.exists() else []
    return {
        f"{e['file']}: {e['code']}  [{e['old']} -> {e['new']}, {e.get('nth', 0)}]": e["why"]
        for e in listed
    }


def sample(folders: Sequence[str], number: int, seed: int) -> list[Change]:
    """Draw ``number`` changes from the folders, in proportion to their sizes."""
    changes = [change for folder in folders for change in all_changes(ROOT, folder)]
    return random.Random(seed).sample(changes, min(number, len(changes)))


def copy_tree(folder: Path) -> Path:
    """A copy of the tracked and unignored files, with the native module."""
    folder.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    from aleator import _native

    shutil.copy(_native.__file__, folder / "src" / "aleator")
    return folder


def environment(copy: Path) -> dict[str, str]:
    """Variables that make every Python process import ``aleator`` from the copy."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy / "tools" / "other_native"), str(copy / "tools")]),
        "ALEATOR_PACKAGE": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / ".hypothesis"),
    }


def pytest(
    copy: Path, arguments: Iterable[str], seconds: float, *start: str
) -> tuple[int | None, list[str]]:
    """Run pytest in the copy.

    Args:
        copy: the tree.
        arguments: names of tests.
        seconds: how long it may take.
        start: the command that starts pytest.

    Returns:
        Its exit status, None if it was stopped; and the names of the failed tests.
    """
    listed = copy / "chosen_tests.txt"
    listed.write_text("\n".join(arguments))
    command = [
        sys.executable, *(start or ("-m", "pytest")), "-q", "-x", "--tb=no", "-p", "no:cacheprovider",
        "--hypothesis-seed=0", f"@{listed}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=copy, env=environment(copy), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
        failed = [line.split()[1] for line in output.splitlines() if line.startswith("FAILED ")]
        return process.returncode, failed
    except subprocess.TimeoutExpired:
        return None, []
    finally:
        if process.poll() is None:  # after a limit or an interrupt, its own processes end with it
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measured(copy: Path, folder: str) -> Coverage:
    """Which tests run which lines; measured by a run of the folder's tests, once per state of the code."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(path.read_bytes())
    kept = WORK / f"lines-{folder.replace('/', '-')}-{digest.hexdigest()}.json"
    if not kept.exists():
        print(f"{folder}: noting which test runs which line", flush=True)
        out = copy / "lines.json"
        variables = environment(copy) | {"ALEATOR_LINES": str(out)}
        command = [
            sys.executable, "-m", "coverage", "run", "--rcfile=/dev/null", f"--source={copy / 'src'}",
            f"--data-file={copy / 'lines.data'}", "-m", "pytest", "-q", "-p", "line_contexts",
            "-p", "no:cacheprovider", "--hypothesis-seed=0", tests_of(copy, folder),
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=copy, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"without a change the tests fail:\n{done.stdout[-3000:]}")
        WORK.mkdir(parents=True, exist_ok=True)
        shutil.copy(out, kept)
    values = json.loads(kept.read_text())
    return Coverage(values["tests"], values["seconds"], values["lines"])


def tests_of(copy: Path, folder: str) -> str:
    """The tests of a folder of the package, or of the folder that a file is in."""
    parts = Path(folder).parts
    for path in ("/".join(parts[:n]) for n in range(len(parts), 0, -1)):
        if (copy / "tests" / path).is_dir():
            return f"tests/{path}"
    raise SystemExit(f"there is no folder of tests for {folder}")


def is_noticed(copy: Path, change: Change, coverage: Coverage, noticed: Counter[str]) -> bool:
    """Whether a test fails or hangs with the change; the test is counted in ``noticed``."""
    path = copy / change.file
    sound = path.read_text()
    path.write_text(change.applied(sound))
    try:
        return any(fails(copy, *stage, noticed) for stage in stages(change, coverage, noticed))
    finally:
        path.write_text(sound)


def stages(
    change: Change, coverage: Coverage, noticed: Counter[str]
) -> list[tuple[list[str], float]]:
    """The tests to run and their seconds: the first tests, then the others."""
    chosen, seconds = coverage.of(change, noticed), coverage.seconds
    first, total = 0, 0.0
    while first < len(chosen) and (total := total + seconds[chosen[first]]) < QUICK_SECONDS:
        first += 1
    return [
        ([coverage.tests[i] for i in part], sum(seconds[i] for i in part))
        for part in (chosen[:first], chosen[first:])
        if part
    ]


def fails(copy: Path, tests: list[str], seconds: float, noticed: Counter[str]) -> bool:
    """Whether one of the tests fails, hangs, or cannot be loaded."""
    status, failed = pytest(copy, tests, 120 + 8 * seconds)
    noticed.update(failed)
    if status == NOT_RUN:  # the change may give parametrised tests other names; their files stay
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        status, failed = pytest(copy, files, 120 + 8 * MOST_SECONDS)
    return status not in (PASSED, NO_TESTS)


def results_file(folders: Sequence[str], number: int, seed: int) -> Path:
    """Where the results of a run are kept."""
    return WORK / f"results-{'-'.join(folders).replace('/', '.')}-{number}-{seed}.jsonl"


def run(arguments: argparse.Namespace) -> int:
    """Make the changes, print what went unnoticed, and say how many there were."""
    folders, number, seed = arguments.folders, arguments.number, arguments.seed
    chosen, listed = sample(folders, number, seed), without_effect()
    kept = results_file(folders, number, seed)
    if arguments.fresh:
        kept.unlink(missing_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    known: dict[str, bool] = dict(json.loads(line) for line in lines)
    if arguments.again:
        known = {key: noticed for key, noticed in known.items() if noticed}
    pending = [each for each in chosen if each.key not in known and each.key not in listed]
    deadline = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="mutate") as temporary:
        jobs = max(1, min(arguments.jobs, len(pending)))
        copies = [copy_tree(Path(temporary) / str(job)) for job in range(jobs)]
        coverage = {folder: measured(copies[0], folder) for folder in folders} if pending else {}
        left, lock, noticed = iter(pending), threading.Lock(), Counter[str]()

        def work(copy: Path) -> None:
            while time.monotonic() < deadline:
                with lock:
                    change = next(left, None)
                if change is None:
                    return
                folder = next(f for f in folders if change.file.startswith(f"src/aleator/{f}"))
                found = is_noticed(copy, change, coverage[folder], noticed)
                with lock:
                    known[change.key] = found
                    with kept.open("a") as file:
                        file.write(json.dumps([change.key, found]) + "\n")
                    if not found:
                        print(f"{len(known)}/{len(chosen)} unnoticed: {change}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(work, copy) for copy in copies]:
                try:
                    done.result()
                except KeyboardInterrupt:
                    deadline = 0.0  # changes that have begun are finished
                    raise
    return summary(chosen, known, listed)


def summary(chosen: Sequence[Change], known: dict[str, bool], listed: dict[str, str]) -> int:
    """Print the counts; return 1 if too many changes went unnoticed."""
    without = [change for change in chosen if change.key in listed]
    tried = [change for change in chosen if change.key in known and change.key not in listed]
    unnoticed = [change for change in tried if not known[change.key]]
    for change in without:
        print(f"without effect: {change}\n    {listed[change.key]}")
    for change in unnoticed:
        print(f"unnoticed: {change}")
    share = 1 - len(unnoticed) / len(tried) if tried else 1.0
    print(
        f"{len(chosen)} changes: {len(tried)} tried, {len(tried) - len(unnoticed)} noticed ({share:.1%}), "
        f"{len(unnoticed)} unnoticed, {len(without)} listed as without effect, "
        f"{len(chosen) - len(tried) - len(without)} to come"
    )
    return int(share < WANTED)


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "folders", nargs="+", help="folders or files of src/aleator, such as models"
    )
    parser.add_argument("--number", type=int, default=20, help="changes to draw")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--jobs", type=int, default=1, help="changes tried at the same time")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="stop after so many; go on later"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--again", action="store_true", help="try those that went unnoticed again")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
