"""The Python examples of the page about other packages.

    python tests/integrations/page.py ray      runs those that import ray, in this environment

An example is run as it stands on the page, and must print what its comments (``# -> ``) say.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("integrations",)


def examples() -> list[tuple[str, str]]:
    """The page and the text of each example."""
    return [
        (name, block)
        for name in PAGES
        for block in re.findall(
            r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL
        )
    ]


def packages(block: str) -> list[str]:
    """Names of the packages that an example imports."""
    found = []
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module.partition(".")[0])
    return found


def run(block: str) -> tuple[list[str], list[str]]:
    """The lines that an example prints, and those that it says it does."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "example", "exec"), {})
    return printed.getvalue().splitlines(), re.findall(r"# -> (.*)", block)


def main() -> int:
    """Run the examples that import a package."""
    chosen = [(page, block) for page, block in examples() if sys.argv[1] in packages(block)]
    for page, block in chosen:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            printed, said = run(block)
            os.chdir(DOCS)
        assert printed == said, f"docs/{page}.md: {block}\nprinted {printed}"
    pages = sorted({page for page, _ in chosen})
    print(
        f"  {len(chosen)} examples of {', '.join(f'docs/{p}.md' for p in pages)}: print what they say"
    )
    return int(not chosen)


if __name__ == "__main__":
    raise SystemExit(main())
