"""Blocks of Python on the site that run in the reader's browser: files, and which blocks have a button.

Everything comes from the site itself: the folder of a Pyodide release is copied there.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = "python"
WHEELS = ROOT / "build" / "pyodide"
FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MORE = re.compile(r"json_schema|JSONSchema|Regex|Lark|Engine\(|\.plot\(|\.chat\(|torch")
"""What needs packages or threads that are not there."""


def write_python(folder: Path, pyodide: Path) -> None:
    """Write what a page loads.

    Args:
        folder: The site's folder for it.
        pyodide: A folder of Pyodide's release, with NumPy's wheel.
    """
    packages = json.loads((pyodide / "pyodide-lock.json").read_text())["packages"]
    own = sorted(WHEELS.glob("aleator-*.whl"))
    wheels = [pyodide / packages["numpy"]["file_name"], *own]
    absent = [path for path in wheels if not path.is_file()]
    if absent or len(own) != 1:
        raise SystemExit(f"make pyodide writes one wheel to {WHEELS}; not found: {absent}")
    shutil.copytree(ROOT / "js" / "python", folder)
    for path in (*(pyodide / name for name in FILES), *wheels):
        shutil.copy(path, folder)
    names = json.dumps([path.name for path in wheels])
    (folder / "wheels.js").write_text(f"export default {names};\n")


def with_buttons(text: str) -> str:
    """A page's text; its blocks that can run in a browser are marked for js/python/run.js."""

    def marked(match: re.Match[str]) -> str:
        return match[0] if _MORE.search(match[1]) else f"``` {{ .python .run }}\n{match[1]}```"

    made = _BLOCK.sub(marked, text)
    script = f'\n<script type="module" src="{FOLDER}/run.js"></script>\n'
    return made + script if made != text else text
