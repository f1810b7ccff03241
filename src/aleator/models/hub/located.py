"""What the name of a model means: a file, a model of the hub, or an installed package."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from aleator.core.errors import FileFormatError
from aleator.models.hub.names import HUB, HubName

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PACKAGE = "llm-"
"""What the names of packages that hold a model begin with."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def located(
    model: str | os.PathLike[str], *, token: str | None = None, offline: bool = False
) -> Path:
    """Where a model is on this machine; fetches it if it is one of the hub and not there yet.

    Args:
        model: a path; ``hf:ORG/NAME[:QUANT]``; or the name of an installed package without its ``llm-``.
        token: for the hub; None: what its library finds (``HF_TOKEN``, or what a login left).
        offline: take what was fetched before, and ask nobody.

    Returns:
        The GGUF file (of a split model the first), or the directory.  A path comes back as it is, also if
        nothing is there.

    Raises:
        HubError: the hub has no such model, does not give it, or cannot be reached; in one line.
        ParameterError: a name of the hub that cannot be read.
        ImportError: huggingface_hub is not installed.
        FileFormatError: a package holds several models, or a download is damaged.
    """
    if str(model).startswith(HUB):
        from aleator.models.hub.fetching import fetched

        return fetched(HubName.read(str(model)), token=token, offline=offline)
    path = Path(model)
    if isinstance(model, str) and _PLAIN.fullmatch(model) and not path.exists():
        return _packaged(model) or path
    return path


def _packaged(name: str) -> Path | None:
    """The one GGUF file of the installed package ``llm-NAME``; None: there is no such package."""
    from importlib import metadata  # which a model's path does not need

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
