"""The packages of the adapters: whether they are installed, and new enough."""

from __future__ import annotations

import re
from importlib import metadata


def require(*names: str, at_least: str, install: str) -> str:
    """Check that one of several distributions is installed; adapters call this before the import.

    ``at_least`` is the oldest version that the adapter was run with, ``install`` the argument for pip.
    ImportError says the remedy in one line.
    """
    for name in names:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(found) < _numbers(at_least):
            raise ImportError(
                f'{name} {found} is older than {at_least}, which this adapter needs: pip install "{install}"',
                name=name,
            )
        return found
    raise ImportError(
        f'this adapter needs {names[0]}, which is not installed: pip install "{install}"',
        name=names[0],
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The release's numbers, without suffixes (rc1, +cpu)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()
