"""Models in installed packages ``llm-NAME``."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from aleator.core.errors import FileFormatError

PACKAGE = "llm-"
"""What the names of packages that hold a model begin with."""


def packaged(name: str) -> Path | None:
    """The one GGUF file of the installed package ``llm-NAME``; None: there is no such package."""
    try:
        files = models_of(metadata.distribution(PACKAGE + name.removeprefix(PACKAGE)))
    except metadata.PackageNotFoundError:
        return None
    if len(files) > 1:
        names = ", ".join(str(each) for each in files)
        raise FileFormatError(
            PACKAGE + name, f"the package holds several models: give one of {names}"
        )
    return files[0] if files else None


def models_of(distribution: metadata.Distribution) -> list[Path]:
    """The GGUF files of an installed package."""
    files = distribution.files or []
    return [Path(str(distribution.locate_file(each))) for each in files if each.suffix == ".gguf"]
