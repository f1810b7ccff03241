"""What `make` does with a checkout's environment, which a script stands in for here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
  *--editable*) echo "$SKBUILD_CMAKE_DEFINE" >> {folder}/built; exit {module} ;;
  *--requirement*) sleep 0.3; cat > {folder}/packages; exit {packages} ;;
  *) echo numpy ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def built(folder: Path, module: int = 0, packages: int = 0) -> bool:
    """Whether `make demo` takes the module for built, after the compiler and pip ended with these codes."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(PYTHON.format(folder=folder, module=module, packages=packages))
    python.chmod(0o755)
    (folder / ".tools").touch()
    command = ["make", f"VENV={folder}", f"{folder}/.built"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    given: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False, **given)
    made = (folder / ".built").exists()
    assert made == (done.returncode == 0)
    return made


def test_a_demo_compiles_one_instruction_set(tmp_path: Path) -> None:
    assert built(tmp_path)
    assert (tmp_path / "built").read_text() == "ALEATOR_HERE=ON\n"
    assert (tmp_path / "packages").read_text() == "numpy\n"


def test_where_tests_run_every_instruction_set_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / ".dev").touch()
    assert built(tmp_path)
    assert (tmp_path / "built").read_text() == "ALEATOR_HERE=OFF\n"


@pytest.mark.parametrize(("module", "packages"), [(1, 0), (0, 1), (2, 3)])
def test_what_fails_is_not_taken_for_done(module: int, packages: int, tmp_path: Path) -> None:
    assert not built(tmp_path, module, packages)
    assert (tmp_path / "packages").exists()  # nothing goes on behind
