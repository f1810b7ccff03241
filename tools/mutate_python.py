"""Would the tests notice a mistake in Python code?  Make one at a time in a copy of the tree, and run them.

    python tools/mutate_python.py models text --number 20 --seed 1
    python tools/mutate_python.py cache generate grammar models samplers text --number 300 --minutes 100

Changes are drawn at random, the same for the same seed, number, folders and code: a comparison moved or
turned round, ``and`` for ``or``, an operator for another, a number plus one, ``not`` left out.  A pytest runs
the tests that are nearest to the change (tools/near_tests.py) until one fails, for ``--most`` seconds of the
processor.  A test that also fails without the change is left out from then on.  What no test noticed is
printed.

Results are kept in build/mutate_python, so that a run which was stopped goes on (``--fresh`` begins again).
The exit status is 1 if more than one in twenty went unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from near_tests import near
from python_changes import Change, all_changes

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "mutate_python"
WANTED = 0.95
PASSED, NO_TESTS = 0, 5
"""Exit statuses of pytest."""
KERNELS = ("src/aleator/models/kernels/", "src/aleator/models/triton/")
"""Beginnings of files whose tests run under Triton's interpreter; those of others do not."""
CLOCK = 8
"""Seconds by the clock for one of the processor, after which tests count as hung."""


def sample(folders: Sequence[str], number: int, seed: int) -> list[Change]:
    """``number`` changes drawn from all in the folders, shared out by their size."""
    changes = [change for folder in folders for change in all_changes(ROOT, folder)]
    return random.Random(seed).sample(changes, min(number, len(changes)))


def copy_tree(folder: Path) -> Path:
    """A copy of the files that git knows or does not ignore, with the native module."""
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


class Tree:
    """A copy of the tree, and its tests.

    Args:
        copy: the copy.
        most: processor seconds for the tests of a change.
        longest: and for one test, after which it counts as hung.

    Attributes:
        unsound: tests that have failed without a change.
        noticed: how many changes each has noticed.
    """

    def __init__(self, copy: Path, most: float, longest: float) -> None:
        self.copy, self.most, self.longest = copy, most, longest
        self.unsound: set[str] = set()
        self.noticed = Counter[str]()

    def notice(self, change: Change) -> bool:
        """Whether a test fails, or does not end, with the change but not without."""
        path, kernels = self.copy / change.file, change.file.startswith(KERNELS)
        tests, sound = near(self.copy, change, self.noticed, kernels), path.read_text()
        while tests := [test for test in tests if test not in self.unsound]:
            path.write_text(change.applied(sound))
            try:
                status, test = self.run(tests, kernels, self.most)
            finally:
                path.write_text(sound)
            if status in (PASSED, NO_TESTS):
                return False
            # Where none began, they could not be loaded.
            status, _ = self.run([test] if test else tests, kernels, self.most if test else 0.0)
            if status in (PASSED, NO_TESTS):
                self.noticed[test] += bool(test)
                return True
            self.unsound |= {test} if test else set(tests)
        return False

    def run(self, tests: Sequence[str], kernels: bool, most: float) -> tuple[int, str]:
        """Run tests until one fails; the exit status, below 0 if they hung, and the last one that began."""
        work, began, tools = self.copy / "work.json", self.copy / "began.txt", self.copy / "tools"
        began.write_text("")
        work.write_text(
            json.dumps({"tests": tests, "most": most, "longest": self.longest, "began": str(began)})
        )
        process = subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-q", "-x", "-p", "mutated_tests", "-p", "no:cacheprovider",
                "--hypothesis-seed=0", "--hypothesis-profile=no_shrinking", "--basetemp=temporary",
                *dict.fromkeys(test.partition("::")[0] for test in tests),
            ],
            cwd=self.copy, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={
                **os.environ, "ALEATOR_PACKAGE": str(self.copy / "src"), "ALEATOR_MUTATED": str(work),
                "PYTHONPATH": os.pathsep.join([str(tools / "other_native"), str(tools)]),
                "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                "HYPOTHESIS_STORAGE_DIRECTORY": str(self.copy / ".hypothesis"),
                **({"TRITON_INTERPRET": "1"} if kernels else {}),
            },
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOCK * (most + self.longest))
        status = -signal.SIGALRM if process.returncode is None else process.returncode
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what the tests have left behind ends with them
        process.wait()
        names = began.read_text().splitlines()
        return status, "::".join(names[-1].partition("[")[0].split("::")[:2]) if names else ""


def run(arguments: argparse.Namespace) -> int:
    """Make the changes, print what went unnoticed, and say how many there were."""
    folders, number, seed = arguments.folders, arguments.number, arguments.seed
    chosen = sample(folders, number, seed)
    WORK.mkdir(parents=True, exist_ok=True)
    kept = WORK / f"results-{'-'.join(folders).replace('/', '.')}-{number}-{seed}.jsonl"
    if arguments.fresh:
        kept.unlink(missing_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    known: dict[str, bool] = dict(json.loads(line) for line in lines)
    if arguments.again:
        known = {key: noticed for key, noticed in known.items() if noticed}
    deadline, lock = time.monotonic() + 60 * arguments.minutes, threading.Lock()
    idle = queue.SimpleQueue[Tree]()

    def attempt(change: Change) -> None:
        if time.monotonic() > deadline:
            return
        tree = idle.get()
        try:
            found = tree.notice(change)
        finally:
            idle.put(tree)
        with lock, kept.open("a") as file:
            known[change.key] = found
            file.write(json.dumps([change.key, found]) + "\n")
            if not found:
                print(f"{len(known)}/{len(chosen)} unnoticed: {change}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutate") as temporary:
        for i in range(arguments.jobs):
            copy = copy_tree(Path(temporary) / f"tree{i}")
            idle.put(Tree(copy, arguments.most, arguments.longest))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(attempt, [each for each in chosen if each.key not in known]))
    return summary(chosen, known)


def summary(chosen: Sequence[Change], known: dict[str, bool]) -> int:
    """Print the counts; 1 if too many went unnoticed."""
    tried = [change for change in chosen if change.key in known]
    unnoticed = [change for change in tried if not known[change.key]]
    for change in unnoticed:
        print(f"unnoticed: {change}")
    share = 1 - len(unnoticed) / len(tried) if tried else 1.0
    print(
        f"{len(chosen)} changes: {len(tried)} tried, {len(tried) - len(unnoticed)} noticed ({share:.1%}), "
        f"{len(unnoticed)} unnoticed, {len(chosen) - len(tried)} to come"
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
    parser.add_argument("--most", type=float, default=60.0, help="seconds of tests for a change")
    parser.add_argument(
        "--longest", type=float, default=60.0, help="a test that takes more seconds has noticed it"
    )
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
