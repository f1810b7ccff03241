"""Python blocks of pages about other packages run where these are installed, and print what they say."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("integrations", "tutorial-transformers", "tutorial-ray")
BLOCKS = [
    block
    for name in PAGES
    for block in re.findall(r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
]


def packages(block: str) -> list[str]:
    """Names of the packages that a block imports."""
    found = []
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in packages(block) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "integrations.md", "exec"), {})
    assert printed.getvalue().splitlines() == re.findall(r"# -> (.*)", block)
