"""A copy of the tree, and processes that keep its tests ready: tools/mutated_tests.py runs in them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
    subprocess.run(  # a changed file differs from what is compiled by its text, not by its time
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=checked-hash", "src", "tests", "tools"],
        cwd=folder, check=False,
    )  # fmt: skip
    return folder


def environment(copy: Path) -> dict[str, str]:
    """Variables under which every Python process takes ``aleator`` from the copy."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy / "tools" / "other_native"), str(copy / "tools")]),
        "ALEATOR_PACKAGE": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / ".hypothesis"),
    }


class Ready:
    """A process that keeps tests ready: tools/mutated_tests.py."""

    def __init__(self, copy: Path, *command: str, **variables: str) -> None:
        ours, theirs = socket.socketpair()
        with (copy / "pytest.txt").open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=copy, pass_fds=[theirs.fileno()], start_new_session=True,
                env={**environment(copy), "ALEATOR_REQUESTS": str(theirs.fileno()), **variables},
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        theirs.close()
        self.stream = ours.makefile("rw")
        ours.close()
        self.copy = copy

    def ask(self, **request: object) -> tuple[int, str]:
        """Send a request.

        Returns:
            The exit status, and the last test that began.
        """
        try:
            print(json.dumps(request), file=self.stream, flush=True)
            answer = json.loads(self.stream.readline())
        except (OSError, ValueError):
            self.end()
            said = (self.copy / "pytest.txt").read_text()[-3000:]
            raise SystemExit(f"the tests cannot be loaded:\n{said}") from None
        return answer["status"], answer["test"]

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):
            self.stream.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def tests_of(copy: Path, folder: str) -> str:
    """The tests of a folder of the package, or of the folder that a file is in."""
    parts = Path(folder).parts
    for path in ("/".join(parts[:n]) for n in range(len(parts), 0, -1)):
        if (copy / "tests" / path).is_dir():
            return f"tests/{path}"
    raise SystemExit(f"there is no folder of tests for {folder}")
