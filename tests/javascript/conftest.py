"""Node, for the tests of the npm package."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "js" / "src"

Run = Callable[[str, list[dict[str, Any]]], list[Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Has Node do the cases."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (PACKAGE / "aleator.wasm").is_file():
        pytest.skip("js/src/aleator.wasm is missing: make wasm")

    def run(what: str, cases: list[dict[str, Any]]) -> list[Any]:
        asked = tmp_path / f"{what}.json"
        package = (PACKAGE / "index.js").as_uri()
        asked.write_text(json.dumps({"what": what, "cases": cases, "package": package}))
        driver = Path(__file__).parent / "run.mjs"
        done = subprocess.run([node, driver, asked], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        results: list[Any] = json.loads(done.stdout)
        return results

    return run
