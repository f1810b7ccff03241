"""Packages that adapters need: what is missing or too old is said in one line."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec


def required(
    module: str, lowest: str, distribution: str, remedy: str, below: str | None = None
) -> str:
    """See that a package is installed in a version that an adapter knows.

    Args:
        module: What is imported.
        lowest: The first version that will do.
        distribution: What pip calls the package.
        remedy: What to do; ends both messages.
        below: The first version that will not do; None: any newer one will.

    Returns:
        The version that is installed.

    Raises:
        ImportError: It is not installed, or its version is outside the range; in one line.
    """
    if find_spec(module) is None:
        raise ImportError(
            f"this needs {distribution}, which is not installed: {remedy}", name=module
        )
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""  # a copy without metadata; whoever made it knows why
    number = numbers(version)
    if number < numbers(lowest) or (below is not None and number >= numbers(below)):
        known = f"{lowest} or newer" if below is None else f"{lowest} to below {below}"
        raise ImportError(
            f"{distribution} {version} is installed, and this needs {known}: {remedy}", name=module
        )
    return version


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare: those of 2.60.0rc1 are 2, 60, 0."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
