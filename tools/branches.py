"""A pytest plugin that counts branches with slipcover: probes in the code, while coverage.py traces all of it,
and takes half as long again below Python 3.14.

    python -m pytest -p branches --branches FILE.json [arguments of pytest]

writes which lines and branches of ``[tool.slipcover]``'s sources were taken; ``make cover`` merges such files.
Slipcover's own command sees no branches of an editable package, and writes files for processes that tests fork.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import slipcover
from slipcover.importer import SlipcoverLoader

ROOT = Path(__file__).parents[1]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["slipcover"]
SOURCES = slipcover.FileMatcher(OPTIONS["source"], OPTIONS["omit"])
# Probes stay in place: removing them, as a threshold would, replaces functions while they run.
TAKEN = slipcover.Slipcover(
    d_miss_threshold=-1, branch=True, source=OPTIONS["source"], omit=OPTIONS["omit"],
    exclude_also=OPTIONS["exclude-also"],
)  # fmt: skip


class Probing(MetaPathFinder):
    """Loads the package's modules with probes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it is a Python module of the package."""
        if name.partition(".")[0] != "aleator":
            return None
        spec = PathFinder.find_spec(name, path or [str(ROOT / "src")], target)
        if spec and isinstance(spec.loader, SourceFileLoader) and SOURCES.matches(spec.origin):
            spec.loader = SlipcoverLoader(TAKEN, spec.loader, spec.origin)
        return spec


sys.meta_path.insert(0, Probing())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the file for the branches."""
    parser.addoption("--branches", type=Path, required=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the branches."""
    path: Path = session.config.getoption("--branches")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(TAKEN.get_coverage()))
