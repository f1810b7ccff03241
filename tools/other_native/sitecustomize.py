"""Takes ``aleator._native`` from the file ALEATOR_NATIVE, and ``aleator`` from the folder ALEATOR_PACKAGE.

Python imports this file at its start where PYTHONPATH has this folder: in processes that tests start as well.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class Elsewhere:
    """Finds the package or its native module in another place; everything else is as usual."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        native, package = os.environ.get("ALEATOR_NATIVE"), os.environ.get("ALEATOR_PACKAGE")
        if name == "aleator._native" and native:
            return importlib.util.spec_from_file_location(name, native)
        if name.partition(".")[0] == "aleator" and package:
            return PathFinder.find_spec(name, [package] if path is None else path)
        return None


sys.meta_path.insert(0, Elsewhere)
