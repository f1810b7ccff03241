"""Run the tests of the CPU in an environment without PyTorch.

The environment has the packages of ``pip install aleator[test]``, as a user has them, and the native module
of this checkout.

Usage: python tools/check_no_torch.py [--folder build/no-torch] [arguments of pytest]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRA = "test"


def requirements(extra: str) -> list[str]:
    """The requirements of the package and an extra, with nested extras resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = list(project["dependencies"])
    for each in project["optional-dependencies"][extra]:
        named = re.fullmatch(r"aleator\[(.*)\]", each)
        if named is None:
            found.append(each)
        else:
            for other in named[1].split(","):
                found += requirements(other)
    return list(dict.fromkeys(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "no-torch")
    options, rest = parser.parse_known_args()
    python = options.folder / "bin" / "python"
    if not python.exists():
        venv.create(options.folder, with_pip=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *requirements(EXTRA)], check=True)
    absent = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    subprocess.run([python, "-c", absent], check=True)
    from aleator import _native

    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tools" / "other_native"),
        "ALEATOR_NATIVE": str(_native.__file__),
        "ALEATOR_PACKAGE": str(ROOT / "src"),
    }
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(rest or ["tests"])]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
