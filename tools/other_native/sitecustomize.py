"""Makes ``aleator._native`` the module that ALEATOR_NATIVE names, in every Python below this folder's PYTHONPATH.

Python imports this file at its start, so processes that tests start are covered as well.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


class OtherNative:
    """Finds the native module in another place; everything else is as usual."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        if name != "aleator._native":
            return None
        return importlib.util.spec_from_file_location(name, os.environ["ALEATOR_NATIVE"])


sys.meta_path.insert(0, OtherNative)
