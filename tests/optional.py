"""Which test files need packages that are not installed, by what they and our files import at their top."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "src", ROOT, ROOT / "tools", ROOT / "benchmarks")
PACKAGES = (
    "torch", "transformers", "triton", "safetensors", "gguf", "llguidance", "matplotlib",
    "re2", "starlette", "uvicorn", "httpx", "selenium", "huggingface_hub",
)  # fmt: skip


@cache
def absent() -> frozenset[str]:
    """The optional packages that are not installed."""
    return frozenset(name for name in PACKAGES if find_spec(name) is None)


def missing(path: Path) -> str:
    """An optional package that a file needs to be imported, and that is not there; "" if none."""
    seen, left = {path.resolve()}, [path.resolve()]
    while left and absent():
        for name in _imports(left.pop()):
            if name.partition(".")[0] in absent():
                return name.partition(".")[0]
            file = _file(name)
            if file is not None and file not in seen:
                seen.add(file)
                left.append(file)
    return ""


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Modules that are imported whenever this one is."""
    names: list[str] = []
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names.append(statement.module)
            names += [f"{statement.module}.{alias.name}" for alias in statement.names]
    return tuple(dict.fromkeys(names))


@cache
def _file(name: str) -> Path | None:
    """The file of one of our modules; None: it is somebody else's, or no module."""
    for folder in FOLDERS:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None
