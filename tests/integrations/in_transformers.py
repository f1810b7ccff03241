"""transformers: the tests of the suite, with the version that this environment has.

Run by tools/integrations.py in an environment with torch, transformers, pytest and Aleator.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    print(f"transformers {version('transformers')}, torch {version('torch')}")
    for name in ("test_transformers.py", "test_transformers_cache.py"):
        run = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
                "--rootdir", str(HERE), "--noconftest", str(HERE / name),
            ],
            capture_output=True, text=True, check=False, cwd=HERE.parents[1],
        )  # fmt: skip
        assert run.returncode == 0, run.stdout[-3000:]
        print(f"  {name}: {run.stdout.strip().splitlines()[-1]}")
