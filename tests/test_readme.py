"""Python blocks of the documentation run and print what their comments say; commands that are shown exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from aleator.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXECUTED = (
    "adapters", "beams", "chain-state", "chat", "device", "engine", "grammar", "kv-cache", "llama-cpp",
    "models", "operator", "options", "prompt-cache", "reproducibility", "samplers", "scores", "server",
    "tutorial", "tutorial-cache", "tutorial-constrain", "tutorial-quantise", "tutorial-sampler",
    "watermarks",
)  # fmt: skip
BLOCKS = [
    block
    for name in ("README.md", *(f"docs/{stem}.md" for stem in EXECUTED))
    for block in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})
    expected = [x.split(",")[0].strip() for x in re.findall(r"# -> (.*)", block)]
    if expected:
        assert printed.getvalue().splitlines() == expected
    else:
        assert printed.getvalue()


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    linked = set(re.findall(r"\]\(([a-z0-9-]+\.md)\)", (ROOT / "docs/README.md").read_text()))
    assert pages == linked


def test_every_command_is_shown_and_exists() -> None:
    pages = "\n".join(path.read_text() for path in (README, *(ROOT / "docs").glob("*.md")))
    shown = set(re.findall(r"(?:^|`|\$ )aleator ([a-z][a-z-]+)", pages, re.MULTILINE))
    assert shown == set(COMMANDS)
