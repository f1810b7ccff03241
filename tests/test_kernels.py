"""Kernels and decoders in Triton, in a process of their own, as Triton is imported for the interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
KERNELS = Path(__file__).parent / "models" / "kernels"
PARTS = 3  # each within the time that a test may take, also beside other work


@pytest.mark.parametrize("part", range(PARTS))
def test_under_the_interpreter(part: int, pytestconfig: pytest.Config) -> None:
    marked: str = pytestconfig.getoption("markexpr")
    files = [str(path) for path in sorted(KERNELS.glob("test_*.py"))[part::PARTS]]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marked, *files],
        env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=KERNELS.parents[2], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
