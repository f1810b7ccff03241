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


def in_pyodide(code: Path) -> str:
    """What the code prints."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    wheels = [*BUILD.glob("aleator-*.whl"), *PYODIDE.glob("numpy-[0-9]*.whl")]
    if len(wheels) != 2:
        pytest.skip(f"a wheel is missing: make pyodide, and numpy-*.whl in {PYODIDE}")
    done = subprocess.run(
        [node, HERE / "run.mjs", PYODIDE, code, *wheels],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_draws_logits_and_texts_are_the_same() -> None:
    case = HERE / "case.py"
    here = subprocess.run([sys.executable, case], capture_output=True, text=True, check=True)
    assert in_pyodide(case) == here.stdout
