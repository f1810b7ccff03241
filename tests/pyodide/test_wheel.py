"""The wheel for Pyodide, in Node; NumPy's wheel is of Pyodide's release, which npm does not have."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "pyodide"
PYODIDE = Path(os.environ.get("ALEATOR_PYODIDE", BUILD / "node_modules" / "pyodide")).resolve()


def wheels() -> list[Path]:
    """The package's and NumPy's; the test is skipped where one is missing."""
    found = [*PYODIDE.glob("numpy-[0-9]*.whl"), *BUILD.glob("aleator-*.whl")]
    if len(found) != 2:
        pytest.skip(f"a wheel is missing: make pyodide, and numpy-*.whl in {PYODIDE}")
    return found


def test_draws_logits_and_texts_are_the_same() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    case = HERE / "case.py"
    command = [node, *map(str, (HERE / "run.mjs", PYODIDE, case, *wheels()))]
    there = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert there.returncode == 0, there.stderr[-3000:]
    here = subprocess.run([sys.executable, case], capture_output=True, text=True, check=True)
    assert there.stdout == here.stdout
