"""Resolves a model's name: a file, a model of the hub, or an installed package."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from aleator.core.errors import FileFormatError, ParameterError
from aleator.models.hub.names import HUB, HubName

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PACKAGE = "llm-"
"""Prefix of the names of packages that hold a model."""
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def located(
    model: str | os.PathLike[str], *, token: str | None = None, offline: bool = False
) -> Path:
    """Where a model is on this machine; a model of the hub is fetched if it is missing.

    Args:
        model: a path; ``hf:ORG/NAME[:QUANT]``; or the name of an installed package without its ``llm-``.
        token: for the hub; None: its library finds one (``HF_TOKEN``, or a saved login).
        offline: use only fetched models, without network.

    Returns:
        The GGUF file (the first of a split model), or the directory.  A path is returned as it is, even if
        nothing is there.

    Raises:
        HubError: the hub has no such model, denies access, or cannot be reached; in one line.
        ParameterError: a malformed name of the hub.
        ImportError: huggingface_hub is not installed.
        FileFormatError: a package holds several models, or a download is damaged.
    """
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise ParameterError(
            f"model={model!r:.60}: give a path, {HUB}ORG/NAME, or a package's name"
        )
    if str(model).startswith(HUB):
        from aleator.models.hub.fetching import fetched

        return fetched(HubName.read(str(model)), token=token, offline=offline)
    path = Path(model)
    if isinstance(model, str) and re.fullmatch(_PLAIN, model) and not path.exists():
        return _packaged(model) or path
    return path


def _packaged(name: str) -> Path | None:
    """The one GGUF file of the installed package ``llm-NAME``; None: there is no such package."""
    from importlib import metadata  # a model's path does not need it

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


def models_of(distribution: Distribution) -> list[Path]:
    """The GGUF files of an installed package."""
    files = distribution.files or []
    return [Path(str(distribution.locate_file(each))) for each in files if each.suffix == ".gguf"]
