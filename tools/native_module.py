"""Builds of the native module beside the usual one, for tools that test a changed or instrumented copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(source: Path, folder: Path, *options: str, made: str = "_native*.so") -> Path:
    """Configure and build ``source`` in ``folder``, incrementally, and return the path of the result."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    folder.mkdir(parents=True, exist_ok=True)
    python = f"-DPython_EXECUTABLE={sys.executable}"
    configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja", python, *options]
    for command in (configure, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, env=tools, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr}")
    return next(folder.glob(made))


def environment(module: Path, **more: str) -> dict[str, str]:
    """Variables that make every Python process load ``module`` as ``aleator._native``."""
    folders = [str(ROOT / "tools" / "other_native"), str(ROOT / "src")]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "ALEATOR_NATIVE": str(module), "PYTHONPATH": paths, **more}
