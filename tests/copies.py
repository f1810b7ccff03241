"""Programs run in a copy of the package, for tests that follow a guide there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(copied: Path, *arguments: str) -> str:
    """What Python prints, run with a copy of the repository; it must succeed."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(copied / "tools" / "other_native"),
        "ALEATOR_PACKAGE": str(copied / "src"),
    }
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copied, env=variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
