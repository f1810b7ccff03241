"""Would the tests notice a mistake in Python code?  Make one at a time in a copy of the tree, and run them.

    python tools/mutate_python.py models text --number 20 --seed 1
    python tools/mutate_python.py cache generate grammar models samplers text --number 300 --minutes 100

Changes are drawn at random, the same for the same seed, number, folders and code: a comparison moved or
turned round, ``and`` for ``or``, an operator for another, a number plus one, ``not`` left out.  The tests of
the folder with the same name run, as far as they run the changed line: those first that have noticed most
changes so far, then the quick ones, in a fork of a process that has loaded them (tools/mutated_tests.py).
Where a line runs at import, those that run anything of its file or are named after it, loaded anew.  Then
tests of the folders that are built on it (``BUILT_ON``), those first that reach the file over few imports.
What no test noticed within ``--most`` seconds is printed.

Results are kept in build/mutate_python, so that a run which was stopped goes on (``--fresh`` begins again).
Folders are tried one after the other, kernels under Triton's interpreter last.  Which test runs which of the
changed lines is noted once per folder and state of the code; tests that take longer than ``--longest`` seconds
are left out.  All seconds are the processor's: they do not depend on what else runs.
The exit status is 1 if more than one in twenty went unnoticed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chosen_tests import LONG, MOST, Coverage
from python_changes import Change, all_changes
from ready_tests import Ready, copy_tree, tests_of

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "mutate_python"
WANTED = 0.95
PASSED, NOT_RUN, NO_TESTS = 0, 4, 5
"""Exit statuses of pytest."""
KERNELS = "models/kernels"
"""Tests of this folder run under Triton's interpreter, and those of others do not.

They take long, so what they run is not noted: those of files named as the changed one come first.
"""
BUILT_ON = {
    "cache": "generate engine language_model cli server",
    "generate": "engine language_model cli server playground integrations",
    "grammar": "samplers generate chat cli server",
    "models": "generate engine language_model cli",
    "samplers": "device generate engine cli server playground integrations",
    "text": "generate chat language_model server",
}
"""Folder -> others whose tests run its code too, those first that are nearest to it."""
SLACK = 180.0
"""Seconds by the clock that a test may take more than eight times what it took unchanged."""


def sample(folders: Sequence[str], number: int, seed: int) -> list[Change]:
    """``number`` changes drawn from all in the folders, shared out by their size."""
    changes = [change for folder in folders for change in all_changes(ROOT, folder)]
    return random.Random(seed).sample(changes, min(number, len(changes)))


class LoadedTests:
    """The tests of a folder, for some changes to it.

    Attributes:
        coverage: which tests of the folder run which changed lines; noted once per state of the code.
        others: the tests of which that is not known.
        unsound: tests that have failed without a change.
    """

    def __init__(
        self, copy: Path, folder: str, changes: Sequence[Change], longest: float, near: bool = False
    ) -> None:
        self.copy, kernels = copy, folder == KERNELS
        self.unsound: set[str] = set()
        own = tests_of(copy, folder)
        built = [f"tests/{each}" for each in BUILT_ON.get(Path(folder).parts[0], "").split()]
        lines: dict[str, set[int]] = {}
        for change in changes:
            lines.setdefault(str(copy / change.file), {0}).add(change.line)
        listed = json.dumps({file: sorted(found) for file, found in sorted(lines.items())})
        (copy / "lines.json").write_text(listed)
        variables = {"TRITON_INTERPRET": "1"} if kernels else {}
        self.anew = Ready(copy, "tools/mutated_tests.py", **variables)
        self.loaded = Ready(
            copy, "-m", "pytest", "-q", "-p", "mutated_tests", "-p", "no:cacheprovider", "--hypothesis-seed=0",
            "--hypothesis-profile=no_shrinking",
            "--basetemp=temporary", own,
            *([] if kernels else [f"--ignore=tests/{KERNELS}", *(b for b in built if (copy / b).is_dir())]),
            ALEATOR_LINES=str(copy / "lines.json"), ALEATOR_LONGEST=str(longest), **variables,
        )  # fmt: skip
        digest = hashlib.blake2b(listed.replace(str(copy), "").encode(), digest_size=8)
        for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
            digest.update(path.read_bytes())
        kept = WORK / f"lines-{folder.replace('/', '-')}-{digest.hexdigest()}.json"
        self.loaded.ask(tests=str(copy / "tests.json"))
        names = json.loads((copy / "tests.json").read_text())
        noted = {} if kernels or near else {n: 0 for n in names if n.startswith(f"{own}/")}
        self.coverage = Coverage([], [], {})
        self.others = Coverage([name for name in names if name not in noted], [], {})
        if not noted:
            return
        if not kept.exists():
            print(f"{folder}: noting which test runs which line", flush=True)
            status, test = self.loaded.ask(note=str(copy / "noted.json"), tests=list(noted))
            if status:
                raise SystemExit(f"without a change the tests end with {status}, in {test}")
            shutil.copy(copy / "noted.json", kept)
        values = json.loads(kept.read_text())
        for what in ("failed", "long"):
            print(
                f"{folder}: {len(values[what])} tests left out ({what}) {values[what]}", flush=True
            )
        self.coverage = Coverage(values["tests"], values["seconds"], values["lines"])

    def notices(self, change: Change, noticed: Counter[str], most: float) -> bool:
        """Whether a test fails, or does not end, with the change but not without; ``noticed`` counts it."""
        path = self.copy / change.file
        sound = path.read_text()
        while True:
            path.write_text(change.applied(sound))
            try:
                test, anew = self.failing_test(change, path, noticed, most)
            finally:
                path.write_text(sound)
            if test is None:
                return False
            if not test or self.run(path, {test: LONG}, anew)[0] in (PASSED, NO_TESTS):
                noticed[test] += 1
                return True
            self.unsound.add(test)

    def failing_test(
        self, change: Change, path: Path, noticed: Counter[str], most: float
    ) -> tuple[str | None, bool]:
        """A test that fails with the change made, "" if tests cannot be loaded, and how it was run."""
        anew = self.coverage.at_import(change)
        tests = self.sound(self.coverage.of(change, noticed, most))
        status, test = self.run(path, tests, anew)
        left = most - sum(tests.values())
        if status in (PASSED, NO_TESTS) and left > 0:
            others = self.sound(self.others.near(change, noticed, anew))
            status, test = self.run(path, others, anew, end_after=left)
        return None if status in (PASSED, NO_TESTS) else test, anew

    def sound(self, tests: dict[str, float]) -> dict[str, float]:
        """Those tests that are not known to fail without a change."""
        return {test: seconds for test, seconds in tests.items() if test not in self.unsound}

    def run(
        self, path: Path, tests: dict[str, float], anew: bool, end_after: float = 0.0
    ) -> tuple[int, str]:
        """Run tests on a changed file, for ``end_after`` seconds of the processor if that is not 0."""
        status, test = NOT_RUN if tests else NO_TESTS, ""
        for each in (tests, dict.fromkeys((name.partition("::")[0] for name in tests), LONG)):
            if status == NOT_RUN:  # parametrised tests may have other names now; their files stay
                status, test = (self.anew if anew else self.loaded).ask(
                    change=str(path), tests=list(each.items()), end_after=end_after,
                    seconds=SLACK + 8 * (end_after or max(each.values())),
                )  # fmt: skip
        return status, test

    def end(self) -> None:
        """End the processes."""
        self.loaded.end()
        self.anew.end()


def group_of(change: Change, folders: Sequence[str]) -> str:
    """The folder whose tests run for a change: one of ``folders``, or that of kernels."""
    stem = change.file.removeprefix("src/aleator/")
    if stem.startswith((f"{KERNELS}/", "models/triton_")):
        return KERNELS
    return next(folder for folder in folders if stem.startswith(folder))


def results_file(folders: Sequence[str], number: int, seed: int) -> Path:
    """Where the results of a run are kept."""
    return WORK / f"results-{'-'.join(folders).replace('/', '.')}-{number}-{seed}.jsonl"


def run(arguments: argparse.Namespace) -> int:
    """Make the changes, print what went unnoticed, and say how many there were."""
    folders, number, seed = arguments.folders, arguments.number, arguments.seed
    chosen = sample(folders, number, seed)
    WORK.mkdir(parents=True, exist_ok=True)
    kept = results_file(folders, number, seed)
    if arguments.fresh:
        kept.unlink(missing_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    known: dict[str, bool] = dict(json.loads(line) for line in lines)
    if arguments.again:
        known = {key: noticed for key, noticed in known.items() if noticed}
    pending = [each for each in chosen if each.key not in known]
    deadline = time.monotonic() + 60 * arguments.minutes
    groups: dict[str, list[Change]] = {folder: [] for folder in (*folders, KERNELS)}
    whole: dict[str, list[Change]] = {folder: [] for folder in groups}
    for change in chosen:
        whole[group_of(change, folders)].append(change)
        if change in pending:
            groups[group_of(change, folders)].append(change)
    lock = threading.Lock()

    def work(folder: str) -> None:
        if time.monotonic() > deadline:
            return
        noticed = Counter[str]()
        with tempfile.TemporaryDirectory(prefix="mutate") as temporary:
            copy = copy_tree(Path(temporary) / "tree")
            tests = LoadedTests(copy, folder, whole[folder], arguments.longest, arguments.near)
            try:
                for change in groups[folder]:
                    if time.monotonic() > deadline:
                        return
                    found = tests.notices(change, noticed, arguments.most)
                    with lock:
                        known[change.key] = found
                        with kept.open("a") as file:
                            file.write(json.dumps([change.key, found]) + "\n")
                        if not found:
                            print(f"{len(known)}/{len(chosen)} unnoticed: {change}", flush=True)
            finally:
                tests.end()

    for folder in set(groups) - set(arguments.only or groups):
        groups[folder] = []
    # Those with few changes first, and kernels last.
    order = sorted(
        filter(groups.get, groups), key=lambda each: (each == KERNELS, len(groups[each]))
    )
    with ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        for done in [pool.submit(work, folder) for folder in order]:
            try:
                done.result()
            except BaseException:
                deadline = 0.0  # what has begun is finished
                raise
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
    parser.add_argument("--jobs", type=int, default=1, help="folders tried at the same time")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="stop after so many; go on later"
    )
    parser.add_argument(
        "--only", nargs="+", help=f"of the folders, or {KERNELS}: try changes to these"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument(
        "--near",
        action="store_true",
        help="do not note what tests run: by names and imports, as kernels'",
    )
    parser.add_argument("--again", action="store_true", help="try those that went unnoticed again")
    parser.add_argument("--most", type=float, default=MOST, help="seconds of tests for a change")
    parser.add_argument(
        "--longest", type=float, default=20.0, help="tests that take more seconds are left out"
    )
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
